"""The public name of ``Link, Machine`` in :mod:`horocache.lang.tuning.machine_model`."""

from horocache.lang.tuning.machine_model import Link, Machine

__all__ = ["Link", "Machine"]
