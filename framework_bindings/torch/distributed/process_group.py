"""The process group of torch.distributed's backend "horocache"."""

from __future__ import annotations

from horocache.torch.distributed.data_movement import Movements
from horocache.torch.distributed.reductions import Reductions


class HorocacheGroup(Reductions, Movements):
    """Runs the collectives and messages of one group of ranks, for CPU tensors.

    torch calls its methods: the functions of torch.distributed from Python; DistributedDataParallel, functional
    collectives and compiled functions from C++. Every method that starts an operation returns a work to wait for.

    What all methods may raise: InvalidArgumentError and UnsupportedError for arguments that this rank can judge alone,
    ShutDownError once the group has been destroyed; and, when the work is waited for, MismatchError, PeerLostError,
    StallError, ShutDownError or AbortedError. ``docs/explanation/torch_distributed.md`` has the whole story.
    """
