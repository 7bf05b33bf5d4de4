"""CUDA tensors by NCCL, on the fakes: what goes by it, and its order with the streams of the program."""

import os

import pytest
from jobs import connect, error_of, on_nccl


def test_allreduce_reduce_and_broadcast_go_by_nccl_and_nothing_goes_by_the_host():
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0, hc.rank()])
        summed = arrays.collectives.allreduce(tensor, op=hc.Sum, name="a")
        sent = arrays.collectives.broadcast(tensor, 1, name="b")
        reduced = arrays.collectives.reduce(tensor, root_rank=1, op=hc.Max, name="c")
        names = ("ncclAllReduce", "ncclReduce", "ncclBroadcast", "cuMemcpyDtoHAsync_v2")
        counts = [arrays.calls(name) for name in names]
        values = [summed.numpy().tolist(), sent.numpy().tolist()]
        return counts, values + ([reduced.numpy().tolist()] if hc.rank() else []), hc.nccl_built()

    zero, one = on_nccl(run, 2)
    assert zero == ([1, 1, 1, 0], [[2.0, 1.0], [1.0, 1.0]], 23007)
    assert one == ([1, 1, 1, 0], [[2.0, 1.0], [1.0, 1.0], [1.0, 1.0]], 23007)


def test_a_group_is_two_launches_and_one_call_of_nccl_and_a_steady_state_makes_nothing():
    def run(hc, arrays):
        group = [arrays.DeviceArray.of([float(i)] * 100) for i in range(5)]

        def step(gate=None):
            handle = arrays.collectives.grouped_allreduce_async(group, op=hc.Sum, name="g")
            if gate is not None:
                arrays.wait_for("ncclAllReduce", 2)
                gate.open()
            return hc.synchronize(handle, block=True)

        results = step()
        results = step(arrays.Gate())  # launched while its tensors are late, which takes one more event
        results = step()  # the results of two steps have places of their own, and so their tables
        names = ("ncclGroupEnd", "ncclAllReduce", "cuLaunchKernel", "cuEventCreate", "cuMemHostAlloc", "cuEventRecord")
        before = [arrays.calls(name) for name in names]
        for _ in range(10):
            results = step()
        counts = [arrays.calls(name) - already for name, already in zip(names, before, strict=True)]
        return counts, [result.numpy()[0].item() for result in results]

    for counts, values in on_nccl(run, 2):
        assert counts[:5] == [10, 10, 20, 0, 0], counts
        # Behind the program's work and behind NCCL's; where the tensors were not computed yet, one between the two.
        assert 20 <= counts[5] <= 30, counts
        assert values == [0.0, 2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("average", [False, True])
def test_tensors_whose_memory_lies_side_by_side_by_chance_are_not_packed(average):
    def run(hc, arrays):
        # Each has an allocation of its own, of a size without a remainder.
        group = [arrays.DeviceArray.of([float(i + hc.rank())] * 64) for i in range(3)]
        addresses = [array.block.address for array in group]
        assert addresses == [addresses[0] + 512 * i for i in range(3)], addresses
        before = arrays.calls("cuLaunchKernel")
        arrays.collectives.grouped_allreduce_(group, op=hc.Average if os.environ["AVERAGE"] else hc.Sum, name="g")
        return [set(array.numpy().tolist()) for array in group], arrays.calls("cuLaunchKernel") - before

    expected = [{0.5}, {1.5}, {2.5}] if average else [{1.0}, {3.0}, {5.0}]
    # An average is multiplied where it lies.
    assert on_nccl(run, 2, AVERAGE="1" if average else "") == [(expected, int(average))] * 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_factors_are_applied_in_the_type_of_the_data(dtype):
    def run(hc, arrays):

        import numpy as np

        dtype = os.environ["DTYPE"]
        tensor = arrays.DeviceArray.of(np.array([1, 3, -8], dtype) * np.array(hc.rank() + 1, dtype))
        average = arrays.collectives.allreduce(tensor, op=hc.Average, name="a")
        scaled = arrays.collectives.allreduce(tensor, op=hc.Sum, prescale_factor=0.5, postscale_factor=4.0, name="b")
        return average.numpy().tolist(), scaled.numpy().tolist(), arrays.calls("ncclAllReduce")

    assert on_nccl(run, 2, DTYPE=dtype) == [([1.5, 4.5, -12.0], [6.0, 18.0, -48.0], 2)] * 2


def test_what_nccl_cannot_do_as_the_cpu_does_goes_by_the_host():
    def run(hc, arrays):
        import numpy as np

        def summed(dtype, **options):
            tensor = arrays.DeviceArray.of(np.array([3, 5], dtype))
            return arrays.collectives.allreduce(tensor, name=f"{dtype}{options}", **options).numpy().tolist()

        results = [
            summed("int16", op=hc.Sum),
            summed("int32", op=hc.Average),
            summed("float32", op=hc.Max, prescale_factor=2.0),
            summed("bool", op=hc.Or),
        ]
        return results, arrays.calls("ncclAllReduce")

    assert on_nccl(run, 2) == [([[6, 10], [3, 5], [6.0, 10.0], [True, True]], 0)] * 2


def test_operations_on_rows_go_by_nccl_and_no_elements_go_by_the_host():
    def run(hc, arrays):
        import numpy as np

        on_device, rank = arrays.collectives, hc.rank()
        rows = np.arange(12, dtype=np.float32).reshape(6, 2) + 100 * rank
        names = ("ncclAllGather", "ncclBroadcast", "ncclSend", "ncclRecv", "ncclReduceScatter", "ncclReduce")
        results, counts = [], []
        for operation in (
            lambda: on_device.allgather(arrays.DeviceArray.of(rows), name="even"),
            lambda: on_device.allgather(arrays.DeviceArray.of(rows[: rank + 1]), name="uneven"),
            lambda: on_device.alltoall(arrays.DeviceArray.of(rows), splits=[2, 4], name="a")[0],
            lambda: on_device.gather(arrays.DeviceArray.of(rows[:2]), root_rank=1, name="g"),
            lambda: on_device.scatterv(arrays.DeviceArray.of(rows), root_rank=1, sendcounts=[1, 5], name="s"),
            lambda: on_device.reducescatter(arrays.DeviceArray.of(rows), op=hc.Sum, name="r"),
            lambda: on_device.reducescatter(arrays.DeviceArray.of(rows[:3]), op=hc.Sum, name="u"),
        ):
            before = [arrays.calls(name) for name in names]
            results.append(operation())
            counts.append([arrays.calls(name) - already for name, already in zip(names, before, strict=True)])
        to_host = arrays.calls("cuMemcpyDtoHAsync_v2")
        return [None if result is None else result.numpy()[:, 0].tolist() for result in results], counts, to_host

    first, second = [float(i) for i in range(0, 12, 2)], [float(i) for i in range(100, 112, 2)]
    total = [a + b for a, b in zip(first, second, strict=True)]
    answers = on_nccl(run, 2)
    gathered = [first + second, [first[0], *second[:2]]]
    assert answers[0][0][:3] == [*gathered, first[:2] + second[:2]]
    assert answers[1][0][:3] == [*gathered, first[2:] + second[2:]]
    assert answers[1][0][3] == first[:2] + second[:2]
    assert answers[0][0][4:] == [second[:1], total[:3], total[:2]]
    assert answers[1][0][4:] == [second[1:], total[3:], total[2:3]]
    for _, counts, to_host in answers:
        assert counts[:2] == [[1, 0, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0]]
        assert counts[5:] == [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 2]]
        assert to_host == 0
    sent = [[count[2:4] for count in counts[2:5]] for _, counts, _ in answers]
    # With one byte from each rank to the other before the first message.
    assert sent == [[[3, 3], [1, 0], [0, 1]], [[3, 3], [1, 2], [2, 1]]]


