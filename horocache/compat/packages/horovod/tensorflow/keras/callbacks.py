"""``horovod.tensorflow.keras.callbacks``: callbacks for ``fit``."""

from horocache.keras.callbacks import *  # noqa: F403
