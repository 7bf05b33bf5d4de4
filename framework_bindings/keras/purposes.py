"""The purpose for which Keras creates an optimizer from the configuration of a distributed one.

The purpose decides whether the new optimizer is distributed. It applies to the current context (thread or task).
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

COPY = "distributed, in a copy"
FILE = "plain, out of a file"
CALLER = "plain, as the caller distributes it"

_purpose = contextvars.ContextVar("horocache_purpose", default=COPY)


def purpose() -> str:
    """Return the current purpose: COPY, FILE or CALLER."""
    return _purpose.get()


@contextmanager
def wanted(value: str) -> Iterator[None]:
    """Set the purpose to ``value`` within a ``with`` block."""
    before = _purpose.set(value)
    try:
        yield
    finally:
        _purpose.reset(before)
