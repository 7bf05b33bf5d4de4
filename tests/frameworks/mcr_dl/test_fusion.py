"""M14 and M15: fusion with the limits B and T. tests/cpp/control/fusion_limits_test.cc counts operations exactly."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on_ranks

import horocache.mcr_dl as mcr_dl

pytest.importorskip("torch")  # whose gloo is the other backend
KIB = 256  # elements of float32


def reduce_all(tensors):
    """All sums, in flight together; returns their records by name."""
    rank, size = mcr_dl.get_rank(), mcr_dl.get_size()
    works = {}
    for name, (backend, count, dtype) in tensors.items():
        x = np.full(count, rank + count % 7, dtype)
        works[name] = mcr_dl.all_reduce(backend, x, async_op=True, name=name), x
    for name, (work, x) in works.items():
        work.wait()
        count = tensors[name][1]
        np.testing.assert_array_equal(x, size * (count % 7) + size * (size - 1) // 2, name)
    records = {record.name.removeprefix("mcr_dl."): record for record in mcr_dl.log_records()}
    return {name: records[name] for name in tensors}


@on_ranks(2, init=False)
def test_m14_no_fused_operation_is_larger_than_b():
    mcr_dl.configure(enabled=True)
    mcr_dl.init(["shm"], fusion_threshold=64 << 10, cycle_time=5)
    records = reduce_all({f"t{number}": ("shm", KIB, np.float32) for number in range(100)})
    assert max(record.fused for record in records.values()) <= 64


@on_ranks(2, init=False)
def test_m14_without_b_nothing_fuses():
    mcr_dl.configure(enabled=True)
    mcr_dl.init(["shm"], fusion_threshold=0, cycle_time=5)
    records = reduce_all({f"t{number}": ("shm", KIB, np.float32) for number in range(20)})
    assert {record.fused for record in records.values()} == {1}


@on_ranks(2, init=False)
def test_m14_a_tensor_larger_than_b_and_one_of_another_type_go_alone():
    mcr_dl.configure(enabled=True)
    mcr_dl.init(["shm"], fusion_threshold=64 << 10, cycle_time=5)
    small = {f"t{number}": ("shm", KIB, np.float32) for number in range(20)}
    records = reduce_all({**small, "large": ("shm", 65 * KIB, np.float32), "other": ("shm", KIB, np.int32)})
    assert records["large"].fused == records["other"].fused == 1


@on_ranks(2, init=False)
def test_m15_what_t_flushes_overlaps_with_the_other_backend():
    mcr_dl.configure(enabled=True)
    mcr_dl.init(["shm", "gloo"], fusion_threshold=1 << 30, cycle_time=5)
    reduce_all({f"warm-up {backend}": (backend, KIB, np.float32) for backend in ("shm", "gloo")})
    # Each backend has several tensors that fill no fused operation, and are too large to end at once.
    tensors = {f"{backend} {n}": (backend, 1 << 20, np.float32) for n in range(4) for backend in ("gloo", "shm")}
    records = reduce_all(tensors)
    intervals = {}
    for backend in ("gloo", "shm"):
        mine = [record for name, record in records.items() if name.startswith(backend)]
        assert {record.backend for record in mine} == {backend}
        ends = [record.start + record.duration for record in mine]
        intervals[backend] = min(end - record.transfer for end, record in zip(ends, mine, strict=True)), max(ends)
    (first, first_end), (second, second_end) = intervals.values()
    assert max(first, second) < min(first_end, second_end), intervals
