"""One file per measured topic.

A case has ``jobs(quick)``, which returns the jobs to start, and ``measure(rank, **parameters)``, which runs on each
rank and returns its series. It may have ``local(quick, impls)``, which measures in the orchestrator itself, and
``tables(figures)``, which replaces the usual table.
"""

ORDER = (
    "startup",
    "idle",
    "latency",
    "stages",
    "messages",
    "burst",
    "bandwidth",
    "zero_copy",
    "gradients",
    "training",
    "memory",
    "hooks",
    "timeline",
    "functions",
    "keras_fit",
    "mpi",
    "programs",
    "compile",
    "rounds",
    "hosts",
    "moves",
)
