"""CUDA tensors on the fake driver: their order with the program's streams, failures, and what is refused."""

import pytest
from fakes import CUDA
from jobs import error_of, on_device, on_nccl

from horocache.testing import Fault


def test_an_operation_waits_for_the_stream_that_computes_its_tensor():
    def run(hc, arrays):
        gate = arrays.Gate()
        tensor = arrays.DeviceArray.of([1.0, 2.0])  # arrives when the gate is opened
        handle = arrays.collectives.allreduce_async(tensor, op=hc.Sum, name="x")
        early = error_of(lambda: hc.synchronize(handle, timeout=0.3))[0], hc.poll(handle)
        gate.open()
        return early, hc.synchronize(handle).numpy().tolist()

    assert on_device(run, 2) == [(("TimeoutError", False), [2.0, 4.0])] * 2


@pytest.mark.parametrize("start", [on_device, on_nccl])
def test_a_tensor_that_is_dropped_after_the_call_is_still_read(start):
    def run(hc, arrays):
        results = []
        for turn in range(20):
            gate = arrays.Gate()
            tensor = arrays.DeviceArray.of([float(turn)] * 5000)
            handle = arrays.collectives.allreduce_async(tensor, op=hc.Sum, name="x")
            del tensor  # its memory goes back to the framework, which gives it to the next array
            other = arrays.DeviceArray.of([-1.0] * 5000)
            gate.open()
            result = hc.synchronize(handle).numpy()
            results.append((result == hc.size() * turn).all() and (other.numpy() == -1).all())
        return all(results)

    assert start(run, 2, FAKE_GPU_DELAY_US=200) == [True, True]


def test_results_are_there_for_work_that_follows():
    def run(hc, arrays):
        target = arrays.DeviceArray.of([0.0] * 100_000)
        for turn in range(5):
            source = arrays.DeviceArray.of([float(hc.rank() + turn)] * 100_000)
            total = arrays.collectives.allreduce_(source, op=hc.Sum, name="x")
            target.copy_from(total)
            if not (target.numpy() == 2 * turn + 1).all():
                return turn
        return "right"

    assert on_device(run, 2, FAKE_GPU_DELAY_US=200) == ["right"] * 2


def test_an_operation_within_a_capture_is_refused_and_the_capture_goes_on():
    def run(hc, arrays):
        driver, stream = arrays.device().driver, arrays.device().stream
        tensor = arrays.DeviceArray.of([1.0])
        driver.must("cuStreamBeginCapture_v2", stream, 0)
        refusal = error_of(lambda: arrays.collectives.allreduce_(tensor, op=hc.Sum, name="x"))
        hc.barrier()  # the driving thread may look at events meanwhile
        driver.must("cuStreamEndCapture", stream, arrays.pointer())
        return refusal, arrays.collectives.allreduce(tensor, op=hc.Sum, name="x").numpy().tolist()

    for (name, text), result in on_device(run, 2):
        assert name == "UnsupportedError" and "the program captures a CUDA graph on the tensor's stream" in text
        assert result == [2.0]


def test_the_tensors_of_an_operation_are_in_one_place():
    def run(hc, arrays):
        from horocache.base.operation_codes import OP_ALLREDUCE
        from horocache.base.request import Request
        from horocache.core import context

        def submit(*tensors):
            context.current().runtime.submit(Request(OP_ALLREDUCE, list(tensors), list(tensors), "x", group=True))

        here, there = arrays.DeviceArray.of([1.0]), arrays.DeviceArray.of([1.0])
        there.number = 1
        on_host = here.numpy()
        return error_of(lambda: submit(here, on_host)), error_of(lambda: submit(here, there))

    ((first, second),) = on_device(run, 1)
    assert first[0] == second[0] == "InvalidArgumentError"
    assert "tensor 1 is in CPU memory, tensor 0 is on CUDA device 0; all tensors of an operation" in first[1]
    assert "tensor 1 is on CUDA device 1, tensor 0 is on CUDA device 0" in second[1]


def test_ranks_with_tensors_of_different_devices_disagree_and_go_on():
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        call = arrays.collectives.allreduce if hc.rank() else hc.allreduce
        mismatch = error_of(lambda: call(tensor if hc.rank() else tensor.numpy(), op=hc.Sum, name="x"))
        return mismatch, arrays.collectives.allreduce(tensor, op=hc.Sum, name="y").numpy().tolist()

    for (name, text), result in on_device(run, 2):
        assert name == "MismatchError" and "device class" in text and "cpu" in text and "cuda" in text, text
        assert result == [2.0]


def test_reductions_of_checked_values_are_refused():
    def run(hc, arrays):
        arrays.collectives.broadcast(arrays.DeviceArray.of([1.0]), 0)
        return error_of(lambda: arrays.collectives.allreduce(arrays.DeviceArray.of([1.0])))

    ((name, text),) = on_device(run, 1, knobs={"check_finite": "1"})
    assert name == "UnsupportedError" and "HOROCACHE_CHECK_FINITE reads tensors on the host" in text


