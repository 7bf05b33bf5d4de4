"""Calibration of NCCL with two ranks on one GPU: as threads, as processes, and as processes of two pretended hosts."""

from __future__ import annotations

import ctypes
import struct
import tempfile
import time
from collections.abc import Callable
from ctypes import c_int, c_uint64, c_void_p

from benchmarks.gpu import party as parties
from benchmarks.gpu.cuda import Code
from benchmarks.gpu.nccl import Nccl, Rank, Result, dotted
from benchmarks.gpu.party import COMMON, RANKS, SHARED_GPU, Board, Party, Scenario
from benchmarks.gpu.record import CallError, in_thread
from benchmarks.gpu.session import Helper, Session
from benchmarks.gpu.two_ranks_results import end, figures, matrix, other_collectives, special_values

REF = ctypes.byref
MIB = 1 << 20
FIRST_SHARED_GPU_VERSION = 23000
HANG_S = 2.5  # a stream that is busy for so long hangs


# ---- sections


def refused(session: Session) -> None:
    """Two ranks on one GPU without NCCL_MULTI_RANK_GPU_ENABLE."""
    session.driver()
    session.nccl()
    for mode in ("threads", "processes"):
        parties.run(session, mode, "refused", COMMON, 30)


def hosts(session: Session) -> None:
    """Two processes with host names of their own: NCCL goes through sockets of the loopback interface."""
    session.driver()
    session.nccl()
    _scenarios(session, "hosts", COMMON)


def processes(session: Session) -> None:
    """Two processes that share the GPU."""
    if shared_gpu(session):
        _scenarios(session, "processes", SHARED_GPU)


def threads(session: Session) -> None:
    """Two threads of one process that share the GPU."""
    if not shared_gpu(session):
        return
    if not parties.run(session, "threads", "main", SHARED_GPU, 40):
        early = SHARED_GPU | {"NCCL_RUNTIME_CONNECT": "0"}
        session.recorder.add("threads: once more with NCCL_RUNTIME_CONNECT=0", "", "", "see the next rows")
        parties.run(session, "threads", "main", early, 40)
    for scenario in ("mismatch", "abort", "first"):
        parties.run(session, "threads", scenario, SHARED_GPU, 45)
    outcome = session.helper("two_ranks:one_thread", SHARED_GPU).finish(30)
    parties.report(session, "one thread", "group", [outcome])


def shared_gpu(session: Session) -> bool:
    """True if NCCL allows two ranks on one GPU; a row if it does not."""
    session.driver()
    version = Nccl(session.nccl_path).version()
    if version < FIRST_SHARED_GPU_VERSION:
        seen = f"skipped: NCCL {dotted(version)} refuses two ranks on one GPU"
        session.recorder.add("several ranks on one GPU", "ncclGetVersion", "2.30.0 or newer", seen)
        return False
    return True


def _scenarios(session: Session, mode: str, environment: dict[str, str]) -> None:
    for scenario, limit_s in (("main", 40), ("kill", 0), ("mismatch", 45), ("abort", 45), ("first", 45)):
        if scenario == "kill":
            _kill(session, mode, environment)
        else:
            parties.run(session, mode, scenario, environment, limit_s)


def _kill(session: Session, mode: str, environment: dict[str, str]) -> None:
    """Kill rank 1 during a series of allreduces, and give the survivor a new peer when it asks for one."""
    with tempfile.TemporaryDirectory(prefix="calibrate") as folder:
        board = Board(folder)
        helpers = parties.start(session, mode, "kill", folder, environment)
        try:
            for number in range(RANKS):
                _await_note(board, f"running.{number}", helpers[number])
            time.sleep(0.3)
            helpers[1].process.kill()
            board.post("killed", f"{time.monotonic():.6f}".encode())
            _await_note(board, "id.again", helpers[0])
            helpers[1] = parties.start_rank(session, mode, "replace", folder, environment, 1)
        except TimeoutError as error:
            session.recorder.add(f"{mode}: scenario kill", "", "", str(error), "finished")
        parties.report(session, mode, "kill", [helper.finish(50) for helper in helpers])


def _await_note(board: Board, name: str, helper: Helper, limit_s: float = 30.0) -> None:
    """Wait for a note of a process.

    Raises:
        TimeoutError: the process ended without the note, or did not leave it in time.
    """
    deadline = time.monotonic() + limit_s
    while board.peek(name) is None:
        if helper.process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError(f"no note {name}")
        time.sleep(0.005)


# ---- entry points of the processes


def one_rank(session: Session, scenario: str, folder: str, mode: str, number: int) -> None:
    """The process of one rank."""
    parties.join(session, folder, mode, number, SCENARIOS[scenario])


