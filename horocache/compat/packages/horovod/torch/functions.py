"""``horovod.torch.functions``: broadcasts of parameters, optimizer state and objects."""

from horocache.torch import *  # noqa: F403
