"""``horovod.tensorflow.sync_batch_norm``: batch normalization over all ranks."""

from horocache.tensorflow import *  # noqa: F403
