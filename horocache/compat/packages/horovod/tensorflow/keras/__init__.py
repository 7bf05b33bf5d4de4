"""``horovod.tensorflow.keras``: the functions of :mod:`horocache.tensorflow.keras`."""

from typing import NoReturn

from horocache.tensorflow.keras import *  # noqa: F403

from horocache.compat.missing import attribute_error

from . import callbacks  # noqa: F401


def __getattr__(name: str) -> NoReturn:
    raise attribute_error("horovod.tensorflow.keras", name)
