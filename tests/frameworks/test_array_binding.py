"""The example of a binding in docs/examples runs the collectives on arrays of the standard library."""

from __future__ import annotations

import importlib.util
from array import array
from pathlib import Path

import numpy as np
import pytest
from ranks import on_ranks

from horocache.collectives.operations import NAMES

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "array_binding.py"


def binding():
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("array_binding", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_every_collective_but_those_that_arrays_cannot_have():
    left_out = set(NAMES) - set(binding().__all__)
    forms = {
        f"{group}{name}{wait}_"
        for group in ("", "grouped_")
        for name in ("allgather", "reducescatter")
        for wait in ("", "_async")
    }
    assert left_out == {*forms, "empty", "empty_shared", "is_shared"}


@on_ranks(2, 3)
def test_reductions_have_the_results_of_numpy():
    hvd = binding()
    size, rank = hvd.size(), hvd.rank()
    for code in "fdilq":
        inputs = [[r + 1, 5 - r, 2 * r] for r in range(size)]
        mine = array(code, inputs[rank])
        total = np.sum(inputs, 0).tolist()
        got = hvd.allreduce(mine, op=hvd.Sum, name=f"sum.{code}")
        assert type(got) is array and got.typecode == code and got.tolist() == total
        assert mine.tolist() == inputs[rank]
        assert hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Max)).tolist() == np.max(inputs, 0).tolist()
        pair = hvd.grouped_allreduce([mine, mine[:1]], op=hvd.Sum)
        assert [part.tolist() for part in pair] == [total, total[:1]]
        reduced = hvd.reduce(mine, root_rank=0, op=hvd.Sum)
        assert reduced is None if rank else reduced.tolist() == total
        assert hvd.allreduce_(mine, op=hvd.Sum) is mine and mine.tolist() == total
    share = hvd.reducescatter(array("d", range(2 * size)), op=hvd.Sum)
    assert share.tolist() == [size * (2 * rank), size * (2 * rank + 1)]
    assert hvd.allreduce(array("f", [rank])).tolist() == [(size - 1) / 2]


@on_ranks(2)
def test_rows_move_between_ranks():
    hvd = binding()
    rank = hvd.rank()
    assert hvd.allgather(array("q", [rank] * (rank + 1))).tolist() == [0, 1, 1]
    assert hvd.allgather(array("f")).tolist() == []
    received, counts = hvd.alltoall(array("i", [10 * rank, 10 * rank + 1, 10 * rank + 2]), splits=[1, 2])
    assert received.tolist() == ([0, 10] if rank == 0 else [1, 2, 11, 12])
    assert counts.tolist() == ([1, 1] if rank == 0 else [2, 2])
    assert hvd.alltoall_(array("l", [rank, rank + 2])).tolist() == ([0, 1] if rank == 0 else [2, 3])
    values = array("d", [rank, rank])
    assert hvd.broadcast_(values, root_rank=1) is values and values.tolist() == [1.0, 1.0]
    assert hvd.scatter(array("d", [4.0, 5.0]), root_rank=0).tolist() == [4.0 + rank]
    gathered = hvd.gather(array("d", [rank]), root_rank=1)
    assert gathered is None if rank == 0 else gathered.tolist() == [0.0, 1.0]
    target = array("f", [0.0, 0.0])
    hvd.sendrecv(array("f", [rank, 7.0]), 1 - rank, target, 1 - rank)
    assert target.tolist() == [1.0 - rank, 7.0]


@on_ranks(2)
def test_wrong_values_are_refused_by_name_and_the_job_goes_on():
    hvd = binding()
    with pytest.raises(hvd.InvalidArgumentError, match=r"expected an array\.array, got builtins\.list"):
        hvd.allreduce([1.0])
    with pytest.raises(hvd.UnsupportedError, match="type 'u' cannot be sent"):
        hvd.allreduce_(array("u", "text"))
    with pytest.raises(hvd.UnsupportedError, match="Adasum needs arithmetic"):
        hvd.allreduce(array("f", [1.0]), op=hvd.Adasum)
    with pytest.raises(hvd.MismatchError, match="shape"):
        hvd.allreduce(array("f", [1.0] * (hvd.rank() + 1)), name="lengths")
    assert hvd.allreduce(array("f", [1.0]), op=hvd.Sum).tolist() == [2.0]
