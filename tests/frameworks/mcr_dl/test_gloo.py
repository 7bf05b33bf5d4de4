"""M1, M2, M7, M8, M10, M20 with gloo as one of the backends: a backend in Python that mcr_dl.init finds by its name."""

from __future__ import annotations

import importlib.util
import random
import sys

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
import horocache.mcr_dl as mcr_dl
from horocache.mcr_dl import ReduceOp
from horocache.testing import run_ranks
from horocache.user_backends import register_backend, registered_backends, unregister_backend

from . import cases, schedules

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="gloo comes with torch")
REDUCED = ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def total_of(backend, group=None):
    tensor = np.full(100, 1.0)
    mcr_dl.all_reduce(backend, tensor, group=group)
    return tensor[0]


@on_ranks(2, 4, init=False)
def test_m1_gloo_is_registered_by_its_name_and_comes_in_the_order_of_init():
    for backends in (["gloo", "shm"], ["shm", "gloo"], ["gloo"]):
        mcr_dl.init(backends)
        assert mcr_dl.get_backends() == backends
        assert {mcr_dl.get_size(each) for each in backends} == {hc.size()}
        assert {mcr_dl.get_rank(each) for each in backends} == {hc.rank()}
        mcr_dl.configure(enabled=True)
        for backend in (*backends, "auto"):
            assert total_of(backend) == hc.size()
        assert [record.backend for record in mcr_dl.log_records()] == [*backends, backends[0]]
        mcr_dl.configure(enabled=False)
        mcr_dl.finalize()
        assert registered_backends() == []
    mcr_dl.init()  # a job has gloo only if it is named
    assert mcr_dl.get_backends() == ["shm"]
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m1_a_program_may_register_gloo_itself_and_then_has_it_in_every_job():
    register_backend("gloo")
    register_backend("gloo")
    for _ in range(2):
        mcr_dl.init()
        assert mcr_dl.get_backends() == ["shm", "gloo"] and total_of("gloo") == 2
        mcr_dl.finalize("gloo")
        assert mcr_dl.get_backends() == ["shm"]
        with pytest.raises(hc.InvalidArgumentError, match="'gloo' was not given to"):
            total_of("gloo")
        mcr_dl.finalize()
    hc.init()
    ones = np.ones(1000, np.float32)
    assert hc.allreduce(ones, op=hc.Sum, backend="gloo")[0] == 2
    hc.shutdown()
    unregister_backend("gloo")
    with pytest.raises(hc.InvalidArgumentError, match="no class for backend 'nothing', only for: gloo"):
        register_backend("nothing")


@on_ranks(2)
def test_m1_gloo_in_a_job_that_was_started_without_it_is_an_error_that_says_how_to_have_it():
    with pytest.raises(hc.UnsupportedError, match=r"no backend 'gloo': horocache runs already.* mcr_dl.init"):
        mcr_dl.init(["shm", "gloo"])
    assert not mcr_dl.is_initialized() and registered_backends() == []
    with pytest.raises(hc.InvalidArgumentError, match="'gloo' comes too late"):
        register_backend("gloo")
    mcr_dl.init("shm")
    assert total_of("shm") == 2


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@on_ranks(2, 3, init=False, timeout=110)
def test_m2_operations_conform_over_gloo(kind):
    mcr_dl.init(["gloo", "shm"])
    for dtype in REDUCED if kind == "torch" else [each for each in REDUCED if each != "bfloat16"]:
        maker = cases.Maker(kind, dtype, strided=dtype == "float32")
        for shape in cases.SHAPES:
            cases.Operations("gloo", maker).all(shape)
        cases.VectoredOperations("gloo", maker).all(1)
        cases.check_reductions("gloo", maker)
    cases.Operations("gloo", cases.Maker(kind, "float32")).all((512, 512))
    mcr_dl.finalize()


