"""Mixture of experts for torch: ``from horocache.torch.moe import MoELayer``.

``import horocache.torch`` does not import this package. ``docs/explanation/mixture_of_experts.md`` explains the layer
and its gate, and ``docs/explanation/expert_parameters.md`` how parameters of experts are trained.
"""

from .ddp import prepare_ddp
from .deepspeed import MoE
from .expert_parameters import holders_of, is_expert, mark_expert
from .experts import ExpertBank
from .gate import TopKGate
from .grad_scaler import GradScaler
from .gradient_norm import clip_grad_norm_
from .layer import MoELayer
from .replay import checkpoint
from .routing import Routing
from .statistics import Statistics
from .token_rows import combine, dispatch  # after the module dispatch, whose place in the package the function takes

__all__ = [
    "ExpertBank",
    "GradScaler",
    "MoE",
    "MoELayer",
    "Routing",
    "Statistics",
    "TopKGate",
    "checkpoint",
    "clip_grad_norm_",
    "combine",
    "dispatch",
    "holders_of",
    "is_expert",
    "mark_expert",
    "prepare_ddp",
]
