"""The measured operations: a wrong result is counted, and a right one is not, for any number of ranks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from horocache.tuning import operations
from horocache.tuning.plan import Unit
from horocache.tuning.table import OPERATIONS


class Together:
    """Runs an operation for all ranks by NumPy: collects each rank's tensor, and computes the results."""

    Sum = object()

    def __init__(self, ranks):
        self.ranks, self.now = ranks, 0
        self.tensors = {}

    def rank(self):
        return self.now

    def size(self):
        return self.ranks

    def __getattr__(self, name):
        def start(tensor, **_):
            self.tensors[self.now] = tensor.copy()
            return name

        return start

    def result(self, op, rank):
        tensors = [self.tensors[each] for each in range(self.ranks)]
        total = sum(tensors) if len({each.size for each in tensors}) == 1 else None
        root = rank == 0
        split = [np.array_split(each, self.ranks) for each in tensors]
        return {
            "allreduce": lambda: total,
            "broadcast": lambda: tensors[0],
            "reduce": lambda: total if root else None,
            "reducescatter": lambda: np.array_split(total, self.ranks)[rank],
            "allgather": lambda: np.concatenate(tensors),
            "gather": lambda: np.concatenate(tensors) if root else None,
            "alltoall": lambda: (np.concatenate([each[rank] for each in split]), None),
            "scatter": lambda: split[0][rank],
        }[op]()


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("num_bytes", [4, 16, 1000])
def test_right_results_have_no_wrong_elements_and_changed_ones_have(monkeypatch, op, ranks, num_bytes):
    together = Together(ranks)
    monkeypatch.setattr(operations, "hc", together)
    prepared = []
    for rank in range(ranks):
        together.now = rank
        prepared.append(operations.prepare(Unit(op, num_bytes), 1, values=True))
        prepared[-1].start("name", "backend")
    for rank in range(ranks):
        together.now = rank
        right = together.result(op, rank)
        assert prepared[rank].wrong(right) == 0, rank
        array = right[0] if isinstance(right, tuple) else right
        if array is None:
            assert prepared[rank].wrong(np.zeros(1)) == 1
        elif array.size:
            changed = array.copy()
            changed[-1] += 1
            assert prepared[rank].wrong((changed, None) if isinstance(right, tuple) else changed) == 1, rank
            longer = np.append(array, np.float32(0))
            assert prepared[rank].wrong((longer, None) if isinstance(right, tuple) else longer) > 0, rank


@pytest.mark.parametrize("op", OPERATIONS)
def test_timed_tensors_are_zeros_of_the_size(monkeypatch, op):
    together = Together(3)
    monkeypatch.setattr(operations, "hc", together)
    operations.prepare(Unit(op, 1200), 0, values=False).start("name", "backend")
    [tensor] = together.tensors.values()
    elements = {"allgather": 100, "gather": 100}.get(op, 300)
    assert tensor.dtype == np.float32 and tensor.size == elements and not tensor.any()


def test_the_operations_of_a_set_have_different_values(monkeypatch):
    monkeypatch.setattr(operations, "hc", SimpleNamespace(rank=lambda: 0, size=lambda: 2))
    prepared = [operations.prepare(Unit("broadcast", 24), index, values=True) for index in range(3)]
    right = [[bool(one.wrong(np.arange(i, i + 6, dtype=np.float32) % 3)) for i in range(3)] for one in prepared]
    assert right == [[False, True, True], [True, False, True], [True, True, False]]
