"""``horovod.runner``: starts jobs."""

from horocache.launch.function import run

__all__ = ["run"]
