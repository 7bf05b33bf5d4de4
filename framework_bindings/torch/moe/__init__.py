"""Mixture of experts for torch: ``from horocache.torch.moe import MoELayer``.

``import horocache.torch`` does not import this package. ``docs/explanation/mixture_of_experts.md`` explains the layer
and its gate.
"""

from .deepspeed import MoE
from .experts import ExpertBank
``import horocache.torch`` does not import this package. The gate routes the tokens of one rank and does not
communicate. ``docs/explanation/mixture_of_experts.md`` explains the rules, and
``docs/explanation/expert_parameters.md`` how parameters of experts are trained.
from .expert_parameters import holders_of, is_expert, mark_expert
from .gate import TopKGate
from .layer import MoELayer
from .replay import checkpoint
"""

from .ddp import prepare_ddp
from .expert_parameters import holders_of, is_expert, mark_expert
from .gate import TopKGate
from .grad_scaler import GradScaler
from .gradient_norm import clip_grad_norm_
from .routing import Routing
from .statistics import Statistics

__all__ = ["ExpertBank", "MoE", "MoELayer", "Routing", "Statistics", "TopKGate", "checkpoint"]
__all__ = ["Routing", "TopKGate", "holders_of", "is_expert", "mark_expert"]
__all__ = ["Routing", "TopKGate", "clip_grad_norm_", "holders_of", "is_expert", "mark_expert", "prepare_ddp"]
__all__ = [
    "GradScaler",
    "Routing",
    "TopKGate",
    "clip_grad_norm_",
    "holders_of",
    "is_expert",
    "mark_expert",
    "prepare_ddp",
]
