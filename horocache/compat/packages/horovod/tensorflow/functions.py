"""``horovod.tensorflow.functions``: broadcasts of variables and objects."""

from horocache.tensorflow import *  # noqa: F403
