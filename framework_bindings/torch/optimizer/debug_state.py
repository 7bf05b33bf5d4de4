"""A description of a distributed optimizer's buckets, for tests and for people who look for a fault."""

from __future__ import annotations

from typing import NamedTuple

import torch


class GradientState(NamedTuple):
    """The gradient of one parameter."""

    name: str
    param: torch.Tensor
    bucket_view: torch.Tensor | None
    """The bucket view in which the gradient is reduced; None until one is needed, or if there is none."""


class BucketState(NamedTuple):
    """Gradients that are reduced together."""

    gradients: tuple[GradientState, ...]
    priority: int
    """Of buckets that are ready at the same time, the one with the highest priority is reduced first."""


class DebugState(NamedTuple):
    """The buckets of a distributed optimizer, in the order in which its gradients are expected."""

    buckets: tuple[BucketState, ...] = ()
    frozen: tuple[str, ...] = ()
    """The names of parameters that had ``requires_grad=False`` in the last step; their gradients are not reduced."""

    @property
    def gradients(self) -> list[GradientState]:
        """The gradients of all buckets."""
        return [gradient for bucket in self.buckets for gradient in bucket.gradients]
