"""The supervisor: one loop that forwards output, notices the ends of ranks, and ends the other ranks.

Note [How a job ends]
RUNNING lasts until the first rank fails, a signal arrives, or all ranks have ended. GRACE: the survivors see the error
by themselves (or have been sent the signal) and have `grace` seconds to end. TERM: every process of the job that is
left gets SIGTERM, and the same time again; an interrupted job has already had its signal and goes from GRACE to KILL.
KILL: SIGKILL until no process is left. SETTLE: the ranks have ended, and processes that they left behind have a moment
to end by themselves (helpers of multiprocessing do) before they get TERM. The loop blocks only in its one poll().
"""

import contextlib
import enum
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from horocache.base.usage import start_hint
from horocache.launch import sessions
from horocache.launch.cause import read_cause
from horocache.launch.output import Sink, Stream
from horocache.launch.rank import RankProcess, signal_name
from horocache.launch.signals import ENDING, SignalPipe
from horocache.launch.summary import exit_code_of, failure_summary
from horocache.launch.watch import Guardian

_TICK_SECONDS = 0.05  # between two checks of the processes while they are being ended
_KILL_SECONDS = 5.0  # a process that is left this long after SIGKILL hangs in the kernel
_SETTLE_SECONDS = 0.5  # length of the phase SETTLE
_LEFTOVER_SECONDS = 2.0  # longest phase TERM if only processes that ranks left behind remain
_FLUSH_SECONDS = 1.0  # how long an interrupted job waits for a stalled reader of its output
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)  # batch systems announce the end of a time slot with them


class Phase(enum.Enum):
    """The phases of a job: see Note [How a job ends]."""

    RUNNING = enum.auto()
    GRACE = enum.auto()
    TERM = enum.auto()
    KILL = enum.auto()
    SETTLE = enum.auto()
    OVER = enum.auto()


