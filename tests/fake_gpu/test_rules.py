"""Mistakes that the fakes report and the real libraries let pass: broken rules, and objects left at the end."""

import json
import signal

import pytest
from fakes import answer, nccl, run
from jobs import on_nccl

START = "driver.start()\n"
SHARED_GPU = 23007  # a version with which two ranks can share a GPU


def assert_broken(code, rule, **environment):
    done = run(START + code, **environment)
    assert done.returncode == -signal.SIGABRT, done.stdout + done.stderr
    assert "broken rule" in done.stderr and rule in done.stderr, done.stderr
    done = run(START + code + "print(broken_rules())", FAKE_GPU_STRICT=0, **environment)
    assert done.returncode == 0 and rule in done.stdout, done.stdout + done.stderr


def test_a_load_of_the_host_at_an_address_of_the_device_ends_the_process_and_is_named():
    done = run(START + "ctypes.string_at(driver.allocate(1000) + 40, 4)")
    assert done.returncode == -signal.SIGSEGV
    assert "the host used memory of device 0, offset 552, by a load or store" in done.stderr


@pytest.mark.parametrize(
    ("use", "rule"),
    [
        ("driver.cuEventQuery(event)", "a destroyed event is used"),
        ("driver.cuEventRecord(event, stream)", "a destroyed event is used"),
        ("driver.cuEventDestroy_v2(event)", "a destroyed event is used"),
    ],
)
def test_a_destroyed_event_is_not_used(use, rule):
    code = f"stream, event = driver.stream(), driver.event()\ndriver.cuEventDestroy_v2(event)\n{use}\n"
    assert_broken(code, rule)


def test_a_destroyed_stream_is_not_used():
    code = "stream = driver.stream()\ndriver.cuStreamDestroy_v2(stream)\ndriver.cuStreamQuery(stream)\n"
    assert_broken(code, "a destroyed stream is used")


def test_a_pending_event_is_not_destroyed():
    code = """
memory = SharedMemory(4096)
driver.must("cuMemHostRegister_v2", memory.address, 4096, PORTABLE)
stream, event = driver.stream(), driver.event()
driver.must("cuStreamWaitValue32_v2", stream, memory.address, 1, WAIT_GEQ)
driver.must("cuEventRecord", event, stream)
driver.cuEventDestroy_v2(event)
"""
    assert_broken(code, "an event is destroyed while it is pending")


def test_a_host_function_makes_no_calls():
    code = """
from benchmarks.gpu.cuda import HostFunction
stream = driver.stream()
function = HostFunction(lambda _: driver.cuMemAlloc_v2(byref(c_uint64()), 64))
driver.must("cuLaunchHostFunc", stream, function, None)
driver.synchronize(stream)
"""
    assert_broken(code, "cuMemAlloc_v2 was called in a host function")


def test_nothing_is_called_once_exit_has_begun():
    code = """
import subprocess, tempfile
from benchmarks.gpu.cuda_faults import EXIT_PROGRAM
with tempfile.TemporaryDirectory() as folder:
    open(folder + "/late.c", "w").write(EXIT_PROGRAM)
    subprocess.run(["cc", "-o", folder + "/late", folder + "/late.c", "-ldl"], check=True)
    done = subprocess.run([folder + "/late", driver.path], capture_output=True, text=True)
print(json.dumps([done.returncode, done.stderr]))
"""
    status, errors = answer(code)
    assert status == -signal.SIGABRT
    assert "cuCtxGetCurrent was called after the exit of the process began" in errors


@pytest.mark.parametrize(
    "call", ["ncclCommGetAsyncError(communicator, byref(c_int()))", "ncclCommDestroy(communicator)"]
)
def test_a_communicator_is_not_used_after_its_abort(call):
    code = f"communicator = nccl.communicator()\nnccl.ncclCommAbort(communicator)\nnccl.{call}\n"
    assert_broken(code, "on a communicator that was destroyed or aborted")


TWO_RANKS = """
driver.start()
ranks = [Rank(driver, nccl, 2, number) for number in range(2)]
identity = nccl.unique_id()
def connect(rank):
    driver.use()
    made = c_void_p()
    nccl.must("ncclCommInitRank", byref(made), 2, identity, rank.rank)
    rank.communicator = made.value
def each(act):
    threads = [threading.Thread(target=act, args=(rank,)) for rank in ranks]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
each(connect)
"""


