"""``horovod.torch.mpi_ops``: the operations."""

from horocache.torch import *  # noqa: F403

from ..common.basics import HorovodBasics

_basics = HorovodBasics(__file__, "mpi_lib_v2")
