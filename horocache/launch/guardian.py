"""Ends a job's processes when its launcher is gone, even by SIGKILL.

A separate script, started as ``python -I -S guardian.py for-launcher PID`` with an empty environment, in its own
session, with its output closed. Nothing about it looks like a part of the job, and it holds no terminal or pipe of the
user's. It reads JSON lines from its standard input, whose only other end is in the launcher. ``{"done": true}`` ends
it; an end of file without that message means that the launcher is gone.

Its state is the job's id, the leaders' sessions that may have members, the seconds to wait between TERM and KILL, and a
directory of the job, which it removes when the launcher is gone.
"""

import contextlib
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horocache.launch import sessions
else:
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # -I removes it from the path
    import sessions


def main() -> int:
    """Follow the launcher's messages until it is done or gone."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    job, grace, directory = "", 5.0, ""
    leaders: set[int] = set()
    for line in sys.stdin.buffer:
        try:
            message = json.loads(line)
        except ValueError:
            break  # the launcher died inside a write: this last line is incomplete
        if message.get("done"):
            return 0
        job = message.get("job", job)
        grace = message.get("grace", grace)
        directory = message.get("directory", directory)
        leaders |= {message["started"]} if "started" in message else set()
        leaders -= {message["ended"]} if "ended" in message else set()
    left = sessions.end(leaders, job, grace) if job else []
    if directory:
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path(f"{directory}.lock").unlink()  # see Note [Ownership of a temporary folder] in folders.py
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
