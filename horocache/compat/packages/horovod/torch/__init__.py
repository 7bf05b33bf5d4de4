"""``horovod.torch``: the functions of :mod:`horocache.torch`."""

from typing import NoReturn

from horocache.torch import *  # noqa: F403

from horocache.compat.missing import attribute_error

from ..common.util import check_extension  # noqa: F401
from . import compression, functions, mpi_ops, optimizer, sync_batch_norm  # noqa: F401


def __getattr__(name: str) -> NoReturn:
    raise attribute_error("horovod.torch", name)
