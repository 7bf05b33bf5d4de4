"""Where the tokens of one rank go."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Routing:
    """The experts of one rank's tokens. ``T`` is the number of tokens, ``k`` of slots per token, ``E`` of experts.

    A *slot* is one of the ``k`` choices of a token. All tensors are on the device of the tokens.

    Attributes:
        topk_idx: int64, shape ``(T, k)``: the expert of each slot, by descending score. -1 in slots that capacity
            dropped, and in all slots of masked tokens.
        topk_weights: shape ``(T, k)``, float32, or float64 for a gate or tokens in float64: the factor of each expert's
            output. 0, without a gradient, where ``topk_idx`` is -1. Differentiable elsewhere.
        aux_loss: scalar of the same element type: the weighted sum of load-balancing loss and z-loss. The program adds
            it to the loss of the model.
        expert_counts: int64, shape ``(E,)``: the slots that chose each expert, before capacity. DeepSpeed calls it
            ``exp_counts``.
        dropped: int64, shape ``(E,)``: the slots that capacity dropped, by expert.
    """

    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    aux_loss: torch.Tensor
    expert_counts: torch.Tensor
    dropped: torch.Tensor
