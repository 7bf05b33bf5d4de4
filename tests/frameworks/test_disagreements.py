"""Errors of invalid calls: those that one rank detects, and those that only a comparison of the ranks detects."""

from __future__ import annotations

import os
import signal
import time
import warnings

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks
from torch._subclasses.fake_tensor import FakeTensorMode

import horocache as hc
from horocache.testing import Fault, run_ranks


@on_ranks(3)
def test_mismatched_calls_raise_with_both_values_and_the_job_goes_on():
    odd = hc.rank() == 2
    ones = np.ones(4, np.float32)
    cases = {
        "shape": (lambda: hc.allreduce(np.ones((2, 5 if odd else 3)), name="shape"), ["5", "3"]),
        "dtype": (
            lambda: hc.allreduce(ones.astype(np.float64 if odd else np.int32), name="dtype"),
            ["float64", "int32"],
        ),
        "op": (lambda: hc.allreduce(ones, op=hc.Min if odd else hc.Sum, name="op"), []),
        "scale": (
            lambda: hc.allreduce(ones, op=hc.Sum, prescale_factor=2.5 if odd else 1.0, name="scale"),
            ["2.5", "1"],
        ),
        "kind": (
            lambda: hc.reducescatter(ones, name="kind") if odd else hc.reducescatter(ones[:3], name="kind"),
            ["4", "3"],
        ),
        "root": (lambda: hc.broadcast(ones, 1 if odd else 0, name="root"), ["1", "0"]),
        "columns": (lambda: hc.allgather(np.ones((2, 4 if odd else 6)), name="columns"), ["4", "6"]),
        "group": (lambda: hc.grouped_allreduce([ones] * (2 if odd else 3), name="group"), []),
        "wire": (
            lambda: hc.allreduce(ones, name="wire", compression=hc.Compression.fp16 if odd else hc.Compression.none),
            ["float16", "float32"],
        ),
    }
    for name, (call, texts) in cases.items():
        for _ in range(2):
            with pytest.raises(hc.MismatchError, match=f"(?s){name}") as failed:
                call()
            message = str(failed.value)
            assert isinstance(failed.value, RuntimeError)
            assert all(text in message for text in [*texts, "rank"]), message
        np.testing.assert_array_equal(hc.allreduce(ones, op=hc.Sum, name=f"after {name}"), ones * hc.size())
    with pytest.raises(hc.MismatchError, match="rank 2 gave root_rank=1"):
        hc.broadcast_object(1, 1 if odd else 0)


@on_ranks(2)
def test_a_name_in_flight_is_refused_and_the_first_operation_completes():
    if hvd.rank() == 0:
        first = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="twice")
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        first = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="twice")
    assert hvd.synchronize(first).tolist() == [hvd.size()] * 3


@on_ranks(2)
def test_wrong_arguments_are_refused_before_anything_is_sent():
    x = torch.ones(5)
    n = hvd.size()
    for match, call in {
        "supersedes average": lambda: hvd.allreduce(x, average=True, op=hvd.Sum),
        "op=9 is not a reduce operation": lambda: hvd.allreduce(x, op=9),
        "invalid root rank 2": lambda: hvd.broadcast(x, 2),
        "invalid root rank -1": lambda: hvd.broadcast_(x, -1),
        "even multiple of the number of workers": lambda: hvd.alltoall(x),
        "does not equal number of workers": lambda: hvd.alltoall(x, [5]),
        "greater than the first dimension": lambda: hvd.alltoall(x, [5] * n),
        "1D splits": lambda: hvd.alltoall(x, torch.zeros(1, n, dtype=torch.int32)),
        "integer elements": lambda: hvd.alltoall(x, torch.zeros(n)),
        "must not be negative": lambda: hvd.alltoall(x, [-1, 1]),
        "no rows to send": lambda: hvd.alltoall(torch.ones(())),
        "scalar inputs": lambda: hvd.reducescatter(torch.ones(())),
        "expected a torch.Tensor": lambda: hvd.allreduce(np.ones(3)),
        "expected a NumPy array": lambda: hc.allreduce(x),
        "at least one tensor": lambda: hvd.grouped_allreduce([]),
        "1D splits tensor": lambda: hc.alltoall(np.ones(4), np.zeros((1, n), int)),
        "splits tensor with integer": lambda: hc.alltoall(np.ones(4), np.zeros(n)),
        "not been registered": lambda: hvd.allgather(x, process_set=None),
        "number of a device": lambda: hvd.join("cpu"),
    }.items():
        with pytest.raises(ValueError, match=match):
            call()
    for match, call in {
        "META backend": lambda: hvd.allreduce(torch.ones(3, device="meta")),
        "dtype": lambda: hvd.allreduce(torch.ones(3).to(torch.float8_e4m3fn)),
        "lose its mask": lambda: hc.allreduce(np.ma.masked_equal([1.0, 2.0], 2.0)),
        "complex256|longdouble|float128|dtype": lambda: hc.allreduce(np.ones(2, np.longdouble)),
        "dtype object": lambda: hc.allreduce(np.array([None])),
        "dtype datetime64": lambda: hc.allreduce(np.zeros(2, "datetime64[s]")),
        "Adasum is for allreduce": lambda: hvd.reducescatter(x, op=hvd.Adasum),
    }.items():
        with pytest.raises(NotImplementedError, match=match):
            call()
    for average, expected in ((True, 1.0), (False, float(n))):
        with pytest.warns(DeprecationWarning, match="op=Average"):
            assert hvd.allreduce(torch.ones(1), average=average).item() == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.allreduce(x, op=hvd.Sum)


