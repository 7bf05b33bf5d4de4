"""Backends that a program writes in Python: the base class, and their registration.

A backend moves the data of operations on tensors in the host's memory. horocache does everything else: the ranks agree
on each operation, in one order for all backends; several tensors are packed into one array; factors and averages are
computed; and of operations on rows each rank knows all numbers of rows. The selector takes the backend like any other:
by ``backend="NAME"``, by ``HOROCACHE_SELECT`` and by tuning tables.
"""

from __future__ import annotations

from horocache.user_backends.backend import Backend, Call, Group
from horocache.user_backends.registry import (
    register_backend,
    registered_backends,
    shipped_backends,
    unregister_backend,
)

__all__ = [
    "Backend",
    "Call",
    "Group",
    "register_backend",
    "registered_backends",
    "shipped_backends",
    "unregister_backend",
]