def test_a_result_of_rows_may_be_used_before_the_device_has_it():
    def run(hc, arrays):
        connect(arrays)
        gate = arrays.Gate()
        both = arrays.collectives.allgather(arrays.DeviceArray.of([[1.0], [2.0]]), name="x")
        parts = arrays.collectives.grouped_allgather([both, arrays.DeviceArray.of([[float(hc.rank())]])], name="y")
        total = arrays.collectives.allreduce(parts[0], op=hc.Sum, name="z")
        launched = arrays.calls("ncclAllGather")
        gate.open()
        return launched, [array.numpy()[:, 0].tolist() for array in (both, *parts, total)]

    rows = [1.0, 2.0] * 2
    assert on_nccl(run, 2) == [(3, [rows, rows * 2, [0.0, 1.0], [2 * row for row in rows * 2]])] * 2


def test_results_of_rows_use_memory_of_the_device_again():
    def run(hc, arrays):
        def step(turn):
            gathered = arrays.collectives.allgather(arrays.DeviceArray.of([[float(turn)]] * 100), name="x")
            return arrays.collectives.alltoall(gathered, name="y").numpy()[:, 0].tolist()

        rows = [step(turn) for turn in range(40)]
        return rows, arrays.calls("cuMemAlloc_v2")

    for rows, allocations in on_nccl(run, 2):
        assert rows == [[float(turn)] * 200 for turn in range(40)]
        assert allocations < 40, "each step has four results: two of horocache's, and two of the framework's"


