"""CUDA tensors by NCCL, on the fakes: what goes by it, its order with the program's streams, and failures."""

import os
import subprocess
import sys

import pytest
from fakes import CUDA, nccl
from jobs import FOLDERS, error_of, on_device, on_nccl

from horocache.testing import Fault, RanksFailed


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


def test_a_group_is_one_call_of_nccl_and_a_steady_state_makes_nothing():
    def run(hc, arrays):
        def step(gate=None):
            group = [arrays.DeviceArray.of([float(i)] * 100) for i in range(5)]
            handle = arrays.collectives.grouped_allreduce_async(group, op=hc.Sum, name="g")
            if gate is not None:
                arrays.wait_for("ncclAllReduce", 10)
                gate.open()
            return hc.synchronize(handle, block=True)

        step()
        step(arrays.Gate())  # launched while its tensors are late, which takes one more event
        names = ("ncclGroupEnd", "ncclAllReduce", "cuEventCreate", "ncclCommInitRankConfig", "cuEventRecord")
        before = [arrays.calls(name) for name in names]
        for _ in range(10):
            results = step()
        counts = [arrays.calls(name) - already for name, already in zip(names, before, strict=True)]
        return counts, [result.numpy()[0].item() for result in results]

    for counts, values in on_nccl(run, 2):
        assert counts[:4] == [10, 50, 0, 0], counts
        # Behind the program's work and behind NCCL's; where the tensors were not computed yet, one between the two.
        assert 20 <= counts[4] <= 30, counts
        assert values == [0.0, 2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_factors_are_applied_in_the_type_of_the_data(dtype):
    def run(hc, arrays):
        import os

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
            arrays.collectives.allgather(arrays.DeviceArray.of([hc.rank()]), name="rows").numpy().tolist(),
        ]
        return results, arrays.calls("ncclAllReduce")

    assert on_nccl(run, 2) == [([[6, 10], [3, 5], [6.0, 10.0], [True, True], [0, 1]], 0)] * 2


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
        gate = arrays.Gate()
        totals = []
        for turn in range(5):  # each time under the same name
            tensor = arrays.DeviceArray.of([turn, hc.rank()])
            totals.append(arrays.collectives.allreduce(tensor, op=hc.Sum, name="x"))
        unnamed = arrays.collectives.grouped_allreduce([totals[1], totals[2]], op=hc.Sum)
        waits = arrays.calls("cuStreamWaitEvent")
        gate.open()
        return [total.numpy().tolist() for total in (*totals, *unnamed)], waits

    for values, waits in on_nccl(run, 2):
        assert values == [[0, 1], [2, 1], [4, 1], [6, 1], [8, 1], [4, 2], [8, 2]]
        assert waits == 12  # of NCCL's stream for the program's, and of the program's for NCCL's


def test_tensors_are_kept_until_the_device_is_done_with_them():
    def run(hc, arrays):
        import time
        import weakref

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
        import os
        import signal

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
        arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="connects")
        gate = arrays.Gate()
        tensors = [arrays.DeviceArray.of([float(i)]) for i in range(10)]
        handles = [
            arrays.collectives.allreduce_async(tensor, op=hc.Sum, name=f"x{i}") for i, tensor in enumerate(tensors)
        ]
        arrays.wait_for("ncclAllReduce", 11)
        early = error_of(lambda: hc.synchronize(handles, timeout=0.1, block=True))[0]
        gate.open()
        return early, [hc.synchronize(handle).numpy().item() for handle in handles]

    # Without fusion each is an operation of its own.
    for answer in on_nccl(run, 2, knobs={"fusion_threshold": "0"}):
        assert answer == ("TimeoutError", [2.0 * i for i in range(10)])