def both_ranks(session: Session, scenario: str, folder: str, mode: str) -> None:
    """The process of both ranks."""
    parties.join_threads(session, folder, mode, SCENARIOS[scenario])


def one_thread(session: Session) -> None:
    """Both ranks in one thread, each step in a group."""
    driver = session.cuda().library
    checks = session.nccl()
    nccl, ranks = checks.library, [Rank(driver, checks.library, RANKS, number) for number in range(RANKS)]
    unique_id, made = nccl.unique_id(), [c_void_p() for _ in ranks]
    nccl.must("ncclGroupStart")
    for number, place in enumerate(made):
        name = f"one thread: init of rank {number} in a group"
        checks(name, "ncclCommInitRank", "2 ranks", REF(place), RANKS, unique_id, number, expect=Result.Success)
    if checks("one thread: end of the group of inits", "ncclGroupEnd", "", expect=Result.Success) != 0:
        return
    for rank, place in zip(ranks, made, strict=True):
        rank.communicator = place.value or 0
        driver.upload(rank.source, struct.pack("<4f", *[rank.rank + 1.0] * 4))
    nccl.must("ncclGroupStart")
    for rank in ranks:
        nccl.must("ncclAllReduce", rank.source, rank.target, 4, 7, 0, rank.communicator, rank.stream)
    checks("one thread: end of a group of allreduces", "ncclGroupEnd", "", expect=Result.Success)
    for rank in ranks:
        rank.settle(8)
        seen = struct.unpack("<f", driver.download(rank.target, 4))[0]
        checks.fact(f"one thread: result of rank {rank.rank}", "ncclAllReduce", "1 + 2", seen, "3.0")
    nccl.must("ncclGroupStart")
    for rank in ranks:
        nccl.must("ncclCommAbort", rank.communicator)
    checks("one thread: end of a group of aborts", "ncclGroupEnd", "", expect=Result.Success)


# ---- scenarios, which every rank runs


def _refused(party: Party) -> None:
    party.connect("refused", "ncclInvalidUsage")
    party.row("last error", "ncclGetLastError", "", party.nccl.last_error())


def _main(party: Party) -> None:
    party.must_connect("main")
    for step in (matrix, other_collectives, special_values, _waiting, _split, figures, end):
        party.recorder.begin(f"{party.mode}, rank {party.number}: step {step.__name__}", "")
        step(party)


def _waiting(party: Party) -> None:
    """Rank 1 calls 150 ms late; rank 0's call returns at once, and its event completes when rank 1 has come."""
    driver, rank, event = party.rank.driver, party.rank, party.rank.driver.event()
    party.barrier("waiting")
    if party.number == 1:
        time.sleep(0.15)
    start = time.perf_counter()
    code = party.allreduce(1000)
    ms = (time.perf_counter() - start) * 1000
    party.row("call without the peer", "ncclAllReduce", "rank 1 is 150 ms late", party.nccl.code_name(code), ms=ms)
    driver.must("cuEventRecord", event, rank.stream)
    if party.number == 0:
        time.sleep(0.05)
        seen = driver.code_name(driver.cuEventQuery(event))
        party.row("event without the peer", "cuEventQuery", "50 ms later", seen, "CUDA_ERROR_NOT_READY")
    rank.settle(8)
    ms = (time.perf_counter() - start) * 1000
    party.row(
        "stream with the peer", "cuStreamQuery", "", driver.code_name(driver.cuEventQuery(event)), "CUDA_SUCCESS", ms
    )


def _split(party: Party) -> None:
    """Both ranks in a child; then rank 1 alone gets one."""
    parent = party.rank.communicator
    for words, color in (("of both", 0), ("of rank 1", -1 if party.number == 0 else 0)):
        child = c_void_p()
        start = time.perf_counter()
        code = party.nccl.ncclCommSplit(parent, color, party.number, REF(child), None)
        ms = (time.perf_counter() - start) * 1000
        seen = f"{party.nccl.code_name(code)}, {'NULL' if child.value is None else 'a handle'}"
        party.row(f"split {words}", "ncclCommSplit", f"color {color}", seen, ms=ms)
        if code == 0 and child.value:
            party.rank.communicator = child.value
            code = party.allreduce(1000)
            party.common(
                f"allreduce on the split {words}", "ncclAllReduce", "", party.nccl.code_name(code), "ncclSuccess"
            )
            party.rank.settle(8)
            party.nccl.must("ncclCommDestroy", child)
        party.rank.communicator = parent
        party.barrier(f"split {words}")