def test_a_result_of_rows_is_not_copied_into_a_captured_graph():
    def run(hc, arrays):
        driver, stream = arrays.device().driver, arrays.device().stream
        handle = arrays.collectives.allgather_async(arrays.DeviceArray.of([1.0]), name="x")
        while not hc.poll(handle):
            pass
        driver.must("cuStreamBeginCapture_v2", stream, 0)
        error = error_of(lambda: hc.synchronize(handle))
        driver.must("cuStreamEndCapture", stream, arrays.pointer())
        return error, arrays.collectives.allgather(arrays.DeviceArray.of([2.0]), name="x").numpy().tolist()

    for (name, text), after in on_nccl(run, 2):
        assert name == "UnsupportedError" and "captures a CUDA graph" in text, text
        assert after == [2.0, 2.0]


def test_wrong_rows_are_an_error_on_all_ranks_and_the_job_goes_on():
    def run(hc, arrays):
        def exchange(recvcounts):
            tensor = arrays.DeviceArray.of([1.0, 2.0, 3.0])
            return arrays.collectives.alltoallv(tensor, sendcounts=[1, 2], recvcounts=recvcounts, name="x")[0]

        right = [1 + hc.rank()] * 2
        error = error_of(lambda: exchange([right[0], 5 if hc.rank() == 0 else right[1]]))
        return error, arrays.calls("ncclSend"), exchange(right).numpy().tolist()

    zero, one = on_nccl(run, 2)
    for (name, text), sent, _ in (zero, one):
        assert name == "MismatchError" and "rank 0 expects 5 rows from rank 1, which sends 1" in text, text
        assert sent == 0
    assert zero[2] == [1.0, 1.0] and one[2] == [2.0, 3.0] * 2


