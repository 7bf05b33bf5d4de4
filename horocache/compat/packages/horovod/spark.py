"""``horovod.spark``: not available."""

raise ImportError("horocache does not start jobs through Spark; use horocacherun, horovod.run() or mpiexec.")
