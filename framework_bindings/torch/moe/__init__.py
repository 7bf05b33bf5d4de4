"""Mixture of experts for torch: ``from horocache.torch.moe import TopKGate``.

``import horocache.torch`` does not import this package. The gate routes the tokens of one rank and does not
communicate. ``docs/explanation/mixture_of_experts.md`` explains the rules.
"""

from .gate import TopKGate
from .routing import Routing

__all__ = ["Routing", "TopKGate"]