@pytest.mark.parametrize("order", ["nccl first", "host first"])
def test_pieces_of_a_group_that_go_different_ways_end_together(order):
    def run(hc, arrays):
        import os

        import numpy as np

        arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="connects")
        gate = arrays.Gate()
        group = [arrays.DeviceArray.of(np.ones(1000, np.float32)), arrays.DeviceArray.of(np.ones(8, np.int16))]
        group = group if os.environ["ORDER"] == "nccl first" else group[::-1]
        handle = arrays.collectives.grouped_allreduce_async(group, op=hc.Sum, name="g")
        early = error_of(lambda: hc.synchronize(handle, timeout=0.2))[0]
        gate.open()
        return early, [result.numpy()[0].item() for result in hc.synchronize([handle])[0]]

    assert on_nccl(run, 2, ORDER=order) == [("TimeoutError", [2, 2])] * 2


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_ranks_that_nccl_refuses_to_connect_go_on_together(mode):
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])

        def add():
            return arrays.collectives.allreduce(tensor, op=hc.Sum, name="x").numpy().tolist()

        return [error_of(add) for _ in range(2)], arrays.calls("ncclAllReduce"), hc.allreduce(tensor.numpy(), op=hc.Sum)

    outcomes = on_nccl(run, 2, knobs={"nccl": mode}, NCCL_MULTI_RANK_GPU_ENABLE=0, LEVEL="warning", check=False)
    for outcome in outcomes:
        errors, launched, by_cpu = outcome.value
        assert launched == 0 and by_cpu.tolist() == [2.0]
        for name, text in errors:
            if mode == "auto":
                assert (name, text) == ("", "nothing was raised")
            else:
                assert name == "UnsupportedError" and "NCCL cannot connect the ranks. rank 0: ncclComm" in text, text
                assert "Multiple Ranks are using the same GPU" in text and "HOROCACHE_NCCL=off" in text
    warnings = [outcome.output.count("CUDA tensors go by way of the host instead") for outcome in outcomes]
    assert warnings == ([1, 0] if mode == "auto" else [0, 0]), outcomes


@pytest.mark.parametrize(
    "plan",
    ["ncclCommInitRankConfig:1:hang", "ncclCommInitRankConfig:1:2", "ncclGetUniqueId:1:3", "ncclGetUniqueId:1:hang"],
)
def test_a_rank_that_cannot_connect_is_named_on_all_ranks(plan):
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        return error_of(lambda: arrays.collectives.allreduce(tensor, op=hc.Sum, name="x"))

    faulty = 0 if "UniqueId" in plan else 1
    plans = {faulty: {"FAKE_GPU_FAULTS": plan}}
    answers = on_nccl(run, 3, knobs={"nccl": "on", "start_timeout": "8"}, environment_of=plans)
    assert len(set(answers)) == 1, answers
    name, text = answers[0]
    assert name == "UnsupportedError", text
    expected = f"rank {faulty}: nccl"
    if plan == "ncclCommInitRankConfig:1:hang":  # those that wait for the rank are late, too
        expected = "did not connect the ranks within 8 s"
    elif "hang" in plan:
        expected = "rank 0: ncclGetUniqueId did not return within 8 s"
    assert expected in text, text


@pytest.mark.parametrize(
    ("call", "block"),
    [
        ("ncclAllReduce", True),
        ("ncclAllReduce", False),
        ("ncclGroupEnd", False),
        ("cuStreamWaitEvent", True),
        ("ncclRedOpCreatePreMulSum", True),
    ],
)
def test_an_error_of_a_launch_ends_the_job_and_names_rank_and_call(call, block):
    def run(hc, arrays):
        import os

        block = os.environ["BLOCK"] == "True"

        def add(turn):
            gate = arrays.Gate()
            tensor = arrays.DeviceArray.of([1.0] * 1000)
            handle = arrays.collectives.allreduce_async(tensor, op=hc.Average, name=f"x{turn}")
            hc.barrier()  # the operation before it has been launched, while its tensor was not computed
            gate.open()
            return hc.synchronize(handle, block=block)

        return error_of(lambda: [add(turn) for turn in range(20)])

    code = "719" if call.startswith("cu") else "1"
    plans = {1: {"FAKE_GPU_FAULTS": f"{call}:5:{code}"}}
    for name, text in on_nccl(run, 2, environment_of=plans, BLOCK=block):
        assert name == "AbortedError" and "rank 1: " in text and f"{call} failed with {code}" in text, text


def dies(hc, arrays):
    """Rank 1 ends when all ranks have launched an operation for which its tensor is not there."""
    import os
    import signal

    tensor = arrays.DeviceArray.of([1.0] * 100_000)
    arrays.collectives.allreduce(tensor, op=hc.Sum, name="connects")
    gate = arrays.Gate()
    late = arrays.DeviceArray.of([1.0] * 100_000) if hc.rank() == 1 else tensor
    handle = arrays.collectives.allreduce_async(late, op=hc.Sum, name="x")
    arrays.wait_for("ncclAllReduce", 2)
    hc.barrier()
    if hc.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = error_of(lambda: hc.synchronize(handle, block=True))
    gate.open()
    return error, arrays.calls("ncclCommAbort")


