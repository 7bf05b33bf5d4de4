"""Mixture of experts for torch: ``from horocache.torch.moe import MoELayer``.

``import horocache.torch`` does not import this package. ``docs/explanation/mixture_of_experts.md`` explains the layer
and its gate.
"""

from .deepspeed import MoE
from .experts import ExpertBank
from .gate import TopKGate
from .layer import MoELayer
from .replay import checkpoint
from .routing import Routing
from .statistics import Statistics

__all__ = ["ExpertBank", "MoE", "MoELayer", "Routing", "Statistics", "TopKGate", "checkpoint"]