def test_collectives_that_do_not_match_are_reported_with_both_ranks_last_operations():
    code = """
def call(rank):
    driver.use()
    for count in (8, 16, 32 + rank.rank):
        nccl.must("ncclAllReduce", rank.source, rank.target, count, 7, 0, rank.communicator, rank.stream)
each(call)
for rank in ranks: driver.synchronize(rank.stream)
"""
    done = run(TWO_RANKS + code, SHARED_GPU, NCCL_MULTI_RANK_GPU_ENABLE=1)
    assert done.returncode == -signal.SIGABRT
    for words in ("call different collectives", "#1 ncclAllReduce count 16", "count 32 type 7", "count 33 type 7"):
        assert words in done.stderr, done.stderr


def test_collectives_that_do_not_match_hang_where_that_is_asked_for():
    code = """
def call(rank):
    driver.use()
    nccl.must("ncclAllReduce", rank.source, rank.target, 8 + rank.rank, 7, 0, rank.communicator, rank.stream)
each(call)
before = [driver.cuStreamQuery(rank.stream) for rank in ranks]
for rank in ranks: nccl.must("ncclCommAbort", rank.communicator)
print(json.dumps([before, [driver.cuStreamSynchronize(rank.stream) for rank in ranks]]))
"""
    assert answer(TWO_RANKS + code, SHARED_GPU, NCCL_MULTI_RANK_GPU_ENABLE=1, FAKE_HANG=1) == [[600, 600], [0, 0]]


def test_two_threads_do_not_use_one_communicator():
    code = """
def call():
    driver.use()
    rank = ranks[0]
    nccl.ncclAllReduce(rank.source, rank.target, 8, 7, 0, rank.communicator, rank.stream)
threads = [threading.Thread(target=call) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    # The first call waits, inside the library, for the other rank, which does not come.
    done = run(TWO_RANKS + code, SHARED_GPU, NCCL_MULTI_RANK_GPU_ENABLE=1)
    assert done.returncode == -signal.SIGABRT
    assert "two threads use communicator" in done.stderr


def test_two_threads_do_not_use_communicators_of_one_device_where_that_is_checked():
    code = """
def call(rank):
    driver.use()
    nccl.ncclAllReduce(rank.source, rank.target, 8, 7, 0, rank.communicator, rank.stream)
each(call)
"""
    done = run(TWO_RANKS + code, SHARED_GPU, NCCL_MULTI_RANK_GPU_ENABLE=1, FAKE_NCCL_CHECK_DEVICE=1)
    assert done.returncode == -signal.SIGABRT
    assert "two threads use communicators of device 0 at the same time" in done.stderr


def test_a_range_over_two_allocations_is_for_kernels_and_not_for_copies():
    code = """
communicator, stream = nccl.communicator(), driver.stream()
first, second, third = driver.allocate(512), driver.allocate(512), driver.allocate(100)
assert second == first + 512 and third == second + 512
driver.must("cuMemcpyHtoD_v2", second, (c_int * 128)(*[2] * 128), 512)
codes = [nccl.ncclAllReduce(first, first, 256, 2, 0, communicator, stream)]
codes.append(nccl.ncclAllReduce(first, first, 300, 2, 0, communicator, stream))  # beyond the third one's end
driver.must("cuStreamSynchronize", stream)
target = (c_int * 256)()
codes.append(driver.cuMemcpyDtoH_v2(target, first, 1024))
codes.append(driver.cuMemcpyDtoH_v2(target, second, 512))
print(json.dumps([*codes, target[127]]))
"""
    assert answer(START + code) == [0, 1, 1, 0, 2]


def test_a_communicators_device_is_current_in_its_calls():
    code = """
communicator, memory, stream = nccl.communicator(), driver.allocate(64), driver.stream()
driver.must("cuCtxSetCurrent", None)
nccl.ncclAllReduce(memory, memory, 8, 7, 0, communicator, stream)
"""
    assert_broken(code, "ncclAllReduce is called while another device than the communicator's is current")


@pytest.mark.parametrize(("order", "sums"), [("rank", [1.0, 1.0, 1.0]), ("", [0.0, 0.0, 1.0])])
def test_sums_are_taken_in_the_order_of_ranks_where_that_is_asked_for(order, sums):
    def add(hc, arrays):
        import numpy as np

        tensor = arrays.DeviceArray.of(np.full(3, [1e8, -1e8, 1.0][hc.rank()], np.float32))
        return arrays.collectives.allreduce(tensor, op=hc.Sum, name="x").numpy().tolist()

    assert on_nccl(add, 3, FAKE_NCCL_ORDER=order) == [sums] * 3


def test_memory_is_not_freed_before_the_work_that_uses_it():
    code = """
