"""Mixtures of experts, after Aristos (Aimuyo, "Pipelining One-sided Communication in Distributed Mixture of Experts").

:mod:`horocache.moe.placement` forms groups of devices that each hold all experts, and gives the experts to the devices
of a group.
"""

from horocache.moe import placement

__all__ = ["placement"]
