"""``horovod.mxnet``: not available."""

raise ImportError("horocache has no binding for MXNet, whose development has ended; it has one for torch.")
