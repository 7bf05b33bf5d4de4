"""``msccl.topologies.generic``: general topologies, re-exported from :mod:`horocache.lang.msccl.topologies`."""

from horocache.lang.msccl.topologies import fully_connected, hub_and_spoke, line, ring, star

__all__ = ["fully_connected", "hub_and_spoke", "line", "ring", "star"]