class Job:
    """Supervises the ranks from their start until none of their processes is left.

    Role: the launcher's only thread. Owns the ranks and their streams; borrows the sinks, the guardian, and the folder
    in which ranks note why they failed.
    """

    def __init__(
        self, job: str, size: int, grace: float, sinks: tuple[Sink, Sink], guardian: Guardian, folder: Path
    ) -> None:
        self._job = job
        self._folder = folder
        self._size = size
        self._grace = grace
        self._sinks = sinks
        self._guardian = guardian
        self._ranks: dict[int, RankProcess] = {}  # by pid
        self._sessions: set[int] = set()  # by the leader's pid; those that may have members
        self._failed: list[RankProcess] = []
        self._phase = Phase.RUNNING
        self._deadline = float("inf")
        self._interrupted_by = 0
        self._start_failure = 0

    def run(self, start: Callable[[int], RankProcess]) -> int:
        """Start every rank with ``start``, supervise the job until it is over, and return the exit code."""
        with SignalPipe() as signals:
            self._start_all(start, signals)
            while self._phase is not Phase.OVER:
                self._turn(signals)
            self._finish_output(signals)
        return self._report()

    # ---- starting ----

    def _start_all(self, start: Callable[[int], RankProcess], signals: SignalPipe) -> None:
        for rank in range(self._size):
            for signum in signals.take():
                self._on_signal(signum)
            if self._interrupted_by:
                return
            try:
                process = start(rank)
            except OSError as error:
                self._start_failure = {2: 127, 8: 126, 13: 126}.get(error.errno or 0, 1)
                what = f"{error.strerror} ({error.filename or 'fork'})"
                self._say(f"cannot start rank {rank}: {what}{start_hint(error)}")
                self._enter(Phase.TERM)
                return
            self._ranks[process.pid] = process
            self._sessions.add(process.pid)
            self._guardian.started(process.pid)
        self._reap()  # collects ranks that ended meanwhile

    # ---- the loop ----

    def _turn(self, signals: SignalPipe) -> None:
        streams = {stream.fd: stream for stream in self._streams()}
        poller = select.poll()
        poller.register(signals.fd, select.POLLIN)
        for fd, stream in streams.items():
            if stream.sink.waiting < Sink.FULL:
                poller.register(fd, select.POLLIN)
        writers = {sink.fd: sink for sink in self._sinks if sink.waiting}
        for fd in writers:
            poller.register(fd, select.POLLOUT)
        for fd, _ in poller.poll(self._timeout_ms(streams.values())):
            if fd in streams and streams[fd].open:
                streams[fd].read()
            elif fd in writers:
                self._write(writers[fd])
            self._take(signals)  # after each descriptor: a turn is long if many ranks write much
        now = time.monotonic()
        for stream in streams.values():
            stream.show_partial(now)
        self._advance(now)

    def _timeout_ms(self, streams: Iterable[Stream]) -> float | None:
        due = [stream.show_at for stream in streams if stream.show_at is not None]
        if self._deadline != float("inf"):
            due.append(self._deadline)
        if self._phase not in (Phase.RUNNING, Phase.GRACE):
            due.append(time.monotonic() + _TICK_SECONDS)
        return max(0.0, (min(due) - time.monotonic()) * 1000 + 1) if due else None

    def _streams(self) -> list[Stream]:
        return [stream for rank in self._ranks.values() for stream in (rank.out, rank.err) if stream.open]

    def _write(self, sink: Sink) -> None:
        sink.write_some()
        self._say_if_broken(sink)

    def _say_if_broken(self, sink: Sink) -> None:
        if sink.broken:
            name = "stdout" if sink is self._sinks[0] else "stderr"
            why = "its reader is gone" if sink.broken.errno == errno.EPIPE else sink.broken.strerror
            self._say(f"{name} takes no more output ({why}): the ranks' output there is dropped, the job goes on")

    # ---- what happens ----

    def _take(self, signals: SignalPipe) -> None:
        taken = signals.take()
        for signum in taken:
            self._on_signal(signum)
        if taken:  # after any signal: a full pipe drops signals, and SIGCHLD may be among them
            self._reap()

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            return
        if signum in _FORWARDED:
            self._forward(signum)
        elif signum == signal.SIGTSTP:
            self._suspend()
        elif not self._interrupted_by:
            self._interrupt(signum)
        elif signum != signal.SIGHUP and self._phase is not Phase.KILL:  # a closing terminal may add a SIGHUP
            self._say(f"got {signal_name(signum)} again; killing the ranks")
            self._enter(Phase.KILL)

    def _interrupt(self, signum: int) -> None:
        self._interrupted_by = signum
        if self._phase in (Phase.TERM, Phase.KILL):  # the ranks are being ended already; the signal asks for haste
            self._enter(Phase.KILL)
            return
        self._say(f"got {signal_name(signum)}; passing it to the ranks, which have {self._grace:g} s to end")
        self._forward(signum)
        self._enter(Phase.GRACE)

    def _suspend(self) -> None:
        # SIGSTOP, as the kernel ignores SIGTSTP in the ranks' sessions, which have no terminal.
        self._forward(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._forward(signal.SIGCONT)

    def _forward(self, signum: int) -> None:
        for rank in self._ranks.values():
            rank.forward(signum)

    def _reap(self) -> None:
        ended, now = [], time.monotonic()
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._ranks:
                    self._ranks[pid].reaped(status, now)
                    ended.append(self._ranks[pid])
                elif pid == self._guardian.pid:
                    self._guardian.reaped(status)
                    self._say("the guardian process is gone: if horocacherun is killed now, ranks may be left behind")
        # Of ranks that ended at the same time, a killed rank is the cause; a rank that exited saw the cause.
        for rank in sorted(ended, key=lambda rank: (not rank.killed, rank.rank)):
            self._on_end(rank)

    def _on_end(self, rank: RankProcess) -> None:
        rank.stopped_by_launcher = self._phase in (Phase.TERM, Phase.KILL)
        if not sessions.members({rank.pid}, ""):
            self._sessions.discard(rank.pid)
            self._guardian.ended(rank.pid)
        if rank.status == 0 or self._interrupted_by:
            return
        rank.cause = read_cause(self._folder, rank.rank)
        self._failed.append(rank)
        if self._phase is Phase.RUNNING:
            rank.out.drain_now()
            rank.err.drain_now()
            others = sum(other.alive for other in self._ranks.values())
            if others:
                self._say(f"rank {rank.rank} {rank.how_it_ended()}; {_others(others)} {self._grace:g} s to end")
            self._enter(Phase.GRACE)

    # ---- phases ----

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        seconds = {
            Phase.GRACE: self._grace,
            Phase.TERM: self._grace,
            Phase.KILL: _KILL_SECONDS,
            Phase.SETTLE: _SETTLE_SECONDS,
        }[phase]
        if phase is Phase.TERM and not self._any_alive():
            seconds = min(seconds, _LEFTOVER_SECONDS)
        self._deadline = time.monotonic() + seconds
        if phase is Phase.TERM:
            sessions.send(self._members(), signal.SIGTERM)
        elif phase is Phase.KILL:
            sessions.send(self._members(), signal.SIGKILL)

    def _advance(self, now: float) -> None:
        late = now >= self._deadline
        if self._phase in (Phase.RUNNING, Phase.GRACE):
            if not self._any_alive():
                self._enter(Phase.SETTLE)
            elif late:
                self._enter(Phase.KILL if self._interrupted_by else Phase.TERM)
                return
            else:
                return
        left = self._members()
        if not left and not self._any_alive():
            self._phase = Phase.OVER
        elif self._phase is Phase.SETTLE and late:
            self._say(f"the ranks have ended and left {len(left)} behind, which horocacherun ends: {_names(left)}")
            self._enter(Phase.TERM)
        elif self._phase is Phase.TERM and late:
            self._enter(Phase.KILL)
        elif self._phase is Phase.KILL and late:
            self._say(f"cannot be killed, stuck in the kernel: {_names(left)}")
            self._phase = Phase.OVER
        elif self._phase is Phase.KILL:
            sessions.send(left, signal.SIGKILL)  # to processes that were started meanwhile, too

    def _any_alive(self) -> bool:
        return any(rank.alive for rank in self._ranks.values())

    def _members(self) -> list[sessions.Member]:
        return sessions.members(self._sessions, self._job)

    # ---- the end ----

    def _finish_output(self, signals: SignalPipe) -> None:
        for stream in self._streams():
            stream.drain()
        if self._failed and not self._interrupted_by and not self._start_failure:
            for line in failure_summary(self._failed, self._size):
                self._sinks[1].line(line)
        for sink in self._sinks:  # stderr is last, as it gets the message about a broken stdout
            if sink.waiting:
                self._flush(sink, signals)
                self._say_if_broken(sink)

    def _flush(self, sink: Sink, signals: SignalPipe) -> None:
        """Write the waiting bytes; once a signal has arrived, give a stalled reader ``_FLUSH_SECONDS`` for it."""
        poller = select.poll()
        poller.register(signals.fd, select.POLLIN)
        poller.register(sink.fd, select.POLLOUT)
        deadline = time.monotonic() + _FLUSH_SECONDS if self._interrupted_by else float("inf")
        while sink.waiting and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poller.poll(left * 1000 if left != float("inf") else None):
                if fd == sink.fd:
                    sink.write_some()
            for signum in signals.take():
                if signum in ENDING:
                    self._interrupted_by = self._interrupted_by or signum
                    deadline = min(deadline, time.monotonic() + _FLUSH_SECONDS)

    def _report(self) -> int:
        if self._start_failure:
            return self._start_failure
        if self._interrupted_by:
            return 128 + self._interrupted_by
        return exit_code_of(self._failed) if self._failed else 0

    def _say(self, text: str) -> None:
        self._sinks[1].line("horocacherun: " + text)


def _others(count: int) -> str:
    return "the other rank has" if count == 1 else f"the other {count} ranks have"


def _names(left: Sequence[sessions.Member]) -> str:
    shown = ", ".join(f"{member.name} (pid {member.pid})" for member in left[:5])
    return shown + (f" and {len(left) - 5} more" if len(left) > 5 else "")
