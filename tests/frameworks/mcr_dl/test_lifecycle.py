"""M1, M9, M10, M19: beginning and ending, unknown and missing backends, sizes and ranks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
import horocache.mcr_dl as mcr_dl
from horocache.core import context
from horocache.mcr_dl.backends import NEEDS


def works(backend="auto"):
    tensor = np.ones(3)
    mcr_dl.all_reduce(backend, tensor)
    return tensor[0] == mcr_dl.get_size()


@on_ranks(2, 4, init=False)
def test_m1_backends_come_in_the_order_of_init_and_agree_on_sizes_and_ranks():
    mcr_dl.init(["loopback", "shm"])
    assert mcr_dl.get_backends() == ["loopback", "shm"]
    assert {mcr_dl.get_size(each) for each in mcr_dl.get_backends()} == {hc.size()}
    assert {mcr_dl.get_rank(each) for each in mcr_dl.get_backends()} == {hc.rank()}
    assert works("shm") and works(["shm"]) and works(["loopback", "shm"]) and works("shm/oneshot") and works()
    with pytest.raises(hc.UnsupportedError, match=r"cannot use backend 'loopback': for them there are shm"):
        works("loopback")
    alone = [mcr_dl.new_group([rank]) for rank in range(hc.size())][hc.rank()]
    tensor = np.full(2, 3.0)
    for backend in ("loopback", "shm", "auto"):
        mcr_dl.all_reduce(backend, tensor, group=alone)
    assert tensor.tolist() == [3.0, 3.0]
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m9_an_unknown_backend_is_an_error_that_lists_the_known_ones_and_begins_nothing():
    for bad in ("shmem", ["shm", "gloo2"], ["mpi", "gloo2"]):
        with pytest.raises(
            hc.InvalidArgumentError, match=r"there is no backend '\w+'; known: nccl, loopback, shm, mpi"
        ):
            mcr_dl.init(bad)
        assert not hc.is_initialized() and not mcr_dl.is_initialized()
    for bad in ([], ["shm", "shm"], 3, [1], None):
        with pytest.raises(hc.InvalidArgumentError, match="backends"):
            mcr_dl.init(bad)
    mcr_dl.init("shm")
    with pytest.raises(
        hc.InvalidArgumentError, match=r"backend 'mpi' was not given to mcr_dl.init\(\); these were: shm"
    ):
        works("mpi")
    with pytest.raises(hc.InvalidArgumentError, match=r"'nothing' was not given"):
        works(["shm", "nothing"])
    with pytest.raises(hc.InvalidArgumentError, match=r"no algorithm 'ring'; it has: auto, oneshot, twoshot"):
        works("shm/ring")
    with pytest.raises(hc.InvalidArgumentError, match="'mpi' was not given"):
        mcr_dl.get_size("mpi")
    assert works()
    mcr_dl.finalize()


@on_ranks(2, init=False, knobs={"mpi_library": "libno_such_mpi.so"})
def test_m10_a_backend_whose_library_is_missing_is_left_out_and_refused_if_named():
    with pytest.raises(hc.UnsupportedError, match=r"no backend 'mpi': it needs an MPI library.* It has: shm\."):
        mcr_dl.init(["shm", "mpi"])
    assert not hc.is_initialized() and not mcr_dl.is_initialized()
    mcr_dl.init("auto")
    assert mcr_dl.get_backends() == ["shm"] and works()
    for missing in ("nccl", "program"):
        with pytest.raises(hc.UnsupportedError, match=f"no backend '{missing}'"):
            mcr_dl.init(["shm", missing])
    assert works()  # horocache runs on, because it ran before
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m19_init_twice_finalize_twice_and_operations_outside():
    outside = pytest.raises(hc.NotInitializedError, match=r"mcr_dl has not been initialized, or has been finalized")
    for call in (works, mcr_dl.get_backends, mcr_dl.get_rank, mcr_dl.synchronize, mcr_dl.barrier, mcr_dl.new_group):
        with outside:
            call()
    mcr_dl.finalize()
    for _ in range(2):  # it may begin again
        mcr_dl.init(["shm"])
        session = context.current()
        mcr_dl.init("shm")
        mcr_dl.init(["auto"])
        assert context.current() is session and works()
        with pytest.raises(hc.InvalidArgumentError, match=r"runs already, with the backends \['shm'\]; .* asks for"):
            mcr_dl.init(["loopback", "shm"])
        assert works()
        group = mcr_dl.new_group([0, 1])
        handle = mcr_dl.all_reduce("shm", np.ones(2), async_op=True)
        handle.wait()
        mcr_dl.finalize()
        mcr_dl.finalize()
        mcr_dl.finalize(["shm", "mpi"])
        assert not mcr_dl.is_initialized() and not hc.is_initialized()
        assert handle.wait()
        for call in (works, mcr_dl.synchronize):
            with outside:
                call()
        mcr_dl.init(["shm"])
        with pytest.raises(hc.InvalidArgumentError, match="belongs to an earlier init"):
            mcr_dl.all_reduce("shm", np.ones(2), group=group)
        mcr_dl.finalize("shm")
    with pytest.raises(hc.InvalidArgumentError, match="there is no backend"):
        mcr_dl.finalize("shmem")


@on_ranks(2)
def test_m19_horocache_goes_on_if_it_ran_before():
    hc_set = hc.add_process_set([0])
    for _ in range(2):
        mcr_dl.init(["loopback", "shm"])
        group = mcr_dl.new_group([1])
        mcr_dl.finalize("loopback")
        assert mcr_dl.get_backends() == ["shm"] and works() and works("shm")
        with pytest.raises(hc.InvalidArgumentError, match="'loopback' was not given"):
            works("loopback")
        if hc.rank() == 1:
            mcr_dl.all_reduce("shm", np.ones(2), group=group)
        else:
            mcr_dl.all_reduce("shm", np.ones(2), group=hc_set)
        mcr_dl.finalize()
        assert hc.is_initialized() and hc.allreduce(np.ones(1), op=hc.Sum).tolist() == [2.0]
    mcr_dl.init("shm")
    hc.shutdown()
    with pytest.raises(hc.NotInitializedError):
        works()
    assert not mcr_dl.is_initialized()
    hc.init()
    mcr_dl.init("shm")
    assert works()


def test_the_package_needs_neither_torch_nor_a_job_when_it_is_imported(tmp_path):
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, horocache.mcr_dl as mcr_dl\n"
        "mcr_dl.init('shm'); x = np.ones(2); mcr_dl.all_reduce('shm', x); mcr_dl.finalize(); print(*x)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["1.0", "1.0"]), done.stderr


@on_ranks(1, init=False)
def test_every_backend_of_a_job_is_one_that_init_knows():
    mcr_dl.init()
    assert set(mcr_dl.get_backends()) <= set(NEEDS)
    mcr_dl.finalize()