def test_a_rank_that_is_killed_is_named_and_the_others_abort():
    outcomes = on_nccl(dies, 3, check=False)
    assert outcomes[1].exit_code == -9, outcomes[1]
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, outcome
        (name, text), aborts = outcome.value
        assert name == "PeerLostError" and "rank 1 " in text and aborts == 1, outcome


def test_the_loss_of_a_rank_is_reported_although_nccl_sees_it_first():
    outcomes = on_nccl(dies, 2, check=False, FAKE_NCCL_SOCKET=1)
    (name, text), _ = outcomes[0].value
    assert name == "PeerLostError" and "rank 1 " in text, text


def test_an_abort_that_hangs_holds_up_no_rank_for_long():
    plan = {0: {"FAKE_GPU_FAULTS": "ncclCommAbort:1:hang"}}
    outcomes = on_nccl(dies, 2, environment_of=plan, check=False)
    (name, text), aborts = outcomes[0].value
    assert name == "PeerLostError" and "rank 1 " in text and aborts == 1, text
    assert "CUDA device 0 did not end its work within 2 s and may still write into tensors" in text, text


@pytest.mark.parametrize("step", [2, 9, 40])
def test_a_rank_that_is_killed_while_nccl_connects_is_named(step):
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0] * 1000)
        return error_of(lambda: [arrays.collectives.allreduce(tensor, op=hc.Sum, name="x") for _ in range(200)])

    killed = [Fault("data", "kill", rank=1, step=step)]
    outcomes = on_nccl(run, 3, faults=killed, check=False, FAKE_NCCL_INIT_MS=50)
    assert outcomes[1].exit_code == -9, outcomes[1]
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok and outcome.value[0] == "PeerLostError" and "rank 1 " in outcome.value[1], outcome


def test_an_abort_by_the_program_ends_what_waits_on_the_device():
    def run(hc, arrays):
        arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="connects")
        gate = arrays.Gate()
        handle = arrays.collectives.allreduce_async(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="x")
        arrays.wait_for("ncclAllReduce", 2)
        hc.barrier()
        if hc.rank() == 0:
            hc.abort("enough")
        error = error_of(lambda: hc.synchronize(handle, block=True))
        gate.open()
        return error

    for name, text in on_nccl(run, 2):
        assert name == "AbortedError" and "enough" in text


def test_process_sets_have_communicators_of_their_own():
    def run(hc, arrays):
        low, high = hc.ProcessSet([0, 1]), hc.ProcessSet([1, 2])
        for process_set in (low, high):
            hc.add_process_set(process_set)
        sums = []
        for process_set in (low, high):
            if process_set.included():
                tensor = arrays.DeviceArray.of([float(hc.rank())])
                total = arrays.collectives.allreduce(tensor, op=hc.Sum, name="x", process_set=process_set)
                sums.append(total.numpy().item())
        tensor = arrays.DeviceArray.of([1.0])
        sums.append(arrays.collectives.allreduce(tensor, op=hc.Sum, name="x").numpy().item())
        for _ in range(3 if high.included() else 0):  # under way when the set is removed
            arrays.collectives.allreduce(arrays.DeviceArray.of([1.0] * 1000), op=hc.Sum, name="y", process_set=high)
        hc.remove_process_set(high)
        return sums, arrays.calls("ncclCommInitRankConfig"), arrays.calls("ncclCommDestroy")

    zero, one, two = on_nccl(run, 3)
    assert zero == ([1.0, 3.0], 2, 0)
    assert one == ([1.0, 3.0, 3.0], 3, 1)
    assert two == ([3.0, 3.0], 2, 1)


def test_a_shutdown_in_order_destroys_communicators_and_aborts_none():
    def run(hc, arrays):
        arrays.collectives.allreduce(arrays.DeviceArray.of([1.0] * 100), op=hc.Sum, name="x")
        hc.shutdown()
        return [arrays.calls(name) for name in ("ncclCommDestroy", "ncclCommAbort")]

    assert on_nccl(run, 2) == [[1, 0]] * 2


def test_a_communicator_that_does_not_end_holds_up_no_shutdown():
    def run(hc, arrays):
        arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="x")
        hc.shutdown()
        return arrays.calls("ncclCommDestroy")

    assert on_nccl(run, 2, FAKE_GPU_FAULTS="ncclCommDestroy:1:hang") == [1, 1]


