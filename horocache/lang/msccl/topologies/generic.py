"""``msccl.topologies.generic``: see :mod:`horocache.lang.msccl.topologies`, which has all of them."""

from horocache.lang.msccl.topologies import fully_connected, hub_and_spoke, line, ring, star

__all__ = ["fully_connected", "hub_and_spoke", "line", "ring", "star"]