@pytest.mark.parametrize("count", [3, 100_000], ids=["eager", "announced"])
def test_messages_go_by_the_host(count):
    def run(hc, arrays):
        import os

        import numpy as np

        count, rank, other = int(os.environ["COUNT"]), hc.rank(), 1 - hc.rank()
        given = arrays.DeviceArray.of(np.full(count, rank + 1.0, np.float32))
        target = arrays.DeviceArray.of(np.zeros(count, np.float32))
        arrays.collectives.sendrecv(given, other, target, other)
        results = [target.numpy()]
        handle = arrays.collectives.irecv(target, other, tag=5)
        arrays.collectives.send(target, other, tag=5)
        assert hc.synchronize(handle) is target
        return [(array.min().item(), array.max().item()) for array in [*results, target.numpy()]]

    assert on_device(run, 2, COUNT=str(count)) == [[(2.0, 2.0), (1.0, 1.0)], [(1.0, 1.0), (2.0, 2.0)]]


def test_a_driver_that_cannot_be_loaded_is_an_error_of_the_call():
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        refusal = error_of(lambda: arrays.collectives.allreduce(tensor, op=hc.Sum, name="x"))
        return refusal, hc.allreduce(tensor.numpy(), op=hc.Sum, name="x").tolist()

    (((name, text), result),) = on_device(run, 1, library="libcuda-nowhere.so.1", FAKE_CUDA=CUDA)
    assert name == "UnsupportedError"
    assert "HOROCACHE_CUDA_LIBRARY='libcuda-nowhere.so.1'" in text and "CUDA tensors need the CUDA driver" in text
    assert result == [1.0]


def test_an_error_of_the_device_ends_the_job_and_names_rank_and_call():
    def run(hc, arrays):
        import os

        if hc.rank() == 1:
            os.environ["FAKE_GPU_FAULTS"] = "cuMemcpyDtoHAsync_v2:30:719"  # read by the driver's first call
        tensor = arrays.DeviceArray.of([1.0] * 1000)
        return error_of(lambda: [arrays.collectives.allreduce(tensor, op=hc.Sum, name="x") for _ in range(100)])

    zero, one = on_device(run, 2)
    assert "rank 1: CUDA device 0: cuMemcpyDtoHAsync failed with 719" in one[1], one
    assert "rank 1" in zero[1] and "cuMemcpyDtoHAsync failed with 719" in zero[1], zero
    assert zero[0] == one[0] == "AbortedError"


def test_an_error_of_the_device_at_a_submission_ends_the_job_on_all_ranks():
    def run(hc, arrays):
        import os

        if hc.rank() == 1:
            os.environ["FAKE_GPU_FAULTS"] = "cuStreamIsCapturing:3:700"  # read by the driver's first call
        tensor = arrays.DeviceArray.of([1.0])
        return error_of(lambda: [arrays.collectives.allreduce(tensor, op=hc.Sum, name="x") for _ in range(10)])

    for name, text in on_device(run, 2):
        assert name == "AbortedError" and "cuStreamIsCapturing failed with 700" in text, text
        assert "The CUDA context failed before or during this call" in text


@pytest.mark.parametrize("step", [3, 20, 60])
def test_a_rank_that_is_killed_between_tiles_is_named(step):
    def run(hc, arrays):
        import numpy as np

        tensor = arrays.DeviceArray.of(np.ones(4_000_000, np.float32))  # four tiles
        return error_of(lambda: [arrays.collectives.allreduce(tensor, op=hc.Sum, name="x") for _ in range(200)])

    killed = [Fault("data", "kill", rank=1, step=step)]
    outcomes = on_device(run, 3, faults=killed, check=False)
    assert outcomes[1].exit_code == -9, outcomes[1]
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok and outcome.value[0] == "PeerLostError" and "rank 1 " in outcome.value[1], outcome


def test_operations_without_tensors_follow_those_on_the_device():
    def run(hc, arrays):
        for _ in range(3):
            arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="x")
            hc.barrier()
        return hc.join()

    first, second = on_device(run, 2)
    assert first == second


@pytest.mark.parametrize("start", [on_device, on_nccl])
def test_nothing_of_the_device_is_left_after_shutdown(start):
    def run(hc, arrays):
        arrays.device()
        before = arrays.ledger()  # with the framework's stream and context
        for _ in range(2):
            hc.init(flight_record="off")
            arrays.collectives.allreduce(arrays.DeviceArray.of([1.0] * 100), op=hc.Sum, name="x")
            hc.shutdown()
        return before, {**arrays.ledger(), "allocations": before["allocations"]}  # those are the framework's

    for before, after in start(run, 2):
        assert after.pop("communicators", 0) == 0
        assert before == after