@pytest.mark.parametrize("fault", ["ncclRecv:9:1", "cuMemAlloc_v2:2:2", "cuMemsetD8Async:3:719", "ncclAllGather:1:1"])
def test_an_error_in_an_operation_on_rows_ends_the_job_and_names_rank_and_call(fault):
    def run(hc, arrays):

        rows = arrays.DeviceArray.of([[1.0]] * 2)

        def step(turn):
            if os.environ["CALL"] in ("cuMemAlloc_v2", "ncclAllGather"):
                return arrays.collectives.allgather(rows, name=f"x{turn}")
            starts = [0, 3] if os.environ["CALL"] == "cuMemsetD8Async" else None  # with a gap
            counts = {"sendcounts": [1, 1], "recvcounts": [1, 1]}
            return arrays.collectives.alltoallv(rows, **counts, rdispls=starts, name=f"x{turn}")

        return error_of(lambda: [step(turn) for turn in range(12)])

    call, _, code = fault.split(":")
    for name, text in on_nccl(run, 2, environment_of={1: {"FAKE_GPU_FAULTS": fault}}, CALL=call):
        assert name in {"AbortedError", "OutOfMemoryError"}, text
        assert "rank 1: " in text and f"{call.removesuffix('_v2')} failed with {code}" in text, text


@pytest.mark.parametrize("fault", ["ncclGroupEnd:1:hang", "ncclGroupEnd:1:1"])
def test_a_rank_that_does_not_connect_for_messages_ends_the_job_and_is_named(fault):
    def run(hc, arrays):
        return error_of(lambda: arrays.collectives.alltoall(arrays.DeviceArray.of([1.0, 2.0]), name="x"))

    plans = {1: {"FAKE_GPU_FAULTS": fault}}
    for name, text in on_nccl(run, 2, knobs={"start_timeout": "5"}, environment_of=plans):
        assert name == "AbortedError", text
        if "hang" in fault:  # the one that waits for it is late, too
            assert ": NCCL did not connect the ranks for messages within 5 s" in text, text
        else:
            assert "rank 1: ncclGroupEnd failed with 1" in text, text


@pytest.mark.parametrize("fault", ["cuModuleLoadData:1:hang", "cuModuleLoadData:1:222"])
def test_a_rank_without_packing_kernels_says_why_and_no_rank_packs(fault):
    def run(hc, arrays):
        group = [arrays.DeviceArray.of([float(i)] * 3) for i in range(4)]
        results = arrays.collectives.grouped_allreduce(group, op=hc.Sum, name="g")
        return [result.numpy()[0].item() for result in results], arrays.calls("ncclAllReduce")

    plans = {1: {"FAKE_GPU_FAULTS": fault}}
    zero, one = on_nccl(run, 2, knobs={"start_timeout": "4"}, environment_of=plans, LEVEL="warning", check=False)
    assert zero.value == one.value == ([0.0, 2.0, 4.0, 6.0], 4)
    told = "small CUDA tensors are not packed on any rank, because this one has no kernels for it: "
    assert told not in zero.output and one.output.count(told) == 1, one.output
    assert ("within 4 s" if "hang" in fault else "cuModuleLoadData failed with 222") in one.output.split(told)[1]


def test_process_sets_connect_for_messages_in_any_order():
    def run(hc, arrays):
        both = hc.add_process_set([0, 1])
        sets = [both, hc.global_process_set] if hc.rank() == 0 else [hc.global_process_set, both]
        tensor = arrays.DeviceArray.of([float(hc.rank())] * 6)
        handles = [
            arrays.collectives.alltoall_async(tensor, name="x", process_set=process_set)
            for process_set in sets
            if process_set.included()
        ]
        return [sorted(set(hc.synchronize(handle)[0].numpy().tolist())) for handle in handles]

    every, pair = [0.0, 1.0, 2.0], [0.0, 1.0]
    assert on_nccl(run, 3) == [[pair, every], [every, pair], [every]]


def test_a_rank_that_is_killed_after_results_of_rows_were_taken_is_named():
    def run(hc, arrays):
        import signal

        connect(arrays)
        gate = arrays.Gate() if hc.rank() == 1 else None
        taken = arrays.collectives.allgather(arrays.DeviceArray.of([[1.0]] * 100), name="x")
        again = arrays.collectives.alltoall(taken, name="y")
        hc.barrier()
        if hc.rank() == 1:
            assert gate is not None
            os.kill(os.getpid(), signal.SIGKILL)
        del again
        return error_of(lambda: arrays.collectives.allgather(taken, name="z"))

    name, text = on_nccl(run, 2, check=False)[0].value
    assert name == "PeerLostError" and "rank 1 " in text, text


