"""``msccl.topologies.amd``: see :mod:`horocache.lang.msccl.topologies`, which has all of them."""

from horocache.lang.msccl.topologies import amd4, amd8

__all__ = ["amd4", "amd8"]
