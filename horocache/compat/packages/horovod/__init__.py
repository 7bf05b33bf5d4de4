"""Horovod's package, by horocache: each name here is one of :mod:`horocache`. See :mod:`horocache.compat`."""

from horocache.launch.function import run

__version__ = "0.28.1"  # whose API this is
__all__ = ["__version__", "run"]
