"""One rank's process."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from horocache.launch.cause import Cause
from horocache.launch.lifeline import Lifeline
from horocache.launch.output import Prefix, Sink, Stream

_HINTS: dict[int, str] = {
    signal.SIGKILL: "if no user did that, the kernel ran out of memory: see dmesg and the container's limit",
    signal.SIGBUS: "often a full /dev/shm, or a mapped file that was cut short",
    signal.SIGSEGV: "PYTHONFAULTHANDLER=1 shows where",
}


_NO_HOROVOD = "No module named 'horovod'"
_HINT_NO_HOROVOD = (
    "programs can import horovod where the job is started with --horovod, which adds a folder to PYTHONPATH; where a "
    "script sets PYTHONPATH anew or Python ignores it, run 'horocache compat --install' once"
)


class RankProcess:
    """The leader of one rank's session, its two streams, and how it ended.

    Owned by the job's supervisor, which reaps it.
    """

    def __init__(self, rank: int, process: "subprocess.Popen[bytes]", out: Stream, err: Stream) -> None:
        self.rank = rank
        self.pid = process.pid
        self.out = out
        self.err = err
        self.started = time.monotonic()
        self.ended: float | None = None
        self.status: int | None = None  # exit code, or the negated signal; None until it is reaped
        self.cause: Cause | None = None  # the failure that the rank noted
        self.stopped_by_launcher = False  # True if the launcher had told the rank to end before it ended
        self._process = process

    @property
    def alive(self) -> bool:
        """True until the rank is reaped."""
        return self.status is None

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 + n for signal n."""
        status = self.status or 0
        return 128 - status if status < 0 else status

    @property
    def killed(self) -> bool:
        """True if a signal ended the rank."""
        return self.status is not None and self.status < 0

    def reaped(self, wait_status: int, now: float) -> None:
        """Record the end of the process, which the supervisor has reaped at ``now``."""
        self.status = os.waitstatus_to_exitcode(wait_status)
        self.ended = now
        self._process.returncode = self.status

    def forward(self, signum: int) -> None:
        """Send a signal to the leader's process group, as a terminal would."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):  # ended, not yet reaped
                os.killpg(self.pid, signum)

    def how_it_ended(self) -> str:
        """Describe the end in words."""
        if self.killed:
            number = -(self.status or 0)
            return f"was killed by {signal_name(number)} (signal {number})"
        return f"exited with code {self.status}"

    def hint(self) -> str:
        """Return the usual reason for such an end, or advice; empty if there is none."""
        if any(_NO_HOROVOD in line for line in self.err.tail.lines()):
            return _HINT_NO_HOROVOD
        return _HINTS.get(-(self.status or 0), "")


def start_rank(
    rank: int,
    program: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cpus: set[int] | None,
    lifeline: Lifeline,
    sinks: tuple[Sink, Sink],
    prefix: Prefix,
    output_folder: Path | None,
) -> RankProcess:
    """Start one rank in a session of its own; raises OSError if it cannot be started."""
    copies = []
    for name in ("stdout", "stderr"):
        if output_folder is not None:
            output_folder.mkdir(parents=True, exist_ok=True)
            copies.append(_new_file(output_folder / name))
    with contextlib.ExitStack() as stack:
        stdin = 0 if rank == 0 and _is_open(0) else stack.enter_context(Path(os.devnull).open("rb")).fileno()
        if cpus is not None:  # the rank inherits it; setting it in the child would need code between fork and exec
            own = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cpus)
            stack.callback(os.sched_setaffinity, 0, own)
        end = lifeline.new_end()
        stack.callback(os.close, end)
        process = subprocess.Popen(
            list(command),
            executable=program,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            pass_fds=(end,),
        )
        with contextlib.suppress(OSError):  # an emulated kernel may lack it: then only the guardian watches
            lifeline.tie(end, process.pid)
    streams = []
    for index, pipe in enumerate((process.stdout, process.stderr)):
        assert pipe is not None
        fd = os.dup(pipe.fileno())
        os.set_inheritable(fd, False)
        pipe.close()
        streams.append(Stream(fd, sinks[index], prefix, copies[index] if copies else None))
    return RankProcess(rank, process, streams[0], streams[1])


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL or SIGRTMIN+1."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname()


def _new_file(path: Path) -> BinaryIO:
    """Create a file; removes anything of that name, such as a FIFO or a link, unopened."""
    path.unlink(missing_ok=True)
    return path.open("xb", buffering=0)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
