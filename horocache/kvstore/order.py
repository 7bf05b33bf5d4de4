"""The types of stores: how the collectives of a store come into one order on all ranks."""

from __future__ import annotations

from typing import NamedTuple

from horocache.errors import InvalidArgumentError


class Order(NamedTuple):
    """How a store orders its collectives.

    Mamidala et al. (2018) order them by the program: all ranks must use the keys in the same order. The name of a
    collective is then its place in that order, and its key travels with the request, so that a rank which uses another
    key in that place is an error on all ranks instead of a wrong sum.

    Attributes:
        type: the store's type.
        lanes: how many collectives are under way at most; 0: any number, in the order that the daemons agree
            on, whatever order the ranks use.
        waits: a call waits for its collective.
        across: False: there is one worker only, this process.
        serves: the sums are made by servers instead of collectives.
    """

    type: str
    lanes: int = 0
    waits: bool = False
    across: bool = True
    serves: bool = False


_MOST_LANES = 64

# By the names in lower case. The paper has both spellings of "concurrent communicators".
_ALIASES = {
    "concum": "concom",
    "device": "local",
    "horovod": "negotiated",
    "dist": "dist_sync",
    "dist_device_sync": "dist_sync",
    "dist_sync_device": "dist_sync",
}
TYPES = ("negotiated", "depcha", "concom", "funnel", "dist_sync", "local")


def order_of(name: str, lanes: int) -> Order:
    """Return the order of a store's type.

    Args:
        name: one of TYPES, or MXNet's name for it, in any case.
        lanes: of ``concom``.

    Raises:
        InvalidArgumentError: the type is unknown, or ``lanes`` is out of range.
    """
    if not isinstance(name, str):
        raise InvalidArgumentError(f"the type of a store is a str, not {name!r}.")
    lower = name.lower()
    known = _ALIASES.get(lower, lower)
    if known not in TYPES:
        raise InvalidArgumentError(f"unknown type of store {name!r}; there are {', '.join(TYPES)}.")
    if not 1 <= lanes <= _MOST_LANES:
        raise InvalidArgumentError(f"lanes must be from 1 to {_MOST_LANES}; it is {lanes}.")
    return {
        "negotiated": Order("negotiated"),
        "depcha": Order("depcha", lanes=1),
        "concom": Order("concom", lanes=lanes),
        "funnel": Order("funnel", lanes=1, waits=True),
        "dist_sync": Order("dist_sync", serves=True),
        "local": Order("local", across=False),
    }[known]
