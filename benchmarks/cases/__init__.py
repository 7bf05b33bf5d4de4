"""One file per thing that is measured.

A case has ``jobs(plan)`` (what to start) or ``local(plan)`` (measured by the orchestrator itself), ``measure(rank,
**parameters)`` (what one rank does; gives its series), perhaps ``tables(figures)`` where the usual table does not do.
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
