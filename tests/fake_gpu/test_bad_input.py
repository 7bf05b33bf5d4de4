"""Bad input and faults of CUDA tensors: each is an error on every rank that says what is wrong, within its limit."""

import pytest
from fakes import nccl
from jobs import connect, error_of, on_device, on_nccl


@pytest.mark.parametrize("way", ["nccl", "host"])
def test_a_stream_that_never_comes_ends_the_job(way):
    def run(hc, arrays):
        connect(arrays)
        gate = arrays.Gate() if hc.rank() == 1 else None
        tensor = arrays.DeviceArray.of([1.0] * 1000)  # rank 1's is never there
        handle = arrays.collectives.allreduce_async(tensor, op=hc.Sum, name="x")
        error = error_of(lambda: hc.synchronize(handle, block=True))
        if gate is not None:
            gate.open()
        return error

    knobs = {"stall_check_time_seconds": 0.5, "stall_shutdown_time_seconds": 3}
    knobs["nccl"] = "on" if way == "nccl" else "off"
    outcomes = on_nccl(run, 2, knobs=knobs, LEVEL="warning", check=False)
    zero, one = [outcome.output for outcome in outcomes]
    assert "has made no progress for " in one and "on rank 1 and waits for its tensors." in one, one
    assert "CUDA device 0 has not come to the tensor yet: the work before it on its stream has not ended" in one, one
    waits = (
        "CUDA device 0 runs the operation by NCCL: it waits for other ranks, or for room" if way == "nccl" else "rank 1"
    )
    assert "on rank 0 and waits for " in zero and waits in zero, zero
    errors = [outcome.value for outcome in outcomes]
    assert any(name == "StallError" for name, _ in errors), errors
    for name, text in errors:  # a rank that the other one tells of it has another error
        assert name in {"StallError", "AbortedError", "PeerLostError"} and "Gave up after" in text, text


@pytest.mark.parametrize("backend", [None, "nccl", "nccl/twolevel"])
def test_a_tensor_on_another_device_than_the_sets_first_one_is_refused(backend):
    def run(hc, arrays):
        import ctypes

        connect(arrays)
        driver = arrays.device().driver
        second, context = ctypes.c_int(), ctypes.c_void_p()
        driver.must("cuDeviceGet", ctypes.byref(second), 1)
        driver.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), second)
        driver.must("cuCtxSetCurrent", context)
        with arrays.device().on_stream(driver.stream()):
            tensor = arrays.DeviceArray((3,), "float32", arrays.Block(12))
            tensor.number = 1
            error = error_of(lambda: arrays.collectives.allreduce_(tensor, op=hc.Sum, name="x", backend=backend))
        driver.use()
        total = arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="x")
        return error, total.numpy().tolist()

    for (name, text), total in on_nccl(run, 2, FAKE_GPU_DEVICES=2):
        assert name == "UnsupportedError", text
        assert "the tensor is on cuda:1, and this rank's first one in the process set was on cuda:0" in text, text
        assert total == [2.0]


@pytest.mark.parametrize("version", [21403, 21801, 22203, 22703, 22809, 23007, 23203])
def test_every_version_of_nccl_from_the_oldest_on_connects_and_reduces(version):
    def run(hc, arrays):
        group = [arrays.DeviceArray.of([float(i)] * 3) for i in range(3)]
        sums = arrays.collectives.grouped_allreduce(group, op=hc.Average, name="g")
        rows = arrays.collectives.allgather(arrays.DeviceArray.of([[1.0], [2.0]]), name="x")
        return (
            [s.numpy()[2].item() for s in sums],
            rows.numpy().tolist(),
            arrays.calls("ncclAllReduce"),
            hc.nccl_built(),
        )

    assert on_nccl(run, 1, version=version) == [([0.0, 1.0, 2.0], [[1.0], [2.0]], 1, version)]


def test_communicators_that_do_not_block_are_refused():
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        error = error_of(lambda: arrays.collectives.allreduce(tensor, op=hc.Sum, name="x"))
        return error, arrays.calls("ncclCommAbort")

    for (name, text), aborts in on_nccl(run, 2, knobs={"nccl": "on"}, NCCL_COMM_BLOCKING=0):
        assert name == "UnsupportedError" and "NCCL_COMM_BLOCKING=0 is set" in text, text
        assert aborts == 1


