"""``horovod.tensorflow``: not available."""

raise ImportError("horocache has no binding for TensorFlow yet; it has one for torch: import horovod.torch")
