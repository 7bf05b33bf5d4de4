"""Ranks that disagree about an operation: it fails on all ranks with both values, cached or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from horocache.errors import MismatchError

from .conftest import run_ranks
from .operations import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    GATHER,
    MAX,
    REDUCE,
    REDUCESCATTER,
    SCATTER,
    blocking,
    caught,
)

ODD = 2  # the rank that differs


@dataclass(frozen=True)
class Call:
    """One operation on tensors of ones."""

    op: int = ALLREDUCE
    shapes: tuple[tuple[int, ...], ...] = ((6, 2),)
    dtype: Any = np.float32
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, runtime):
        arrays = [np.ones(shape, self.dtype) for shape in self.shapes]
        outputs = arrays if self.op in (ALLREDUCE, BROADCAST, REDUCE) else None
        return blocking(runtime, self.op, arrays, outputs, name="x", **self.options)


def rooted(op, root=0, **options):
    return Call(op, options={"root": root, **options})


def group(*shapes, names):
    return Call(shapes=shapes, options={"group": True, "names": names})


EVEN = {"splits": [2, 2, 2]}
CASES = {
    "shape": (Call(), Call(shapes=((6, 3),)), ["[6, 2]", "[6, 3]"]),
    "number of dimensions": (Call(), Call(shapes=((12,),)), ["[6, 2]", "[12]"]),
    "dtype": (Call(), Call(dtype=np.int32), ["float32", "int32"]),
    "reduce op": (Call(), Call(options={"reduce_op": MAX}), ["sum", "max"]),
    "prescale": (Call(), Call(options={"prescale": 0.5}), ["prescale factor 1", "prescale factor 0.5"]),
    "postscale": (Call(), Call(options={"postscale": 3.0}), ["postscale factor 1", "postscale factor 3"]),
    "backend": (Call(), Call(options={"backend": "shm/oneshot"}), ["backend ''", "'shm/oneshot'"]),
    "compression": (Call(), Call(options={"layers": "compression=fp16"}), ["layers ''", "'compression=fp16'"]),
    "operation": (Call(), rooted(BROADCAST), ["operation allreduce", "operation broadcast"]),
    "operation on rows": (Call(ALLGATHER), Call(ALLTOALL, options=EVEN), ["allgather", "alltoall"]),
    "root of broadcast": (rooted(BROADCAST), rooted(BROADCAST, 1), ["root 0", "root 1"]),
    "root of reduce": (rooted(REDUCE), rooted(REDUCE, 1), ["root 0", "root 1"]),
    "root of gather": (rooted(GATHER), rooted(GATHER, 2), ["root 0", "root 2"]),
    "root of scatter": (rooted(SCATTER, **EVEN), rooted(SCATTER, 2, **EVEN), ["root 0", "root 2"]),
    "row of allgather": (Call(ALLGATHER), Call(ALLGATHER, ((6, 3),)), ["[*, 2]", "[*, 3]"]),
    "row of alltoall": (Call(ALLTOALL, options=EVEN), Call(ALLTOALL, ((6, 5),), options=EVEN), ["[*, 2]", "[*, 5]"]),
    "rows of reducescatter": (Call(REDUCESCATTER), Call(REDUCESCATTER, ((7, 2),)), ["[6, 2]", "[7, 2]"]),
    "members of a group": (
        group((3,), (4,), names=["a", "b"]),
        group((3,), (4,), names=["a", "c"]),
        ["member 1 'b'", "member 1 'c'"],
    ),
    "size of a group": (group((3,), (4,), names=["a", "b"]), group((3,), names=["a"]), ["2 tensors", "1 tensor"]),
    "shape in a group": (
        group((3,), (4,), names=["a", "b"]),
        group((3,), (5,), names=["a", "b"]),
        ["tensor 'b'", "[4]", "[5]"],
    ),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("cached", [False, True], ids=["new", "cached"])
def test_a_mismatch_names_both_ranks_and_both_values_and_the_job_goes_on(kind, cached):
    usual, odd, words = CASES[kind]

    def disagree(rank, runtime):
        if cached:
            usual(runtime)
        error = caught(lambda: (odd if rank == ODD else usual)(runtime))
        assert isinstance(error, MismatchError), error
        for word in ["'x'", f"rank {ODD} submitted", *words]:
            assert word.lower() in str(error).lower(), str(error)
        assert "rank 0 submitted" in str(error) or "rank 1 submitted" in str(error), str(error)
        for _ in range(2):  # the same name again, also from the cache
            usual(runtime)
        return str(error)

    errors = run_ranks(3, disagree)
    assert errors[0] == errors[1] == errors[2]
