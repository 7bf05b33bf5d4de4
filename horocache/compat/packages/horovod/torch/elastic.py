"""``horovod.torch.elastic``: not available."""

import importlib

importlib.import_module("horovod.common.elastic")  # raises the ImportError with the reason