@on_ranks(2)
def test_a_wait_that_times_out_leaves_the_handle_valid(tmp_path):
    timed_out = tmp_path / "timed out"

    if hc.rank() == 0:
        handle = hc.allreduce_async(np.ones(2), op=hc.Sum, name="late")
        with pytest.raises(TimeoutError):
            hc.synchronize(handle, timeout=0.05)
        for wrong in (-1, float("nan"), "3"):
            with pytest.raises(ValueError, match="timeout must be a number of seconds from 0 on"):
                hc.synchronize(handle, timeout=wrong)
        timed_out.touch()
    else:
        while not timed_out.exists():
            time.sleep(0.001)
        handle = hc.allreduce_async(np.ones(2), op=hc.Sum, name="late")
    assert hc.synchronize(handle, timeout=float("inf")).tolist() == [2.0, 2.0]


def test_pending_and_later_calls_fail_when_a_rank_dies():
    def call_while_rank_1_dies():
        hc.init()
        hc.barrier()
        if hc.rank() == 1:
            os._exit(9)
        with pytest.raises(hc.PeerLostError, match="rank 1"):
            hc.allreduce(np.ones(2), name="pending")
        with pytest.raises(hc.HorovodInternalError):
            hc.allreduce(np.ones(2), name="later")
        return "survived"

    outcomes = run_ranks(call_while_rank_1_dies, 3, check=False)
    assert [o.value for o in outcomes] == ["survived", None, "survived"], [o.describe() for o in outcomes]
    assert outcomes[1].exit_code == 9


def test_survivors_get_errors_when_three_ranks_die_in_a_row():
    def call_while_ranks_die():
        hc.init()
        # Only a rank that sees all three deaths at once names rank 0.
        with pytest.raises(hc.PeerLostError, match=r"rank [013] "):
            for step in range(100):
                hc.allreduce(np.ones(100_000), name=f"t{step % 3}")
        if hc.rank() == 0:
            os._exit(7)
        if hc.rank() in (1, 3):  # this rank saw its peer's death before its own fault was due
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(3):
            with pytest.raises(hc.HorovodInternalError):
                hc.allreduce(np.ones(2), name="later")
        return "survived"

    faults = [Fault("data", "kill", rank, 20) for rank in (1, 3)]
    outcomes = run_ranks(call_while_ranks_die, 5, faults=faults, check=False)
    assert [o.value for o in outcomes] == [None, None, "survived", None, "survived"], [o.describe() for o in outcomes]
    assert [o.exit_code for o in outcomes] == [7, -9, 0, -9, 0]


@pytest.mark.parametrize("binding", ["native", "cffi"])
@on_ranks(2)
def test_errors_name_arguments_of_a_wrong_type_and_their_values(binding):
    packages = [(hc, np.ones(4, np.float32))] + ([(hvd, torch.ones(4))] if binding == "native" else [])
    for package, x in packages:
        calls = [
            (package.allreduce, [x], "compression", "fp16"),
            (package.allreduce, [x], "compression", ["fp16"]),
            (package.grouped_allreduce, [[x]], "compression", "fp16"),
            (package.reducescatter, [x], "compression", "fp16"),
            (package.alltoall, [x], "splits", "ab"),
            (package.alltoall, [x], "splits", [2**70, 1]),
            (package.alltoall, [x], "splits", [[1], [1, 2]]),
            (package.alltoall, [x], "splits", [None, None]),
        ]
        for operation in (package.allreduce, package.allreduce_, package.allreduce_async, package.reducescatter):
            calls += [(operation, [x], f"{when}scale_factor", "x") for when in ("pre", "post")]
        calls.append((package.allreduce_, [x], "prescale_factor", 10**400))
        for operation, tensors, argument, value in calls:
            with pytest.raises(hc.InvalidArgumentError, match=argument) as failed:
                operation(*tensors, **{argument: value})
            assert "incompatible function arguments" not in str(failed.value)
            assert repr(value) in str(failed.value)
        assert package.allreduce(x, compression=None, prescale_factor=np.float32(2)).tolist() == [2.0] * 4
        assert package.allreduce(x, compression=package.Compression.fp16()).tolist() == [1.0] * 4


@on_ranks(2)
def test_the_warning_about_average_points_at_the_users_line():
    for package, x in ((hc, np.ones(2)), (hvd, torch.ones(2))):
        for form in ("", "_", "_async", "_async_"):
            for prefix, argument in (("", x), ("grouped_", [x])):
                with pytest.warns(DeprecationWarning, match="op=Average") as warned:
                    answer = getattr(package, f"{prefix}allreduce{form}")(argument, average=False)
                assert warned[0].filename == __file__, (package, prefix, form)
                if "async" in form:
                    hc.synchronize(answer)


@on_ranks(2)
def test_tensors_without_a_backend_for_their_device_are_refused():
    tensor = torch.ones(3, device="meta")
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, lambda t: hvd.broadcast_(t, 0)):
        with pytest.raises(NotImplementedError, match=r"there is no META backend yet.*\.cpu\(\)"):
            call(tensor)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@on_ranks(2, environment={"HOROCACHE_CUDA_LIBRARY": "/run/none/libcuda.so.1"})
def test_cuda_tensors_are_refused_where_cuda_cannot_be_used():
    with FakeTensorMode():  # a tensor without memory; its device need not be there
        tensor = torch.ones(3, device="cuda")
    calls = (hvd.allreduce, hvd.allreduce_, hvd.allgather, lambda t: hvd.broadcast_(t, 0))
    for call in (*calls, lambda t: hvd.grouped_allreduce([t, t])):
        with pytest.raises(NotImplementedError, match=r"HOROCACHE_CUDA_LIBRARY='/run/none/libcuda\.so\.1'"):
            call(tensor)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
