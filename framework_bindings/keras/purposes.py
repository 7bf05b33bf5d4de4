"""What becomes of an optimizer that Keras makes from the configuration of a distributed one."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

COPY = "distributed, in a copy"
FILE = "plain, out of a file"
CALLER = "plain, as the caller distributes it"

_purpose = contextvars.ContextVar("horocache_purpose", default=COPY)


def purpose() -> str:
    """What becomes of it now."""
    return _purpose.get()


@contextmanager
def wanted(value: str) -> Iterator[None]:
    """Make it that."""
    before = _purpose.set(value)
    try:
        yield
    finally:
        _purpose.reset(before)