@pytest.mark.parametrize("in_list", [False, True])
def test_a_blocking_wait_for_rows_waits_for_the_copy_to_the_result(in_list):
    def run(hc, arrays):
        import threading

        connect(arrays)

        def synchronize(handle, **options):
            return hc.synchronize([handle], **options)[0] if in_list else hc.synchronize(handle, **options)

        handle = arrays.collectives.allgather_async(arrays.DeviceArray.of([1.0] * 10), name="x")
        arrays.wait_for("ncclAllGather", 1)
        gate = arrays.Gate()  # the copy comes behind it
        early = error_of(lambda: synchronize(handle, timeout=0.1, block=True))
        opened = []
        threading.Timer(0.2, lambda: (opened.append(True), gate.open())).start()
        result = synchronize(handle, block=True)
        return early, bool(opened), result.numpy().tolist()

    for (name, text), waited, values in on_nccl(run, 2):
        assert name == "TimeoutError" and "copies" in text and waited, text
        assert values == [1.0] * 20


def test_deterministic_sums_go_by_the_host():
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        return arrays.collectives.allreduce(tensor, op=hc.Sum, name="x").numpy().tolist(), arrays.calls("ncclAllReduce")

    assert on_nccl(run, 2, knobs={"deterministic": "1"}) == [([2.0], 0)] * 2


def test_a_rank_that_has_joined_needs_no_device():
    def run(hc, arrays):
        if hc.rank() == 1:
            return hc.join(), 0
        tensor = arrays.DeviceArray.of([2.0])
        total = arrays.collectives.allreduce(tensor, op=hc.Sum, name="x").numpy().tolist()
        return (hc.join(), *total)

    zero, one = on_nccl(run, 2)
    assert zero == (0, 2.0) and one == (0, 0)


def test_an_operation_is_ordered_behind_the_stream_that_computes_its_tensor():
    def run(hc, arrays):
        connect(arrays)
        gate = arrays.Gate()
        tensor = arrays.DeviceArray.of([1.0, 2.0])  # arrives when the gate is opened
        handle = arrays.collectives.allreduce_async(tensor, op=hc.Sum, name="x")
        early = error_of(lambda: hc.synchronize(handle, timeout=0.1, block=True))[0]
        launched = arrays.calls("ncclAllReduce"), hc.poll(handle)  # although the tensor is not there
        gate.open()
        return early, launched, hc.synchronize(handle, block=True).numpy().tolist()

    assert on_nccl(run, 2) == [("TimeoutError", (1, True), [2.0, 4.0])] * 2


def test_synchronize_makes_the_current_stream_wait_and_not_the_thread():
    def run(hc, arrays):
        connect(arrays)
        gate = arrays.Gate()
        before = arrays.calls("cuStreamWaitEvent")
        totals = []
        for turn in range(5):  # each time under the same name
            tensor = arrays.DeviceArray.of([turn, hc.rank()])
            totals.append(arrays.collectives.allreduce(tensor, op=hc.Sum, name="x"))
        unnamed = arrays.collectives.grouped_allreduce([totals[1], totals[2]], op=hc.Sum)
        waits = arrays.calls("cuStreamWaitEvent") - before
        gate.open()
        return [total.numpy().tolist() for total in (*totals, *unnamed)], waits

    for values, waits in on_nccl(run, 2):
        assert values == [[0, 1], [2, 1], [4, 1], [6, 1], [8, 1], [4, 2], [8, 2]]
        assert waits == 12  # of NCCL's stream for the program's, and of the program's for NCCL's


