"""Runs a function on N ranks, each in a process of its own, and collects the results."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from horocache.collectives import object_collectives
from horocache.errors import InvalidArgumentError
from horocache.testing import _worker
from horocache.testing.faults import Fault, faults_text

# Modules that the server imports, if they are installed. torch imports torch._dynamo when the first optimizer is made.
_SLOW_IMPORTS = ("numpy", "torch", "torch._dynamo")
_GRACE_S = 2.0  # seconds for a rank to end by itself after its answer, or to print its stacks


@dataclass
class Outcome:
    """The result of one rank.

    It has a ``value`` if the function returned, an ``error`` if it raised, and neither if the process died or did not
    answer in time.
    """

    rank: int
    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    finished: bool = False
    late: bool = False
    exit_code: int | None = None  # if negative, the signal that ended the process
    output: str = field(default="", repr=False)  # stdout and stderr of the rank

    @property
    def ok(self) -> bool:
        """True if the function returned."""
        return self.finished and self.error is None

    def describe(self) -> str:
        """Return a text that says how the rank ended, with the end of its output if it failed."""
        if self.error is not None:
            how = f"raised\n{self.trace}"
        elif self.finished:
            how = "returned"
        elif self.late:
            how = "did not come back in time and was killed"
        else:
            how = f"ended with code {self.exit_code} before the function returned"
        words = (
            f"\n--- output of rank {self.rank}:\n{self.output[-4000:]}" if self.output.strip() and not self.ok else ""
        )
        return f"rank {self.rank} {how}{words}"


class RanksFailed(AssertionError):  # noqa: N818  (reads as what a test reports)
    """A rank did not return. The message says how every rank ended; ``outcomes`` has the outcomes of all ranks."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__("\n".join(outcome.describe() for outcome in outcomes))
        self.outcomes = outcomes


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *,
    args: Sequence[Any] = (),
    timeout: float = 60.0,
    knobs: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    faults: Iterable[Fault] = (),
    preload: Sequence[str] = (),
    check: bool = True,
) -> list[Any]:
    """Run ``function(*args)`` on ``size`` ranks of one job on this host.

    The ranks are forked from a server that has imported modules and done nothing else, so they start fast and share
    no state with the test. Each rank has one compute thread and the environment of a launched rank. The function must
    call ``init()`` itself. No process of the job is left when this function returns or raises.

    Args:
        function: any function, also a local one; the function and ``args`` are pickled by value.
        size: the number of ranks.
        args: the function's arguments, the same for all ranks.
        timeout: seconds for the whole job. Ranks that are late print their stacks and are killed.
        knobs: settings by name, passed as ``HOROCACHE_<NAME>``.
        environment: more environment variables of the ranks.
        faults: the faults to inject, each a :class:`~horocache.testing.Fault`.
        preload: more modules that the server imports, so that the ranks need not import them; a running server that
            lacks one is restarted. The server always imports NumPy and torch if they are installed.
        check: True raises RanksFailed if a rank did not return.

    Returns:
        The function's results in rank order; with ``check=False``, an :class:`Outcome` for each rank.

    Raises:
        RanksFailed: with ``check``, if a rank raised, died or was late.
        InvalidArgumentError: ``size`` is below 1.
    """
    if size < 1:
        raise InvalidArgumentError(f"a job needs at least one rank, not {size}.")
    variables = {f"HOROCACHE_{name.upper()}": _text(value) for name, value in (knobs or {}).items()}
    text = faults_text(faults)
    if text:
        variables["HOROCACHE_FAULT"] = text
    variables |= environment or {}
    payload = _dumps_by_value(function, tuple(args))
    context = multiprocessing.get_context("forkserver")
    _start_server(context, preload)
    with TemporaryDirectory(prefix="horocache-ranks-") as folder:
        job = _Job(context, size, payload, variables, Path(folder), timeout)
        try:
            outcomes = job.collect()
        finally:
            job.end()
    if check:
        if not all(outcome.ok for outcome in outcomes):
            raise RanksFailed(outcomes)
        return [outcome.value for outcome in outcomes]
    return list(outcomes)


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _dumps_by_value(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle a call; the function's module travels by value, except for modules of horocache.

    A test runner may give a test module a name by which the ranks cannot import it.
    """
    module = sys.modules.get(function.__module__)
    by_value = module is not None and module.__name__ != "__main__" and not module.__name__.startswith("horocache.")
    return object_collectives.dumps((function, args), by_value=module if by_value else None)


def _start_server(context: Any, preload: Sequence[str]) -> None:
    # One compute thread, because ranks share the cores, and the server must not have a thread pool when it forks.
    had = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        installed = [name for name in _SLOW_IMPORTS if importlib.util.find_spec(name.partition(".")[0]) is not None]
        wanted = [*installed, *preload, "horocache.testing._worker", "horocache.testing._frozen"]
        if not _server_has(wanted):
            context.set_forkserver_preload(wanted)
        forkserver.ensure_running()
    finally:
        if had is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = had


def _server_has(wanted: Sequence[str]) -> bool:
    """Return True if a server runs that has imported all modules in ``wanted``; end a server that has not."""
    running: Any = forkserver._forkserver
    if running._forkserver_pid is None:
        return False
    if set(wanted) <= set(running._preload_modules):
        return True
    running._stop()
    return False


class _Job:
    """The processes of one call of :func:`run_ranks`.

    Role: owned by the call; every process that it starts has ended when :meth:`end` returns.
    """

    def __init__(
        self, context: Any, size: int, payload: bytes, variables: Mapping[str, str], folder: Path, timeout: float
    ) -> None:
        self._outcomes = [Outcome(rank) for rank in range(size)]
        self._logs = [folder / f"rank{rank}.log" for rank in range(size)]
        self._processes: list[ForkServerProcess] = []
        self._pipes: dict[Connection, int] = {}
        job = f"test-{uuid.uuid4().hex[:12]}"
        for rank in range(size):
            receiver, sender = context.Pipe(duplex=False)
            mine = {**variables, **_rank_environment(rank, size, job)}
            process = context.Process(
                target=_worker.main, args=(sender, payload, mine, str(self._logs[rank]), timeout), name=f"rank-{rank}"
            )
            process.start()
            sender.close()
            self._processes.append(process)
            self._pipes[receiver] = rank
        # The time starts here, because the first start waits for the server, which imports torch.
        self._deadline = time.monotonic() + timeout

    def collect(self) -> list[Outcome]:
        """Wait until every rank has answered or ended, at most until the deadline."""
        while self._pipes:
            left = self._deadline - time.monotonic()
            ready = wait(list(self._pipes), max(left, 0.0))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                self._receive(self._pipes.pop(pipe), pipe)
        for rank in self._pipes.values():
            self._outcomes[rank].late = True
        return self._outcomes

    def _receive(self, rank: int, pipe: Connection) -> None:
        outcome = self._outcomes[rank]
        try:
            answer = pipe.recv_bytes()
        except EOFError:
            self._processes[rank].join(_GRACE_S)
            outcome.exit_code = self._processes[rank].exitcode
            return
        finally:
            pipe.close()
        outcome.value, outcome.error, outcome.trace = object_collectives.loads(answer)
        outcome.finished = True

    def end(self) -> None:
        """Let finished ranks end by themselves, kill the others, and read the ranks' output."""
        # A rank that has answered may still be shutting down. A late rank prints its stacks at the deadline.
        limit = max(self._deadline, time.monotonic()) + _GRACE_S if not self._pipes else time.monotonic() + _GRACE_S
        for process in self._processes:
            process.join(max(0.0, limit - time.monotonic()))
        for process, outcome in zip(self._processes, self._outcomes, strict=True):
            if process.is_alive():
                process.kill()
                process.join()
            elif outcome.exit_code is None:
                outcome.exit_code = process.exitcode
            process.close()
        for pipe in self._pipes:
            pipe.close()
        for log, outcome in zip(self._logs, self._outcomes, strict=True):
            if log.exists():
                outcome.output = log.read_text(errors="replace")


def _rank_environment(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "HOROCACHE_RANK": str(rank),
        "HOROCACHE_SIZE": str(size),
        "HOROCACHE_LOCAL_RANK": str(rank),
        "HOROCACHE_LOCAL_SIZE": str(size),
        "HOROCACHE_CROSS_RANK": "0",
        "HOROCACHE_CROSS_SIZE": "1",
        "HOROCACHE_JOB_ID": job,
    }
