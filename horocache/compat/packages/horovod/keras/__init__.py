"""``horovod.keras``: the functions of :mod:`horocache.keras`."""

from typing import NoReturn

from horocache.keras import *  # noqa: F403

from horocache.compat.missing import attribute_error

from . import callbacks  # noqa: F401


def __getattr__(name: str) -> NoReturn:
    raise attribute_error("horovod.keras", name)