def test_tensors_are_kept_until_the_device_is_done_with_them():
    def run(hc, arrays):
        import time
        import weakref

        connect(arrays)
        gate = arrays.Gate()
        tensor = arrays.DeviceArray.of([1.0] * 1000)
        total = arrays.collectives.allreduce(tensor, op=hc.Sum, name="x")
        blocks = [weakref.ref(tensor.block), weakref.ref(total.block)]
        del tensor, total
        arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="y")
        kept = [block() is not None for block in blocks]
        gate.open()
        deadline = time.monotonic() + 60
        while any(block() is not None for block in blocks) and time.monotonic() < deadline:
            time.sleep(0.001)  # although no function of horocache is called
        return kept, [block() is None for block in blocks]

    assert on_nccl(run, 2) == [([True, True], [True, True])] * 2


def test_a_stream_that_cannot_wait_makes_the_thread_wait():
    def run(hc, arrays):
        import threading

        driver, stream = arrays.device().driver, arrays.device().stream
        connect(arrays)
        gate = arrays.Gate()
        handle = arrays.collectives.allreduce_async(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="x")
        arrays.wait_for("ncclAllReduce", 1)
        waits = arrays.calls("cuStreamWaitEvent")
        driver.must("cuStreamBeginCapture_v2", stream, 0)
        opened = []
        threading.Timer(0.2, lambda: (opened.append(True), gate.open())).start()
        total = hc.synchronize(handle)
        waited = bool(opened)
        driver.must("cuStreamEndCapture", stream, arrays.pointer())
        return waited, arrays.calls("cuStreamWaitEvent") - waits, total.numpy().tolist()

    assert on_nccl(run, 2) == [(True, 0, [2.0])] * 2


def test_a_failure_of_what_the_program_has_gone_on_with_is_logged_once_and_ends_the_job():
    def run(hc, arrays):
        import signal

        connect(arrays)
        gate = arrays.Gate()
        for name in "ab":
            arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name=name)
        hc.barrier()
        if hc.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        error = error_of(lambda: arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="c"))
        gate.open()
        return error

    lost = on_nccl(run, 2, check=False, LEVEL="warning")[0]
    name, text = lost.value
    assert name == "PeerLostError" and "rank 1 " in text, text
    told = "a result that the program has gone on with is not valid, because the operation failed on the device: "
    assert lost.output.count(told) == 1, lost.output
    assert "rank 1 " in lost.output.split(told)[1], lost.output


def test_operations_are_launched_behind_each_other_before_the_first_has_ended():
    def run(hc, arrays):
        connect(arrays)
        gate = arrays.Gate()
        tensors = [arrays.DeviceArray.of([float(i)]) for i in range(10)]
        handles = [
            arrays.collectives.allreduce_async(tensor, op=hc.Sum, name=f"x{i}") for i, tensor in enumerate(tensors)
        ]
        arrays.wait_for("ncclAllReduce", 10)
        early = error_of(lambda: hc.synchronize(handles, timeout=0.1, block=True))[0]
        gate.open()
        return early, [hc.synchronize(handle).numpy().item() for handle in handles]

    # Without fusion each is an operation of its own.
    for answer in on_nccl(run, 2, knobs={"fusion_threshold": "0"}):
        assert answer == ("TimeoutError", [2.0 * i for i in range(10)])


@pytest.mark.parametrize("order", ["nccl first", "host first"])
def test_pieces_of_a_group_that_go_different_ways_end_together(order):
    def run(hc, arrays):

        import numpy as np

        connect(arrays)
        gate = arrays.Gate()
        group = [arrays.DeviceArray.of(np.ones(1000, np.float32)), arrays.DeviceArray.of(np.ones(8, np.int16))]
        group = group if os.environ["ORDER"] == "nccl first" else group[::-1]
        handle = arrays.collectives.grouped_allreduce_async(group, op=hc.Sum, name="g")
        early = error_of(lambda: hc.synchronize(handle, timeout=0.2))[0]
        gate.open()
        return early, [result.numpy()[0].item() for result in hc.synchronize([handle])[0]]

    assert on_nccl(run, 2, ORDER=order) == [("TimeoutError", [2, 2])] * 2
