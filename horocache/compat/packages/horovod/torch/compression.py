"""``horovod.torch.compression``: compressors."""

from horocache.torch import *  # noqa: F403
