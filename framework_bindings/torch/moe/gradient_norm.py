"""The norm of all gradients of a model whose experts are on different ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from horocache.collectives.api import Max, Sum
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError

from ..adapter import collectives
from ..expert_parameters import Experts, part_experts

__all__ = ["clip_grad_norm_"]


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    *,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Scale the gradients down to a norm over the whole model, in which each expert of any rank counts once.

    Like ``torch.nn.utils.clip_grad_norm_``, whose result would differ from rank to rank: the norm of a rank's experts
    is another one on each rank. With the p-norm, the result is ``(S + sum of E_r)^(1/p)``, in which ``S`` is the sum of
    the p-th powers of shared gradients' elements, and ``E_r`` that of rank r's experts, each divided by the number of
    its holders. Call it on every rank of ``process_set`` with reduced gradients, also on ranks without experts: after
    the backward pass of DDP; or after ``optimizer.synchronize()``, with the step within ``skip_synchronize()``.

    Args:
        parameters: this rank's parameters; those without a gradient do not count. Shared parameters and their
            gradients are equal on all ranks; experts are marked, see :func:`horocache.torch.moe.mark_expert`.
        max_norm: the largest norm that leaves gradients as they are.
        norm_type: p, a number above 0; ``math.inf`` for the largest absolute value.
        error_if_nonfinite: True to raise an error, on all ranks, if the norm is infinite or not a number.
        process_set: the ranks that share the other parameters.

    Returns:
        The norm before the gradients were scaled, a tensor of type float64 on the CPU; the same on all ranks.

    Raises:
        InvalidArgumentError: ``norm_type`` or ``max_norm`` is out of its range, or a mark is invalid. RuntimeError: the
            norm is not finite, with ``error_if_nonfinite``. Also the errors of an allreduce.
    """
    if not norm_type > 0:
        raise InvalidArgumentError(f"rank {context.rank()}: norm_type must be above 0; it is {norm_type}.")
    if not max_norm >= 0:
        raise InvalidArgumentError(f"rank {context.rank()}: max_norm must be at least 0; it is {max_norm}.")
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    unique = dict.fromkeys(param for param in given if param.grad is not None)
    shared, groups = part_experts(unique, lambda param: param)
    of_shared = _power([_values(param) for param in shared], norm_type)
    of_experts = _power_of_experts(groups, norm_type, process_set)
    if norm_type == math.inf:
        total = torch.maximum(of_shared, of_experts)
    else:
        total = (of_shared + of_experts) ** (1.0 / norm_type)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(
            f"rank {context.rank()}: the norm of order {norm_type} of all gradients is {total.item()}, so they cannot "
            "be clipped. Pass error_if_nonfinite=False to scale them by it."
        )
    _scale(unique, total, max_norm)
    return total


def _power_of_experts(groups: list[Experts], order: float, process_set: ProcessSet) -> torch.Tensor:
    """Return the sum of the p-th powers of the elements of all ranks' experts, each expert once; or the largest."""
    result = torch.zeros((), dtype=torch.float64)
    for holders, params in groups:
        power = _power([_values(param) for param in params], order)
        copies = 1 if holders is None else holders.size()
        result = torch.maximum(result, power) if order == math.inf else result + power / copies
    if not process_set.included() or process_set.size() == 1:
        return result
    op = Max if order == math.inf else Sum
    everyone: torch.Tensor = collectives.allreduce(
        result.reshape(1), name="clip_grad_norm", op=op, process_set=process_set
    )
    return everyone[0]


def _values(param: torch.Tensor) -> torch.Tensor:
    """Return the elements of the gradient; those of a sparse one with repeated indices added up."""
    grad = param.grad
    assert grad is not None
    return grad.detach().coalesce().values() if grad.is_sparse else grad.detach()


def _power(gradients: list[torch.Tensor], order: float) -> torch.Tensor:
    """Return the sum of the p-th powers of all elements, or the largest absolute value for p = infinity, as float64."""
    result = torch.zeros((), dtype=torch.float64)
    by_kind: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for grad in gradients:
        if grad.numel() > 0:
            by_kind.setdefault((grad.device, grad.dtype), []).append(grad)
    for (_, dtype), same in by_kind.items():
        # The norm of a tensor of half precision may be larger than its type can hold.
        wide = [grad.float() for grad in same] if dtype in (torch.float16, torch.bfloat16) else same
        norms = torch.stack([norm.cpu().double() for norm in torch._foreach_norm(wide, order)])
        power = norms.max() if order == math.inf else (norms**order).sum()
        result = torch.maximum(result, power) if order == math.inf else result + power
    return result


def _scale(params: Iterable[torch.Tensor], total: torch.Tensor, max_norm: float) -> None:
    # As torch does: not a number stays one, and infinity makes zeros and NaNs.
    factor = min(1.0, max_norm / (total.item() + 1e-6)) if not torch.isnan(total) else math.nan
    if factor == 1.0:
        return
    with torch.no_grad():
        for param in params:
            grad = param.grad
            if grad is not None:
                (grad._values() if grad.is_sparse else grad).mul_(factor)