def launched(script, tmp_path):
    """The end of a job of two ranks that run ``script``."""
    file = tmp_path / "job.py"
    file.write_text(
        f"import sys, time\nsys.path[:0] = {FOLDERS!r}\n"
        f"import horocache as hc\nimport device_arrays as arrays\nhc.init()\n{script}"
    )
    variables = {"HOROCACHE_CUDA_LIBRARY": str(CUDA), "HOROCACHE_NCCL_LIBRARY": str(nccl(23007))}
    variables |= {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    command = [sys.executable, "-m", "horocache.launch", "-np", "2", sys.executable, file]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)


def test_a_program_that_exits_without_shutdown_calls_nothing_of_nccl_after_that(tmp_path):
    script = "print(arrays.collectives.allreduce(arrays.DeviceArray.of([1.0]), op=hc.Sum, name='x').numpy().item())\n"
    finished = launched(script, tmp_path)
    # The fake ends a process that calls it once exit has begun.
    assert finished.returncode == 0 and finished.stdout.count("2.0") == 2, finished.stdout + finished.stderr


@pytest.mark.parametrize("end", ["", "hc.shutdown()\n"])
def test_a_rank_that_ends_lets_its_device_finish_for_the_others(tmp_path, end):
    script = (
        "gate = arrays.Gate()\n"
        "total = arrays.collectives.allreduce(arrays.DeviceArray.of([1.0] * 1000), op=hc.Sum, name='x')\n"
        "if hc.rank() == 1:\n    time.sleep(0.5)\n"  # until rank 0 is about to end
        f"gate.open()\nif hc.rank() == 1:\n    print(total.numpy().sum())\n{end}"
    )
    finished = launched(script, tmp_path)
    assert finished.returncode == 0 and "2000.0" in finished.stdout, finished.stdout + finished.stderr


def test_ranks_with_different_versions_of_nccl_do_not_start():
    def run(hc, arrays):
        return "started"

    with pytest.raises(RanksFailed) as failed:
        on_nccl(run, 2, environment_of={1: {"HOROCACHE_NCCL_LIBRARY": str(nccl(22809))}})
    assert "version of NCCL" in str(failed.value) and "2.30.7" in str(failed.value) and "2.28.9" in str(failed.value)


@pytest.mark.parametrize(
    ("library", "why"),
    [
        ("libnccl-nowhere.so.2", "libnccl-nowhere.so.2"),
        (str(nccl(21200)), "has version 2.12.0; horocache needs 2.14.3"),
    ],
)
def test_a_library_that_cannot_be_used_is_done_without_or_an_error_of_the_start(library, why):
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        return arrays.collectives.allreduce(tensor, op=hc.Sum, name="x").numpy().tolist(), hc.nccl_built()

    assert on_device(run, 2, HOROCACHE_NCCL_LIBRARY=library) == [([2.0], 0)] * 2
    with pytest.raises(RanksFailed) as failed:
        on_device(run, 2, HOROCACHE_NCCL_LIBRARY=library, knobs={"nccl": "on"})
    assert "HOROCACHE_NCCL=on: NCCL" in str(failed.value) or "HOROCACHE_NCCL=on: the NCCL" in str(failed.value)
    assert why in str(failed.value)


def test_nccl_can_be_switched_off():
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        total = arrays.collectives.allreduce(tensor, op=hc.Sum, name="x").numpy().tolist()
        unknown = error_of(lambda: arrays.collectives.allreduce(tensor, op=hc.Sum, name="y", backend="nccl"))
        return total, arrays.calls("ncclGetVersion"), hc.nccl_built(), unknown

    for total, calls, built, (name, text) in on_nccl(run, 2, knobs={"nccl": "off"}):
        assert (total, calls, built) == ([2.0], 0, 0)
        assert name == "UnsupportedError" and "nccl" in text, text


def test_a_backend_can_be_named():
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        totals = [
            arrays.collectives.allreduce(tensor, op=hc.Sum, name=name, backend=name).numpy().item()
            for name in ("shm", "nccl")
        ]
        return totals, arrays.calls("ncclAllReduce")

    assert on_nccl(run, 2) == [([2.0, 2.0], 1)] * 2


def test_without_a_driver_nccl_is_not_used():
    def run(hc, arrays):
        return hc.nccl_built(), hc.allreduce(1.0, op=hc.Sum).item()

    assert on_nccl(run, 2, library="libcuda-nowhere.so.1", FAKE_CUDA=CUDA) == [(0, 2.0)] * 2