@pytest.mark.parametrize("code", [7, 99])
def test_an_answer_that_no_call_of_a_communicator_that_blocks_has_ends_the_job(code):
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        return error_of(lambda: [arrays.collectives.allreduce(tensor, op=hc.Sum, name=f"x{i}") for i in range(9)])

    plans = {1: {"FAKE_GPU_FAULTS": f"ncclGroupEnd:3:{code}"}}  # 7: in progress
    for name, text in on_nccl(run, 2, environment_of=plans):
        assert name == "AbortedError" and f"rank 1: ncclGroupEnd failed with {code}" in text, text


def test_a_call_that_does_not_return_ends_its_process_and_the_job():
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0] * 100)

        def add(turn):
            handle = arrays.collectives.allreduce_async(tensor, op=hc.Sum, name=f"x{turn}")
            return hc.synchronize(handle, block=True)

        return error_of(lambda: [add(turn) for turn in range(9)])

    plans = {1: {"FAKE_GPU_FAULTS": "ncclGroupEnd:3:hang"}}
    knobs = {"stall_check_time_seconds": 1, "stall_shutdown_time_seconds": 3}
    zero, one = on_nccl(run, 2, knobs=knobs, environment_of=plans, LEVEL="warning", check=False)
    assert zero.value[0] in {"StallError", "PeerLostError"}, zero
    assert one.exit_code == 1, one
    stuck = "the thread that drives the operations has been in one call for "
    assert one.output.count(stuck) >= 2, one.output  # a warning, and the end
    assert f"horocache: rank 1: {stuck}" in one.output and "probably of a library (NCCL, CUDA or MPI)" in one.output, (
        one.output
    )


@pytest.mark.parametrize("allocation", [0, 1])
def test_no_memory_for_packing_ends_the_job_and_says_so(allocation):
    def run(hc, arrays):
        import os

        connect(arrays)
        group = [arrays.DeviceArray.of([1.0] * 100_000) for _ in range(3)]
        taken = arrays.calls("cuMemAlloc_v2")
        assert taken == int(os.environ["TAKEN"]), f"the memory for packing is allocation {taken} on"
        handle = arrays.collectives.grouped_allreduce_async_(group, op=hc.Sum, name="g")
        return error_of(lambda: hc.synchronize(handle, block=True))

    taken = 5
    plans = {1: {"FAKE_GPU_FAULTS": f"cuMemAlloc_v2:{taken + 1 + allocation}:2"}}
    zero, one = on_nccl(run, 2, environment_of=plans, TAKEN=taken)
    assert one[0] == "OutOfMemoryError" and zero[0] == "AbortedError", (zero, one)
    for _, text in (zero, one):
        assert "rank 1: " in text and "cuMemAlloc failed with 2" in text, text


def test_nothing_of_the_device_is_left_after_a_job_that_was_aborted_while_nccl_ran():
    def run(hc, arrays):
        before = arrays.ledger()
        connect(arrays)
        gate = arrays.Gate() if hc.rank() == 1 else None
        tensor = arrays.DeviceArray.of([1.0])
        arrays.collectives.allreduce_async(tensor, op=hc.Sum, name="x")  # rank 0 waits in NCCL
        arrays.wait_for("ncclAllReduce", 1)
        hc.barrier()
        if gate is not None:
            gate.open()  # a device that does not come to its work is given up
        else:
            hc.abort("enough")
        hc.shutdown()
        return before, arrays.ledger()

    for before, after in on_nccl(run, 2):
        left = {what: count for what, count in after.items() if count != before.get(what, 0)}
        assert set(left) <= {"allocations", "registrations"}, left  # of the framework and of the gate


def test_a_library_of_another_kind_is_not_taken_for_nccl():
    def run(hc, arrays):
        return hc.nccl_built()

    assert on_device(run, 1, HOROCACHE_NCCL_LIBRARY="libc.so.6") == [0]
    assert on_device(run, 1, HOROCACHE_NCCL_LIBRARY=str(nccl(23007))) == [23007]
