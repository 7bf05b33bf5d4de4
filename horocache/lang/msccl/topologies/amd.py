"""``msccl.topologies.amd``: AMD's topologies, re-exported from :mod:`horocache.lang.msccl.topologies`."""

from horocache.lang.msccl.topologies import amd4, amd8

__all__ = ["amd4", "amd8"]