def _mismatch(party: Party) -> None:
    """Ranks that disagree about an operation: does it hang, and does an abort help?"""
    number, source, target = party.number, party.rank.source, party.rank.target

    def broadcast_or_allreduce() -> int:
        if number == 0:
            return party.allreduce(1000)
        rank = party.rank
        return int(party.nccl.ncclBroadcast(source, target, 1000, 7, 0, rank.communicator, rank.stream))

    wrong: dict[str, Callable[[], int]] = {
        "counts 1000 and 2000": lambda: party.allreduce(1000 * (1 + number)),
        "counts 4 Mi and 8 Mi": lambda: party.allreduce(4 * MIB * (1 + number)),
        "float32 and float64": lambda: party.allreduce(100_000, 7 + number),
        "allreduce and broadcast": broadcast_or_allreduce,
    }
    for words, call in wrong.items():
        party.must_connect(words)
        party.barrier(f"called {words}")
        code = call()
        party.row(f"call with {words}", "ncclAllReduce", words, party.nccl.code_name(code))
        _hangs(party, words)
        party.barrier(f"seen {words}")
        party.abort(f"after {words}")


def _hangs(party: Party, words: str) -> None:
    code = party.rank.driver.settle(party.rank.stream, HANG_S)
    seen = f"hangs for {HANG_S:g} s" if code == Code.NOT_READY else party.rank.driver.code_name(code)
    party.row(f"stream with {words}", "cuStreamQuery", words, seen)
    state = party.nccl.code_name(party.nccl.state(party.rank.communicator))
    party.row(f"state with {words}", "ncclCommGetAsyncError", words, state)


def _abort(party: Party) -> None:
    """A collective waits for a peer that never calls: abort by both, revoke, and shrink by the survivor."""
    words = "without the peer"
    for label, end_call in (("abort", _abort_alone), ("revoke", _revoke), ("shrink", _shrink)):
        party.must_connect(label)
        party.allreduce(1000)  # the first call connects the ranks, see _first_call
        party.rank.settle(8)
        party.barrier(f"ready {label}")
        if party.number == 0:
            code = party.allreduce(1000)
            party.row(f"call {words}, {label}", "ncclAllReduce", words, party.nccl.code_name(code), "ncclSuccess")
            _hangs(party, f"{words}, {label}")
        end_call(party)
        if label == "abort":
            party.barrier("aborted")
            party.must_connect("new after abort")
            code = party.allreduce(1000)
            party.rank.settle(8)
            party.common("allreduce after abort", "ncclAllReduce", "", party.nccl.code_name(code), "ncclSuccess")
            party.abort("of an idle communicator")


def _first_call(party: Party) -> None:
    """The first collective of a communicator, without the peer: does it return, and can another thread abort it?"""
    party.must_connect("first call")
    party.barrier("ready first call")
    if party.number == 1:
        party.board.wait("first call seen", 40)
        return

    def call() -> int:
        party.rank.driver.use()
        return party.allreduce(1000)

    words = "the first call, without the peer"
    party.recorder.begin(f"{party.mode}, rank 0: {words}", "ncclAllReduce")
    start = time.perf_counter()
    code = in_thread(call, 4)
    ms = (time.perf_counter() - start) * 1000
    seen = "does not return in 4 s" if code is None else party.nccl.code_name(code)
    party.row(words, "ncclAllReduce", "", seen, ms=ms)
    state = in_thread(lambda: party.nccl.state(party.rank.communicator), 4)
    seen = "does not return in 4 s" if state is None else party.nccl.code_name(state)
    party.row(f"state during {words}", "ncclCommGetAsyncError", "from another thread", seen)
    start = time.perf_counter()
    code = in_thread(lambda: int(party.nccl.ncclCommAbort(party.rank.communicator)), 15)
    ms = (time.perf_counter() - start) * 1000
    seen = "does not return in 15 s" if code is None else party.nccl.code_name(code)
    party.row(f"abort during {words}", "ncclCommAbort", "from another thread", seen, ms=ms)
    party.board.post("first call seen")


def _abort_alone(party: Party) -> None:
    if party.number == 1:
        party.board.wait("aborted by rank 0", 20)
    party.abort("while waiting for the peer" if party.number == 0 else "after the peer's abort")
    if party.number == 0:
        party.board.post("aborted by rank 0")


def _revoke(party: Party) -> None:
    if party.nccl.find("ncclCommRevoke") is not None:
        start = time.perf_counter()
        code = party.nccl.ncclCommRevoke(party.rank.communicator, 0)
        state = party.nccl.until_ready(party.rank.communicator, 5)
        ms = (time.perf_counter() - start) * 1000
        note = f"state {party.nccl.code_name(state)}"
        party.row("revoke while waiting", "ncclCommRevoke", "both ranks", party.nccl.code_name(code), ms=ms, note=note)
        stream = party.rank.driver.code_name(party.rank.driver.settle(party.rank.stream, 3))
        party.row("stream after revoke", "cuStreamQuery", "", stream)
    party.barrier("revoked")
    party.abort("after revoke")


