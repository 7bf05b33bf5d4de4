"""``horovod.torch.mpi_ops``: the operations."""

from horocache.torch import *  # noqa: F403
