"""The communication of a training step of three models, as a list of operations with real sizes.

The step is that of one rank of ``ranks``. Computation is left out: only communication is measured.

DLRM: the sizes of the public benchmark configuration (facebookresearch/dlrm, bench/dlrm_s_benchmark.sh): 8 embedding
tables of width 64, a mini-batch of 2,048 samples over all ranks, a bottom network of 512-512-64 and a top network of
1024-1024-1024-1 on the dot interactions of 9 vectors. These are the networks of MCR-DL's experiment; its batch is four
times as large. Tables are divided among the ranks, so that the batch's embeddings are exchanged by an alltoall, and
their gradients by another.

Mixture of experts: the layers of DeepSpeed-MoE's model with 350 million parameters outside the experts, scaled down: a
width of 256 instead of 1,024, 4 of the 12 layers with experts, 512 tokens per rank, one expert per rank, each token to
one expert. Each layer exchanges tokens by an alltoallv and back, and the same for their gradients. The number of tokens
of the fullest expert is agreed on by a small allreduce. The gradients outside the experts are averaged by allreduces.

Dense: the gradients of ResNet-50, 161 tensors, last layer first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.architectures import load

ELEMENT_BYTES = 4  # of float32
ALLREDUCE, ALLTOALL, ALLTOALLV = "allreduce", "alltoall", "alltoallv"
DENSE = "ResNet-50"  # the dense workload whose gradients DistributedDataParallel's buckets suit

_DLRM_TABLES, _DLRM_WIDTH, _DLRM_BATCH = 8, 64, 2048
_DLRM_BOTTOM = (512, 512, 64)
_DLRM_TOP = (_DLRM_TABLES * (_DLRM_TABLES + 1) // 2 + _DLRM_WIDTH, 1024, 1024, 1024, 1)
_MOE_LAYERS, _MOE_WIDTH, _MOE_TOKENS = 4, 256, 512
_MOE_SKEW = 0.6  # the share of tokens that the fullest expert gets lies about this much above the mean


@dataclass(frozen=True)
class Operation:
    """One operation of a step.

    Attributes:
        op: ``allreduce``, ``alltoall`` or ``alltoallv``.
        count: elements of a rank's tensor; of an alltoallv the mean over the ranks. Equal on all ranks.
        waits: True if the step goes on only when the operation has ended; False: it is awaited at the end of the step.
        counts: of an alltoallv, ``counts[q][r]`` elements go from rank q to rank r.
    """

    op: str
    count: int
    waits: bool = False
    counts: tuple[tuple[int, ...], ...] = ()

    @property
    def bytes(self) -> int:
        """The size by which a backend is chosen; equal on all ranks."""
        return self.count * ELEMENT_BYTES

    @property
    def tuned_as(self) -> str:
        """The operation of a tuning table that stands for this one."""
        return ALLTOALL if self.op == ALLTOALLV else self.op

    def parts(self, ranks: int) -> list[list[int]]:
        """Return how many elements each rank sends to each."""
        return [list(row) for row in self.counts] or [[self.count // ranks] * ranks] * ranks


@dataclass(frozen=True)
class Workload:
    """A workload.

    Attributes:
        name: its name.
        gain: the gain of mixing over the best single backend that MCR-DL's paper reports, in percent.
        of: the model and machine of that gain.
        make: returns the operations of a step for a number of ranks.
    """

    name: str
    gain: float
    of: str
    make: Callable[[int], list[Operation]]

    def step(self, ranks: int, shrink: int = 1) -> list[Operation]:
        """Return the operations of a step, with all sizes divided by ``shrink``, for a short trial."""
        return [_shrunk(operation, ranks, shrink) for operation in self.make(ranks)]


def dlrm(ranks: int) -> list[Operation]:
    """Embeddings forward; then the top network's gradients, the embeddings' and the bottom network's, overlapped."""
    share = _round(_DLRM_BATCH * _DLRM_TABLES * _DLRM_WIDTH // ranks, ranks)
    return [
        Operation(ALLTOALL, share, waits=True),
        *_layers(_DLRM_TOP),
        Operation(ALLTOALL, share),
        *_layers(_DLRM_BOTTOM),
    ]


def mixture_of_experts(ranks: int) -> list[Operation]:
    """Forward: capacity, dispatch and combine of each layer. Backward: the reverse, overlapped with dense gradients."""
    forward: list[Operation] = []
    backward: list[Operation] = []
    for layer in range(_MOE_LAYERS):
        there = _routing(layer, ranks)
        back = tuple(zip(*there, strict=True))
        dispatch = Operation(ALLTOALLV, _mean(there, ranks), True, there)
        combine = Operation(ALLTOALLV, _mean(there, ranks), True, back)
        forward += [Operation(ALLREDUCE, 1, waits=True), dispatch, combine]
        width = _MOE_WIDTH
        shared = (3 * width * width, 3 * width, width * width, width, width * ranks, *(4 * [width]))
        backward = [dispatch, *(Operation(ALLREDUCE, count) for count in shared), combine, *backward]
    return forward + backward


def dense(ranks: int) -> list[Operation]:
    """All gradients at once."""
    return [Operation(ALLREDUCE, math.prod(shape)) for _, shape in reversed(load(DENSE))]


def _shrunk(operation: Operation, ranks: int, by: int) -> Operation:
    counts = tuple(tuple(count // by for count in row) for row in operation.counts)
    least = 1 if operation.op == ALLREDUCE else ranks
    return replace(operation, count=max(least, _round(operation.count // by, least)), counts=counts)


def _round(count: int, ranks: int) -> int:
    return -(-count // ranks) * ranks


def _layers(widths: Sequence[int]) -> Iterator[Operation]:
    """The gradients of fully connected layers, last layer first: weights and biases."""
    for inputs, outputs in reversed(list(itertools.pairwise(widths))):
        yield Operation(ALLREDUCE, inputs * outputs)
        yield Operation(ALLREDUCE, outputs)


def _routing(layer: int, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The elements that each rank sends to each in a layer: every expert has another popularity; seeded."""
    import numpy as np

    random = np.random.default_rng(seed=1000 + layer)
    popularity = random.permutation(np.linspace(1.0 - _MOE_SKEW, 1.0 + _MOE_SKEW, ranks)) / ranks
    tokens = random.multinomial(_MOE_TOKENS, popularity, size=ranks)
    return tuple(tuple(int(count) * _MOE_WIDTH for count in row) for row in tokens)


def _mean(counts: Sequence[Sequence[int]], ranks: int) -> int:
    return sum(map(sum, counts)) // ranks


WORKLOADS = {
    one.name: one
    for one in (
        Workload("DLRM", 25.0, "DLRM, 32 A100", dlrm),
        Workload("mixture of experts", 31.0, "DeepSpeed-MoE, 256 V100", mixture_of_experts),
        Workload("dense gradients", 20.0, "dense Megatron-DeepSpeed", dense),
    )
}
