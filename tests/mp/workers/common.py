"""Shared code of the workers, which print their reports as lines of JSON."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import horocache as hc

SCRATCH = Path(os.environ["HC_TEST_SCRATCH"])


def report(what, **facts):
    """Print one line for the test to read."""
    # json escapes line feeds and lone surrogates, so that a report is one line of ASCII.
    sys.stdout.write(json.dumps({"what": what, **facts}) + "\n")
    sys.stdout.flush()


def attempt(what, action):
    """Run ``action``; report its error, or that there was none. Return the error."""
    try:
        action()
    except Exception as error:
        report(
            what,
            error=type(error).__name__,
            bases=[base.__name__ for base in type(error).__mro__],
            text=str(error),
            at=time.time(),
        )
        return error
    report(what, error=None, at=time.time())
    return None


def allreduce_and_check(name, count=1000, value=1.0):
    """Sum over all ranks, checked element by element."""
    result = hc.allreduce(np.full(count, value * (hc.rank() + 1), np.float32), op=hc.Sum, name=name)
    expected = value * hc.size() * (hc.size() + 1) / 2
    if not (result == np.float32(expected)).all():
        report("wrong", name=name, expected=expected, got=result.min().item())
        sys.exit(99)
    return result


def publish(name, text=""):
    """Create a file that is complete when it appears."""
    part = SCRATCH / (name + ".part")
    part.write_text(text)
    part.rename(SCRATCH / name)


def await_file(name, patience_s=30.0):
    limit = time.monotonic() + patience_s
    while not (SCRATCH / name).exists():
        if time.monotonic() > limit:
            sys.exit(f"no rank made the file {name}")
        time.sleep(0.005)
    return (SCRATCH / name).read_text()


def together(what):
    """Wait for all ranks, by files: a collective would itself be a wait that the runtime sees."""
    publish(f"{what}.{hc.rank()}")
    for rank in range(hc.size()):
        await_file(f"{what}.{rank}")


@contextlib.contextmanager
def job(**knobs):
    hc.init(**knobs)
    try:
        yield
    finally:
        hc.shutdown()
