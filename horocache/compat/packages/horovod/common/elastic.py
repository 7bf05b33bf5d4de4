"""``horovod.common.elastic``: not available."""

raise ImportError(
    "horocache has no elastic mode yet: hvd.elastic cannot be used. Remove @hvd.elastic.run and the state's commits to "
    "run with a fixed number of ranks."
)
