"""A layer with the constructor of DeepSpeed's ``deepspeed.moe.layer.MoE``."""

from __future__ import annotations

import copy

import torch
from horocache.errors import UnsupportedError

from .layer import MoELayer

__all__ = ["MoE"]


class MoE(MoELayer):
    """DeepSpeed's layer of experts on horocache: the same arguments, in the same order, with the same defaults.

    ``docs/explanation/mixture_of_experts.md`` lists the differences.

    Args:
        hidden_size: length of a token's hidden state.
        expert: the module that is copied for each expert; all start with its weights.
        num_experts: experts of an expert-parallel group.
        ep_size: ranks of an expert-parallel group, a divisor of the job's size.
        k: experts per token.
        capacity_factor: of the gate in training.
        eval_capacity_factor: of the gate in evaluation.
        min_capacity: smallest capacity of an expert.
        use_residual: add ``expert`` itself, on all tokens: the output is that of the experts and of this module,
            weighted by a softmax over a linear layer of the token (Residual-MoE; Rajbhandari et al., 2022).
        noisy_gate_policy: None, ``"Jitter"`` or ``"RSample"``.
        drop_tokens: False: experts take any number of tokens.
        use_rts: with ``k=1``, experts over their capacity take random tokens; False: those with the highest scores.
        use_tutel: True is refused.
        enable_expert_tensor_parallelism: True is refused.
        top2_2nd_expert_sampling: with ``k=2``, sample the second expert in training.

    Raises:
        UnsupportedError: ``use_tutel`` or ``enable_expert_tensor_parallelism`` is set.
        InvalidArgumentError: an argument is out of range.
    """

    def __init__(
        self,
        hidden_size: int,
        expert: torch.nn.Module,
        num_experts: int = 1,
        ep_size: int = 1,
        k: int = 1,
        capacity_factor: float = 1.0,
        eval_capacity_factor: float = 1.0,
        min_capacity: int = 4,
        use_residual: bool = False,
        noisy_gate_policy: str | None = None,
        drop_tokens: bool = True,
        use_rts: bool = True,
        use_tutel: bool = False,
        enable_expert_tensor_parallelism: bool = False,
        top2_2nd_expert_sampling: bool = True,
    ) -> None:
        if use_tutel:
            raise UnsupportedError(
                "use_tutel=True asks for Tutel's kernels, which horocache does not use; leave it out"
            )
        if enable_expert_tensor_parallelism:
            raise UnsupportedError(
                "enable_expert_tensor_parallelism=True cuts each expert over ranks, which horocache does not do; "
                "leave it out, and spread whole experts by a larger ep_size"
            )
        super().__init__(
            hidden_size,
            lambda: copy.deepcopy(expert),
            num_experts,
            k,
            capacity_factor,
            eval_capacity_factor,
            min_capacity,
            noisy_gate_policy,
            drop_tokens,
            drop_policy="random" if use_rts and k == 1 else "probs",
            top2_2nd_expert_sampling=top2_2nd_expert_sampling,
            ep_size=ep_size,
        )
        self.use_residual = use_residual
        if use_residual:
            self.mlp = expert
            self.coefficient = torch.nn.Linear(hidden_size, 2)

    def forward(
        self, hidden_states: torch.Tensor, used_token: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Send this rank's tokens through their experts; see :meth:`MoELayer.forward`."""
        output, l_aux, exp_counts = super().forward(hidden_states, used_token)
        if self.use_residual:
            shares = torch.softmax(self.coefficient(hidden_states), dim=-1)
            output = output * shares[..., 0:1] + self.mlp(hidden_states) * shares[..., 1:]
        return output, l_aux, exp_counts
