"""The process group of torch.distributed's backend "horocache"."""

from __future__ import annotations

from .data_movement import Movements
from .reductions import Reductions


class HorocacheGroup(Reductions, Movements):
    """Runs the collectives and messages of one group of ranks, on CPU and CUDA tensors.

    torch calls the methods: the functions of torch.distributed from Python; DistributedDataParallel, functional
    collectives and compiled functions from C++. Every method that starts an operation returns a work object, on which
    the caller waits.

    All methods may raise InvalidArgumentError and UnsupportedError for arguments that this rank can judge alone, and
    ShutDownError once the group has been destroyed. Waiting for the work object may raise MismatchError, PeerLostError,
    StallError, ShutDownError or AbortedError. ``docs/explanation/torch_distributed.md`` describes the backend.
    """
