"""``horovod.tensorflow.data.compute_service``: not available."""

raise ImportError(
    "horocache starts no compute service for tf.data. Start tf.data.experimental.service.DispatchServer on one rank "
    "and WorkerServer where data is prepared, and send the dispatcher's target with hvd.broadcast_object()."
)
