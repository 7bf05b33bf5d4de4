"""``horovod.ray``: not available."""

raise ImportError("horocache does not start jobs through Ray; use horocacherun, horovod.run() or mpiexec.")
