"""What Horovod has and horocache lacks, and what programs are told when they ask for it."""

from __future__ import annotations

ELASTIC = (
    "horocache has no elastic mode yet: hvd.elastic cannot be used. Remove @hvd.elastic.run and the state's commits to "
    "run with a fixed number of ranks."
)


def attribute_error(module: str, name: str) -> AttributeError:
    """The error for a name that a module lacks. It is no ImportError, so that ``hasattr`` answers."""
    why = f": {ELASTIC}" if name == "elastic" else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{why}", name=name)
