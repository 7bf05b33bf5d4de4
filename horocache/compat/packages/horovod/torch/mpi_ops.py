"""``horovod.torch.mpi_ops``: the operations."""

from horocache.torch import *  # noqa: F403

from ..common.basics import HorovodBasics
from ..common.util import gpu_available, num_rank_is_power_2  # noqa: F401

_basics = HorovodBasics(__file__, "mpi_lib_v2")
