"""Two ranks on one GPU: how they meet, how a scenario's processes and threads are started, and what a rank holds."""

from __future__ import annotations

import ctypes
import tempfile
import threading
import time
from collections.abc import Callable
from ctypes import c_void_p
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.nccl import Nccl, Rank, Result, UniqueId
from benchmarks.gpu.record import CallError, Checks, Recorder, in_thread
from benchmarks.gpu.session import Helper, NcclChecks, Outcome, Session

RANKS = 2
SIZE = 64 << 20  # bytes of each buffer
COMMON = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
}
SHARED_GPU = COMMON | {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_MODULE_LOADING": "EAGER"}


class Board:
    """Notes that the ranks leave for each other, as files of a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def post(self, name: str, data: bytes = b"") -> None:
        """Leave a note."""
        draft = self._folder / f".{name}.{threading.get_ident()}"
        draft.write_bytes(data)
        draft.rename(self._folder / name)

    def peek(self, name: str) -> bytes | None:
        """The note, if it is there."""
        path = self._folder / name
        return path.read_bytes() if path.exists() else None

    def wait(self, name: str, limit_s: float = 30.0) -> bytes:
        """The note, once it is there.

        Raises:
            TimeoutError: the note is not there in time.
        """
        deadline = time.monotonic() + limit_s
        while (data := self.peek(name)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no note {name} after {limit_s:g} s")
            time.sleep(0.001)
        return data


@dataclass
class Party:
    """One of the two ranks."""

    recorder: Recorder
    checks: NcclChecks
    rank: Rank
    board: Board
    mode: str

    @property
    def number(self) -> int:
        """The rank."""
        return self.rank.rank

    @property
    def nccl(self) -> Nccl:
        """The library."""
        return self.checks.library

    def row(
        self, name: str, call: str, words: str, seen: object, expect: str | None = None, ms: float = 0, note: str = ""
    ) -> None:
        """A row with the mode and the rank in its name."""
        self.checks.fact(f"{self.mode}, rank {self.number}: {name}", call, words, seen, expect, ms=ms, note=note)

    def common(
        self, name: str, call: str, words: str, seen: str, expect: str | None = None, ms: float = 0, note: str = ""
    ) -> None:
        """A row of rank 0; of another rank only if it deviates."""
        if self.number == 0 or (expect is not None and seen != expect):
            self.row(name, call, words, seen, expect, ms, note)

    def barrier(self, name: str) -> None:
        """Wait for the other rank on the host."""
        self.board.post(f"{name}.{self.number}")
        for other in range(RANKS):
            self.board.wait(f"{name}.{other}")

    def connect(self, label: str, expect: str | None = "ncclSuccess") -> int:
        """Make a communicator of both ranks; the row has the time of initialization."""
        if self.number == 0:
            self.board.post(f"id.{label}", bytes(self.nccl.unique_id().internal))
        unique_id, made = UniqueId.from_buffer_copy(self.board.wait(f"id.{label}")), c_void_p()
        self.recorder.begin(f"{self.mode}, rank {self.number}: init {label}", "ncclCommInitRank")
        start = time.perf_counter()
        code = int(self.nccl.ncclCommInitRank(ctypes.byref(made), RANKS, unique_id, self.number))
        ms = (time.perf_counter() - start) * 1000
        self.rank.communicator = made.value or 0
        note = "" if code == 0 else self.nccl.last_error()
        self.row(f"init, {label}", "ncclCommInitRank", "2 ranks", self.nccl.code_name(code), expect, ms, note)
        return code

    def must_connect(self, label: str) -> None:
        """Make a communicator of both ranks.

        Raises:
            CallError: initialization failed.
        """
        code = self.connect(label)
        if code != 0:
            raise CallError(f"init {label}: {self.nccl.code_name(code)}", code)

    def abort(self, words: str, limit_s: float = 8.0) -> None:
        """Abort the communicator, in a thread, since an abort may hang.

        Raises:
            CallError: the abort did not return in time.
        """
        self.recorder.begin(f"{self.mode}, rank {self.number}: abort {words}", "ncclCommAbort")
        start, communicator = time.perf_counter(), self.rank.communicator

        def body() -> int:
            self.rank.driver.use()
            return int(self.nccl.ncclCommAbort(communicator))

        code = in_thread(body, limit_s)
        ms = (time.perf_counter() - start) * 1000
        seen = f"does not return in {limit_s:g} s" if code is None else self.nccl.code_name(code)
        self.row(f"abort {words}", "ncclCommAbort", words, seen, "ncclSuccess", ms)
        if code is None:
            raise CallError("ncclCommAbort does not return", Result.InternalError)
        stream = self.rank.driver.code_name(self.rank.driver.settle(self.rank.stream, 3))
        self.row(f"stream after abort {words}", "cuStreamQuery", words, stream, "CUDA_SUCCESS")

    def allreduce(self, count: int, kind: int = 7, operation: int = 0) -> int:
        """Call ncclAllReduce from the first into the second buffer; by default a sum of float32."""
        rank = self.rank
        return int(
            self.nccl.ncclAllReduce(rank.source, rank.target, count, kind, operation, rank.communicator, rank.stream)
        )


Scenario = Callable[[Party], None]


def join(session: Session, folder: str, mode: str, number: int, scenario: Scenario) -> None:
    """Run a scenario as one rank of a process of its own."""
    driver = session.cuda().library
    checks = Checks(session.recorder, Nccl(session.nccl_path))
    party = Party(session.recorder, checks, Rank(driver, checks.library, RANKS, number, SIZE), Board(folder), mode)
    session.run((scenario,), party)


def join_threads(session: Session, folder: str, mode: str, scenario: Scenario) -> None:
    """Run a scenario as both ranks, each in a thread of its own."""
    driver = session.cuda().library
    checks = Checks(session.recorder, Nccl(session.nccl_path))

    def body(number: int) -> None:
        driver.use()
        rank = Rank(driver, checks.library, RANKS, number, SIZE)
        session.run((scenario,), Party(session.recorder, checks, rank, Board(folder), mode))

    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def start(session: Session, mode: str, scenario: str, folder: str, environment: dict[str, str]) -> list[Helper]:
    """Start the processes of a scenario."""
    if mode == "threads":
        return [session.helper("two_ranks:both_ranks", environment, scenario=scenario, folder=folder, mode=mode)]
    return [start_rank(session, mode, scenario, folder, environment, number) for number in range(RANKS)]


def start_rank(
    session: Session, mode: str, scenario: str, folder: str, environment: dict[str, str], number: int
) -> Helper:
    """Start the process of one rank; with mode ``hosts`` each rank believes to be on a host of its own."""
    host = {"NCCL_HOSTID": f"host{number}"} if mode == "hosts" else {}
    arguments = {"scenario": scenario, "folder": folder, "mode": mode, "number": number}
    return session.helper("two_ranks:one_rank", environment | host, **arguments)


def run(session: Session, mode: str, scenario: str, environment: dict[str, str], limit_s: float) -> bool:
    """Run a scenario; True if its processes came to their end."""
    with tempfile.TemporaryDirectory(prefix="calibrate") as folder:
        outcomes = [helper.finish(limit_s) for helper in start(session, mode, scenario, folder, environment)]
    report(session, mode, scenario, outcomes)
    return all(outcome.status == 0 for outcome in outcomes)


def report(session: Session, mode: str, scenario: str, outcomes: list[Outcome]) -> None:
    """Rows for how the processes of a scenario ended."""
    for number, outcome in enumerate(outcomes):
        name = f"{mode}: process {number} of scenario {scenario}"
        session.recorder.add(name, "", "", outcome.text, "exit status 0", outcome.seconds * 1000)
