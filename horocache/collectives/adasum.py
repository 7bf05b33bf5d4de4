"""Adasum: a sum that adds the components in which gradients differ, and averages those that they have in common.

Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, section 3. Two gradients
give ``(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b``: their sum if they are orthogonal, their mean if they are equal.
For example, ``a = (2, 0)`` and ``b = (2, 2)`` have ``a.b = 4``, ``|a|^2 = 4`` and ``|b|^2 = 8``, so the weights are 1/2
and 3/4, and the result is ``(1, 0) + (1.5, 1.5) = (2.5, 1.5)``. Ranks are combined in pairs, then pairs of pairs, so
their number must be a power of two.

Every rank gathers the tensors of all ranks and combines them by itself, in the same order. The results have the same
bits on every rank; in return, each rank needs memory for the tensors of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_ALLGATHER
from horocache.base.request import Request
from horocache.collectives.arguments import Name, check_backend, check_scales, set_id
from horocache.collectives.submitter import Submitter
from horocache.collectives.tensor_adapter import TensorAdapter
from horocache.collectives.transforms import LayerList
from horocache.core.process_set import ProcessSet
from horocache.errors import UnsupportedError

T = TypeVar("T")


class AdaptiveSum(Submitter[T]):
    """Allreduce with ``op=Adasum``. Allreduce derives from this class."""

    def _adaptive_sum(
        self,
        tensors: Sequence[Any],
        name: Name,
        scales: tuple[float, float],
        process_set: ProcessSet,
        layers: LayerList,
        in_place: bool,
        wait_follows: bool,
        backend: str | None,
        priority: int,
    ) -> int:
        """Gather the tensors of all ranks; the finisher combines them, each tensor of a group by itself."""
        set_id(process_set)
        check_scales(scales)
        check_ranks(process_set.size())
        adapter = self.adapter
        sources = self.checked(tensors, "Adasum", in_place)
        for source in sources:
            check_floating(source, adapter)
        encoded, contexts = layers.encode(sources)
        self.count_compressed(sources, encoded)
        buffers, _ = self.dense(sources, encoded)

        def finish(answer: Any) -> Any:
            # First by rank, whose tensors are decoded together; then by tensor, whose ranks are combined.
            per_rank = zip(*(_by_rank(adapter.from_result(result), result.rows) for result in answer), strict=True)
            decoded = [parts if parts[0] is None else layers.decode(list(parts), contexts) for parts in per_rank]
            results = []
            for source, parts in zip(sources, zip(*decoded, strict=True), strict=True):
                output = source if in_place else adapter.empty_like(source)
                adapter.copy_into(output, _scaled(parts, scales, adapter))
                results.append(adapter.written(output))
            return results if layers.group else results[0]

        # Each tensor is sent as one row, so that the ranks compare its whole shape. The token makes them compare the
        # purpose and the scales, too.
        rows: list[Any] = [self._one_row(buffer) for buffer in buffers]
        token = ",".join(filter(None, [layers.signature, f"adasum={scales[0]}*{scales[1]}"]))
        return self.start(
            finish,
            Request(
                OP_ALLGATHER,
                rows,
                None,
                name,
                process_set=set_id(process_set),
                layers=token,
                group=layers.group,
                wait_follows=wait_follows,
                backend=check_backend(backend),
                priority=priority,
            ),
        )

    def _one_row(self, tensor: Any) -> Any:
        return tensor.reshape((1, *self.adapter.shape(tensor)))


def check_ranks(ranks: int) -> None:
    """Raise UnsupportedError unless the number of ranks is a power of two."""
    if ranks & (ranks - 1):
        raise UnsupportedError(
            f"Adasum needs a number of ranks that is a power of two; the process set has {ranks}. Use Average or Sum."
        )


def check_floating(tensor: Any, adapter: TensorAdapter[Any]) -> None:
    """Raise UnsupportedError unless the elements are real floating-point numbers."""
    if not adapter.floating(tensor):
        raise UnsupportedError(f"Adasum works on floating-point tensors, not on {tensor.dtype}. Use Average or Sum.")


def _by_rank(gathered: Any, rows: Sequence[int]) -> list[Any]:
    """Return each rank's tensor from the gathered rows; None for a rank that has joined and sent nothing."""
    parts = []
    at = 0
    for count in rows:
        parts.append(gathered[at, ...] if count else None)
        at += count
    return parts


def _scaled(parts: Sequence[Any], scales: tuple[float, float], adapter: TensorAdapter[Any]) -> Any:
    before, after = scales
    if before != 1.0:
        parts = [None if part is None else part * before for part in parts]
    result = combine(parts, adapter.dot)
    return result if after == 1.0 else result * after


def _weight(common: float, own: float) -> float:
    # A tensor of zeros (own == 0) has nothing in common with the other one.
    return 1.0 - common / (2.0 * own) if own else 1.0


def combine(parts: Sequence[Any], dot: Callable[[Any, Any], Any], weight: Callable[[Any, Any], Any] = _weight) -> Any:
    """Return the adaptive sum of the ranks' tensors, in their type.

    Args:
        parts: the tensors, of equal shapes, as many as a power of two; None counts as zeros. Not modified.
        dot: returns the scalar product of two tensors, in float64.
        weight: returns ``1 - common / (2 own)``, and 1 if ``own`` is 0, for two results of ``dot``.
    """
    level = list(parts)
    while len(level) > 1:
        level = [_pair(level[i], level[i + 1], dot, weight) for i in range(0, len(level), 2)]
    return level[0]


def _pair(a: Any, b: Any, dot: Callable[[Any, Any], Any], weight: Callable[[Any, Any], Any]) -> Any:
    if a is None or b is None:
        return b if a is None else a
    common, own_a, own_b = dot(a, b), dot(a, a), dot(b, b)
    return a * weight(common, own_a) + b * weight(common, own_b)
