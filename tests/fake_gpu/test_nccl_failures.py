"""NCCL that cannot be used, refuses, fails or hangs; ranks that die; and the ends of communicators; on the fakes."""

import os
import subprocess
import sys

import pytest
from fakes import CUDA, nccl
from jobs import FOLDERS, connect, error_of, on_device, on_nccl

from horocache.testing import Fault, RanksFailed


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


def test_an_error_that_nccl_reports_while_an_operation_runs_ends_the_job_and_names_the_rank():
    def run(hc, arrays):
        connect(arrays)
        gate = arrays.Gate()
        late = arrays.DeviceArray.of([1.0] * 1000)  # on both ranks, so that the operation does not end
        handle = arrays.collectives.allreduce_async(late, op=hc.Sum, name="x")
        error = error_of(lambda: hc.synchronize(handle, block=True))
        gate.open()
        return error, arrays.calls("ncclCommAbort")

    # NCCL's code of a lost connection, from the second launch on: the first one connects.
    answers = on_nccl(run, 2, environment_of={0: {"FAKE_GPU_FAULTS": "async:2:6"}})
    for (name, text), aborts in answers:
        assert name == "AbortedError" and "rank 0: a collective of NCCL failed with 6" in text and aborts == 1, text


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
        connect(arrays)
        gate = arrays.Gate()
        handle = arrays.collectives.allreduce_async(arrays.DeviceArray.of([1.0]), op=hc.Sum, name="x")
        arrays.wait_for("ncclAllReduce", 1)
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
        "arrays.collectives.broadcast(arrays.DeviceArray.of([1.0]), 0, name='connects')\n"
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


def test_a_forked_child_gets_an_error_and_its_parent_goes_on():
    def run(hc, arrays):
        import os
        import signal

        def add(name):
            return arrays.collectives.allreduce_(tensor, op=hc.Sum, name=name)

        tensor = arrays.DeviceArray.of([1.0])
        add("x")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a call of the device may wait for a lock of a thread that the child does not have
            os.write(write, " ".join(error_of(lambda: add("in the child"))).encode())
            os._exit(0)
        ended = os.waitpid(child, 0)[1]
        return ended, os.read(read, 1000).decode(), add("y").numpy().tolist()

    for ended, error, total in on_nccl(run, 2):
        assert ended == 0 and error.startswith("ForkedProcessError "), (ended, error)
        assert total == [4.0]


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
