"""``horovod.tensorflow.elastic``: not available."""

import importlib

importlib.import_module("horovod.common.elastic")  # which says why not
