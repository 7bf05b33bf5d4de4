"""The package ``horovod``, provided by horocache: its names refer to :mod:`horocache`; see :mod:`horocache.compat`."""

from horocache.launch.function import run

__version__ = "0.28.1"  # the Horovod version whose API this package has
__all__ = ["__version__", "run"]