def _shrink(party: Party) -> None:
    shrunk, excluded, abort_flag = c_void_p(), c_int(1), 1
    if party.number == 1:
        party.board.wait("shrunk", 20)
    elif party.nccl.find("ncclCommShrink") is not None:
        party.recorder.begin(f"{party.mode}: shrink by the survivor", "ncclCommShrink")
        start = time.perf_counter()
        code = party.nccl.ncclCommShrink(party.rank.communicator, REF(excluded), 1, REF(shrunk), None, abort_flag)
        ms = (time.perf_counter() - start) * 1000
        party.row(
            "shrink by the survivor", "ncclCommShrink", "ABORT, without rank 1", party.nccl.code_name(code), ms=ms
        )
        if code == 0 and shrunk.value:
            parent, party.rank.communicator = party.rank.communicator, shrunk.value
            code = party.allreduce(1000)
            party.row("allreduce after shrink", "ncclAllReduce", "1 rank", party.nccl.code_name(code), "ncclSuccess")
            party.rank.settle(8)
            party.nccl.must("ncclCommDestroy", shrunk)
            party.rank.communicator = parent
    if party.number == 0:
        party.board.post("shrunk")
    party.abort("after shrink")


def _kill_series(party: Party) -> None:
    """Rank 1 is killed during a series of allreduces; rank 0 looks for a sign of that, aborts, and goes on."""
    party.must_connect("kill")
    count, driver, event = MIB // 4, party.rank.driver, party.rank.driver.event()
    sign = ""
    for step in range(1_000_000):
        code = party.allreduce(count)
        driver.must("cuEventRecord", event, party.rank.stream)
        sign = f"the call returns {party.nccl.code_name(code)}" if code else _wait_or_sign(party, event)
        if sign:
            break
        if step == 20:
            party.board.post(f"running.{party.number}")
    killed = float(party.board.wait("killed", 5))
    ms = (time.monotonic() - killed) * 1000
    party.row("first sign of the killed peer", "ncclCommGetAsyncError", "polled each ms", sign, ms=ms)
    party.row("last error after the kill", "ncclGetLastError", "", party.nccl.last_error(party.rank.communicator))
    party.row("event after the kill", "cuEventQuery", "", driver.code_name(driver.cuEventQuery(event)))
    party.abort("after the peer was killed")
    code = driver.cuMemAlloc_v2(REF(c_uint64()), MIB)
    party.row("allocate after that abort", "cuMemAlloc_v2", "", driver.code_name(code), "CUDA_SUCCESS")
    alone = party.nccl.communicator()
    party.row("communicator of one rank afterwards", "ncclCommInitRank", "1 rank", "ncclSuccess", "ncclSuccess")
    party.nccl.must("ncclCommDestroy", alone)
    _replaced(party)


def _wait_or_sign(party: Party, event: int) -> str:
    """Wait for an event; a text if something else happens first."""
    driver, limit_s = party.rank.driver, 6.0
    while True:
        killed = party.board.peek("killed")
        late = killed is not None and time.monotonic() - float(killed) > limit_s
        code = driver.cuEventQuery(event)
        if code == 0:
            return f"none in {limit_s:g} s: the allreduces succeed" if late else ""
        if code != Code.NOT_READY:
            return f"the event has {driver.code_name(code)}"
        state = party.nccl.state(party.rank.communicator)
        if state not in (Result.Success, Result.InProgress):
            return f"the state is {party.nccl.code_name(state)}"
        if late:
            return f"none in {limit_s:g} s: the event is pending"
        time.sleep(0.001)


def _replaced(party: Party) -> None:
    """A communicator of the survivor and a new process."""
    if party.connect("again") != 0:
        return
    party.rank.driver.upload(party.rank.source, struct.pack("<f", 1.5))
    code = party.allreduce(1)
    if code != 0:
        raise CallError(f"allreduce with the new peer: {party.nccl.code_name(code)}", code)
    party.rank.settle(8)
    seen = struct.unpack("<f", party.rank.driver.download(party.rank.target, 4))[0]
    party.row("allreduce with the new peer", "ncclAllReduce", "1.5 + 1.5", str(seen), "3.0")
    party.barrier("replaced")
    party.nccl.must("ncclCommDestroy", party.rank.communicator)


SCENARIOS: dict[str, Scenario] = {
    "refused": _refused,
    "main": _main,
    "mismatch": _mismatch,
    "abort": _abort,
    "first": _first_call,
    "kill": _kill_series,
    "replace": _replaced,
}
