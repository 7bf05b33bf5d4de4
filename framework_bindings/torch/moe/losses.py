"""The auxiliary losses of a gate. They use the routing before capacity and communication drop slots."""

from __future__ import annotations

import torch


def load_balancing_loss(
    probabilities: torch.Tensor, expert_counts: torch.Tensor, k: int, used: torch.Tensor | None
) -> torch.Tensor:
    """Return ``E / k * sum over experts(mean probability * share of tokens)``; means and shares are over used tokens.

    The loss is 1 if probabilities and tokens are spread evenly, and up to ``E / k`` if all tokens choose the same
    experts. For ``k = 1`` it is that of Switch Transformers (Fedus et al., 2022, section 2.2, equation 4).

    Args:
        probabilities: shape ``(T, E)``; every row sums to 1.
        expert_counts: int64, shape ``(E,)``: slots per expert; not differentiated.
        k: slots per token.
        used: bool, shape ``(T,)``: tokens that count. None: all.

    Returns:
        A scalar; 0 without used tokens. Its gradient then exists and is 0.
    """
    num_experts = probabilities.shape[1]
    tokens, summed = _over_used(probabilities, used)
    return num_experts / k * (summed / tokens * (expert_counts / tokens)).sum()


def router_z_loss(logits: torch.Tensor, used: torch.Tensor | None) -> torch.Tensor:
    """Return the mean over used tokens of ``logsumexp(logits) ** 2``, which keeps logits small.

    Source: ST-MoE (Zoph et al., 2022), section 3.3.

    Args:
        logits: shape ``(T, E)``.
        used: bool, shape ``(T,)``: tokens that count. None: all.

    Returns:
        A scalar; 0 without used tokens.
    """
    tokens, summed = _over_used(logits.logsumexp(1).square().unsqueeze(1), used)
    return (summed / tokens).sum()


def _over_used(rows: torch.Tensor, used: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of used rows, at least 1, and their sum."""
    if used is None:
        return rows.new_tensor(max(rows.shape[0], 1)), rows.sum(0)
    return used.sum().clamp(min=1).to(rows.dtype), rows.masked_fill(~used.unsqueeze(1), 0.0).sum(0)
