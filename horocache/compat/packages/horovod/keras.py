"""``horovod.keras``: not available."""

raise ImportError("horocache has no binding for Keras yet; it has one for torch: import horovod.torch")
