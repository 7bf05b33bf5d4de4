"""``horovod.tensorflow.data``: input pipelines."""
