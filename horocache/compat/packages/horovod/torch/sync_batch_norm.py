"""``horovod.torch.sync_batch_norm``: batch normalization over all ranks."""

from horocache.torch import *  # noqa: F403
