"""Mixtures of experts, after Aristos (Aimuyo, "Pipelining One-sided Communication in Distributed Mixture of Experts").

:mod:`horocache.moe.placement` forms groups of devices that each hold all experts, and gives the experts to the devices
of a group. :func:`dispatch` and :func:`combine` move tokens for programs that run experts of their own; the layer for
torch is :class:`horocache.torch.moe.MoELayer`.
"""

from horocache.moe import placement
from horocache.moe.dispatcher import combine, dispatch
from horocache.moe.handle import Handle

__all__ = ["Handle", "combine", "dispatch", "placement"]