@on_ranks(3, init=False)
def test_m2_what_gloo_cannot_reduce_is_an_error_that_names_operation_type_and_backend_before_data_move():
    mcr_dl.init(["gloo", "shm"])
    before = hc.metrics()
    for dtype in ("bool", "uint16", "int16", "complex64"):
        for call in (
            lambda x: mcr_dl.all_reduce("gloo", x),
            lambda x: mcr_dl.reduce("gloo", x, 0),
            lambda x: mcr_dl.reduce_scatter("gloo", x),
        ):
            with pytest.raises(hc.UnsupportedError, match=rf"gloo.*{dtype}|{dtype}.*gloo"):
                call(np.ones(6, dtype))
    assert hc.metrics().since(before)["bytes_copied"] == 0
    for dtype in ("bool", "uint16", "complex64"):  # they can be moved
        moved = np.full(3, mcr_dl.get_rank() == 1, dtype)
        mcr_dl.bcast("gloo", moved, 1)
        assert moved.all()
    flags = np.ones(3, bool)
    mcr_dl.all_reduce(["gloo", "shm"], flags, ReduceOp.BAND)  # the next of the list can
    assert flags.all()
    mcr_dl.finalize()


@on_ranks(2, 4, init=False, timeout=110)
def test_m7_ranks_post_operations_of_gloo_and_shared_memory_in_different_orders():
    mcr_dl.init(["gloo", "shm"])
    rank, size = mcr_dl.get_rank(), mcr_dl.get_size()
    own, total = random.Random(rank), float(sum(range(size)))
    for step in range(1000):
        tensors = {"gloo": np.full(3, float(rank)), "shm": np.full(3, float(rank + step))}
        ways = own.sample(sorted(tensors), 2)
        handles = [mcr_dl.all_reduce(way, tensors[way], async_op=True) for way in ways]
        own.shuffle(handles)
        for handle in handles:
            handle.wait(60)
        assert tensors["gloo"][0] == total and tensors["shm"][0] == total + size * step, step
    mcr_dl.finalize()


@pytest.mark.parametrize("ranks", [2, 4])
def test_m8_random_schedules_of_gloo_and_shared_memory(ranks):
    run_ranks(schedules.run, ranks, args=(["gloo", "shm"], ["gloo", "shm", "auto"], 200), timeout=110)


def hide_torch():
    sys.modules["torch.distributed"] = None


@on_ranks(2, init=False)
def test_m10_gloo_without_torch_is_left_out_and_refused_if_named():
    hide_torch()
    with pytest.raises(hc.UnsupportedError, match=r"no backend 'gloo' here: gloo comes with torch, which cannot be"):
        mcr_dl.init(["shm", "gloo"])
    assert not hc.is_initialized() and not mcr_dl.is_initialized() and registered_backends() == []
    register_backend("gloo")
    mcr_dl.init("auto")
    assert mcr_dl.get_backends() == ["shm"] and total_of("auto") == 2
    with pytest.raises(hc.UnsupportedError, match="gloo"):
        hc.allreduce(np.ones(1000), backend="gloo")
    mcr_dl.finalize()


def one_rank_without_torch():
    import os

    if os.environ["HOROCACHE_RANK"] == "1":
        hide_torch()
    register_backend("gloo")
    hc.init(start_timeout=10)


def test_m10_ranks_of_which_only_some_have_gloo_do_not_start():
    outcomes = run_ranks(one_rank_without_torch, 2, check=False)
    for outcome in outcomes:
        assert isinstance(outcome.error, hc.VersionSkewError), outcome.describe()
        assert "gloo" in str(outcome.error)


@on_ranks(4, init=False)
def test_m20_groups_that_overlap_have_a_backend_each():
    mcr_dl.init(["gloo", "shm"])
    rank, size = mcr_dl.get_rank(), mcr_dl.get_size()
    groups = [mcr_dl.new_group([each, (each + 1) % size]) for each in range(size)]
    for step in range(10):
        mine = [number for number in range(size) if groups[number].rank() >= 0]
        started = []
        for number in random.Random(f"{step} {rank}").sample(mine, len(mine)):
            tensor = np.full(30, float(rank))
            way = ("gloo", "shm")[number % 2]
            started.append((mcr_dl.all_reduce(way, tensor, async_op=True, group=groups[number]), tensor, number))
        for handle, tensor, number in started:
            handle.wait(60)
            assert tensor[0] == sum(groups[number].ranks)
    with pytest.raises(hc.InvalidArgumentError, match=f"Rank {rank} is not a member"):
        mcr_dl.all_reduce("gloo", np.ones(1), group=groups[(rank + 1) % size])
    mcr_dl.finalize()
