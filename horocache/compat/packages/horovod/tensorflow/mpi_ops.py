"""``horovod.tensorflow.mpi_ops``: the operations."""

from horocache.tensorflow import *  # noqa: F403

from ..common.basics import HorovodBasics

_basics = HorovodBasics(__file__, "mpi_lib")