memory = SharedMemory(4096)
driver.must("cuMemHostRegister_v2", memory.address, 4096, PORTABLE)
stream, freed = driver.stream(), driver.allocate(64)
driver.must("cuMemFree_v2", freed)
print(json.dumps(driver.cuMemcpyHtoDAsync_v2(freed, memory.address, 64, stream)))
"""
    assert answer(START + code) == 1


def test_the_ledger_counts_what_is_left():
    code = """
stream, event, module, memory = driver.stream(), driver.event(), None, driver.allocate(64)
communicator = nccl.communicator()
before = ledger()
driver.must("cuStreamDestroy_v2", stream)
driver.must("cuEventDestroy_v2", event)
driver.must("cuMemFree_v2", memory)
nccl.must("ncclCommDestroy", communicator)
driver.must("cuDevicePrimaryCtxRelease_v2", 0)
after = ledger()
print(json.dumps([before, after]))
"""
    before, after = answer(START + code)
    assert [before[name] for name in ("contexts", "streams", "events", "allocations", "communicators")] == [1] * 5
    assert not any(after.values())


def test_the_ledger_is_written_at_the_end_of_the_process(tmp_path):
    done = run(START + "driver.stream()\nprint(os.getpid())", FAKE_GPU_LEDGER=tmp_path / "ledger")
    left = json.loads((tmp_path / f"ledger.{done.stdout.strip()}").read_text())
    assert left["streams"] == left["contexts"] == 1 and left["events"] == 0


def test_planned_faults_happen_at_the_nth_call_of_a_function():
    code = """
codes = [driver.cuMemAlloc_v2(byref(c_uint64()), 64) for _ in range(4)]
print(json.dumps(codes))
"""
    assert answer(START + code, FAKE_GPU_FAULTS="cuMemAlloc_v2:2:2,cuMemAlloc_v2:4:719") == [0, 2, 0, 719]


def test_a_fault_of_work_spoils_the_context():
    code = """
stream, target = driver.stream(), driver.allocate(64)
for _ in range(3): driver.cuMemsetD8Async(target, 1, 64, stream)
print(json.dumps([driver.cuStreamSynchronize(stream), driver.cuMemAlloc_v2(byref(c_uint64()), 64)]))
"""
    assert answer(START + code, FAKE_GPU_FAULTS="work:2:719") == [719, 719]


@pytest.mark.parametrize("version", [21200, 21403, 21801, 22203, 22703, 22809, 23007, 23203])
def test_a_version_of_nccl_has_the_functions_of_that_version(version):
    since = {
        "ncclCommInitRankConfig": 21403,
        "ncclCommSplit": 21801,
        "ncclMemAlloc": 21901,
        "ncclCommWindowRegister": 22703,
        "ncclAlltoAll": 22803,
        "ncclCommRevoke": 22807,
    }
    names = list(since)
    code = f"print(json.dumps([nccl.version(), *(nccl.find(name) is not None for name in {names})]))"
    number, *found = answer(code, version)
    assert number == version == int(nccl(version).name.split("_")[2].split(".")[0])
    assert found == [version >= first for first in since.values()]


def test_the_stepper_runs_streams_in_an_order_that_only_its_seed_decides():
    code = """
memory = SharedMemory(4096)
driver.must("cuMemHostRegister_v2", memory.address, 4096, PORTABLE)
streams = [driver.stream() for _ in range(4)]
device = driver.allocate(4)
orders = []
for turn in range(6):
    for number, stream in enumerate(streams):
        driver.must("cuMemsetD8Async", device, number + 1, 4, stream)
    for stream in streams: driver.synchronize(stream)
    orders.append(driver.download(device, 1)[0])
print(json.dumps(orders))
"""
    first = [answer(START + code, FAKE_GPU_SEED=seed) for seed in range(4)]
    again = [answer(START + code, FAKE_GPU_SEED=seed) for seed in range(4)]
    assert first == again
    assert len({tuple(order) for order in first}) > 1
