"""Scales of the experts' gradients, and their accumulation onto gradients that are reduced already.

Note [Scale of expert gradients]
With expert parallelism, an expert has seen the tokens of many ranks, and its gradient is the sum of their losses'
gradients. In data parallelism, the average over all N ranks is the gradient of the mean of the N losses. The holders
therefore add up their gradients of the expert and divide by N, the number of ranks that share the other parameters, and
not by the number of holders. For example, if 4 ranks train an expert with the holders 0 and 2, and the gradients are 3
and 5, both get (3 + 5) / 4 = 2. With one rank, the expert's gradient would be the mean of the same four losses.

Note [Accumulation onto reduced gradients]
A program may leave a reduced gradient r where it is, and add a further backward pass to it. The average over N ranks
that have r, plus new gradients, is r plus the average of these. The formula above would give r times H / N, with H
holders. So r is multiplied by N / H before a pass adds to it, and before it is reduced once more: the sum of H such
gradients over N is r again. For op=Sum the same makes N times r, as N ranks that add up r do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch.utils.weak import TensorWeakRef

from ..compile.dynamo import outside


class ReducedGradients:
    """Remembers which gradients are reduced; see Note [Accumulation onto reduced gradients].

    Role: owned by what reduces gradients of experts; used by the thread that runs the backward pass.
    """

    def __init__(self, world: int, holders: int) -> None:
        """Begin without gradients.

        Args:
            world: the number of ranks that share the other parameters.
            holders: the number of ranks that hold these experts.
        """
        self._factor = world / holders
        self._of: dict[torch.Tensor, TensorWeakRef | None] = {}  # by parameter: the gradient that is reduced
        self._hooks: dict[torch.Tensor, Any] = {}
        weakref.finalize(self, _remove_all, self._hooks)

    def watch(self, param: torch.Tensor) -> None:
        """Follow the backward passes of a parameter that requires gradients."""
        restore, followed = weakref.WeakMethod(self.restore), TensorWeakRef(param)

        @outside
        def before_accumulation(_: torch.Tensor) -> None:
            alive, owner = restore(), followed()
            if alive is not None and owner is not None:
                alive(owner)

        self._of[param] = None
        if self._factor != 1:
            self._hooks[param] = cast(Any, param).register_hook(before_accumulation)

    def retain(self, present: Iterable[torch.Tensor]) -> None:
        """Forget all parameters except ``present``."""
        for gone in set(self._of) - set(present):
            del self._of[gone]
            if gone in self._hooks:
                self._hooks.pop(gone).remove()

    def restore(self, param: torch.Tensor) -> None:
        """Multiply the parameter's gradient by N / H if it is the one that was reduced last."""
        reduced = self._of.get(param)
        if reduced is None:
            return
        self._of[param] = None
        grad = param.grad
        if grad is not None and reduced() is grad:
            scale([grad], self._factor)

    def restore_all(self) -> None:
        """Do the same for all parameters, before their gradients are reduced."""
        for param in self._of:
            self.restore(param)

    def reduced(self) -> None:
        """Record that the present gradients of all parameters are reduced."""
        if self._factor != 1:
            self._of = {p: None if p.grad is None else TensorWeakRef(p.grad) for p in self._of}


def scale(gradients: Iterable[torch.Tensor], factor: float) -> None:
    """Multiply gradients, dense or sparse, where they are."""
    if factor == 1:
        return
    with torch.no_grad():
        values = [grad._values() if grad.is_sparse else grad for grad in gradients]
        if values:
            torch._foreach_mul_(values, factor)


def _remove_all(hooks: dict[torch.Tensor, Any]) -> None:
    for hook in hooks.values():
        hook.remove()


Scaled = Callable[[], torch.Tensor]


def scaled_result(finish: Scaled, factor: float) -> Scaled:
    """Return a function that waits for a sparse gradient with ``finish``, and multiplies it."""

    def call() -> torch.Tensor:
        gradient = finish()
        scale([gradient], factor)
        return gradient

    return call
