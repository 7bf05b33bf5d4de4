"""The launcher's end of the guardian: see guardian.py."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from horocache.base.usage import UsageError, start_hint
from horocache.launch.lifeline import Lifeline

_SCRIPT = Path(__file__).with_name("guardian.py")


class Guardian:
    """A guardian process and the pipe that only this process holds.

    Owned by the job's supervisor, which reaps every child and calls `reaped` when the guardian was among them. Raises
    UsageError if the process cannot be started.
    """

    def __init__(self, job: str, grace: float, directory: str, lifeline: Lifeline) -> None:
        # An inherited environment would carry the id of an outer job if horocacherun runs inside one, and that job's
        # end would then also end the guardian.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SCRIPT), "for-launcher", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
                pass_fds=(lifeline.held,),
            )
        except OSError as error:
            what = f"cannot start the guardian process, and so no rank: {error.strerror}{start_hint(error)}"
            raise UsageError(what, 1) from error
        self._lost = False
        self._tell({"job": job, "grace": grace, "directory": directory})

    @property
    def pid(self) -> int:
        """The process id of the guardian."""
        return self._process.pid

    def started(self, leader: int) -> None:
        """Tell the guardian to end the session of ``leader`` if the launcher dies."""
        self._tell({"started": leader})

    def ended(self, leader: int) -> None:
        """Tell the guardian to forget a session without members, before another process gets its number."""
        self._tell({"ended": leader})

    def reaped(self, status: int) -> None:
        """Record that the supervisor has reaped the guardian."""
        self._process.returncode = status
        self._lost = True

    def dismiss(self) -> None:
        """Tell the guardian that the job is done, and wait for its end."""
        self._tell({"done": True})
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            try:
                pipe.close()
            except BrokenPipeError:
                self._lost = True
        if not self._lost:
            self._process.wait()

    def _tell(self, message: dict[str, Any]) -> None:
        if self._lost or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._lost = True  # the supervisor finds the process dead and reports it
