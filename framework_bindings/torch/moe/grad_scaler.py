"""A gradient scaler for models whose experts are on different ranks."""

from __future__ import annotations

from typing import Any, cast

import torch
from horocache.collectives.api import Max
from horocache.core.process_set import ProcessSet, global_process_set

from ..adapter import collectives

__all__ = ["GradScaler"]

_Scaler: Any = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler


class GradScaler(_Scaler):  # type: ignore[misc]
    """torch's ``GradScaler``, which skips a step on all ranks if an expert's gradient overflowed on one.

    Reduced gradients of shared parameters are equal on all ranks, so all ranks skip the same steps with torch's scaler.
    The gradient of an expert is on its holders only. If it overflows, they alone would skip the step and lower their
    scale; the shared parameters would differ between ranks from then on. This class takes the maximum of the ranks'
    findings.

    Every rank of ``process_set`` unscales or steps the same number of optimizers in a step, so a rank without experts
    needs an optimizer for each that other ranks have: put experts into the optimizer of the shared parameters.

    Role: used by the thread that steps.
    """

    def __init__(self, *arguments: Any, process_set: ProcessSet = global_process_set, **options: Any) -> None:
        """Make a scaler.

        Args:
            arguments: those of torch's ``GradScaler``, such as the device's type.
            process_set: the ranks that share the other parameters.
            options: of torch's ``GradScaler``.
        """
        super().__init__(*arguments, **options)
        self._process_set = process_set

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        """Unscale the gradients as torch does; return for each device 1 if a gradient of any rank is not finite."""
        found = cast(
            "dict[torch.device, torch.Tensor]", super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        )
        if not self._process_set.included() or self._process_set.size() == 1:
            return found
        mine = torch.tensor([max((each.item() for each in found.values()), default=0.0)])
        everyone = collectives.allreduce(mine, name="grad_scaler.found_inf", op=Max, process_set=self._process_set)
        for each in found.values():
            each.fill_(everyone.item())
        return found
