"""``horovod.tensorflow.mpi_ops``: the operations."""

from horocache.tensorflow import *  # noqa: F403
