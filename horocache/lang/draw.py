"""The public name of ``describe`` in :mod:`horocache.lang.formats.drawing`."""

from horocache.lang.formats.drawing import describe

__all__ = ["describe"]
