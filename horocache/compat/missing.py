"""Errors for the parts of Horovod that horocache lacks."""

from __future__ import annotations

ELASTIC = (
    "horocache has no elastic mode yet: hvd.elastic cannot be used. Remove @hvd.elastic.run and the state's commits to "
    "run with a fixed number of ranks."
)


def attribute_error(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module lacks: an AttributeError, so that ``hasattr`` returns False."""
    why = f": {ELASTIC}" if name == "elastic" else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{why}", name=name)
