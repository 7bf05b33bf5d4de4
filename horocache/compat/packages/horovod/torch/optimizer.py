"""``horovod.torch.optimizer``: the optimizer."""

from horocache.torch import *  # noqa: F403
