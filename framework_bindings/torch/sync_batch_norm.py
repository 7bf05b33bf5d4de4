"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from horocache.collectives.api import Sum
from horocache.core.process_set import ProcessSet, global_process_set
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from .ops import allgather, allreduce


class SyncBatchNorm(_BatchNorm):
    """Normalizes each channel by its mean and variance over the batches of all ranks.

    In evaluation with running statistics, with a single rank, and on ranks outside of the process set, the layer does
    not communicate and computes the same as ``torch.nn.BatchNorm``. Otherwise all ranks must run the same layers in the
    same order; their batches may have different sizes. The backward pass computes this rank's gradients of weight and
    bias; :func:`~horocache.torch.DistributedOptimizer` reduces them over the ranks.

    Args:
        num_features: number of channels ``C`` of inputs of shape ``(N, C, ...)``.
        eps: added to the variance.
        momentum: weight of the newest batch in the running mean and variance; None: all batches have equal weight.
        affine: True to learn a weight and a bias of shape ``(C,)``.
        track_running_stats: True to keep a running mean and variance, which evaluation then uses. False: evaluation
            normalizes over all ranks' batches, as training does.
        process_set: the ranks whose batches are normalized together.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize a tensor of shape ``(N, C, ...)``.

        Raises:
            ValueError: the tensor has fewer than two dimensions. Also the errors of an allgather; the backward pass
                raises those of an allreduce.
        """
        self._check_input_dim(input)
        use_batch = self.training or self.running_mean is None
        if not use_batch or not self.process_set.included() or self.process_set.size() == 1:
            return self._alone(input)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        statistics = _statistics(input, self.process_set)
        if self.training and self.track_running_stats:
            self._track(*statistics)
        apply: Any = _Normalize.apply
        output: torch.Tensor = apply(input, self.weight, self.bias, statistics, self.eps, self.process_set)
        return output

    def _alone(self, batch: torch.Tensor) -> torch.Tensor:
        use_batch = self.training or self.running_mean is None
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        kept = (self.running_mean, self.running_var) if not use_batch or self.track_running_stats else (None, None)
        return functional.batch_norm(batch, *kept, self.weight, self.bias, use_batch, self._share(), self.eps)

    def _share(self) -> float:
        """Return the weight of the newest batch in the running statistics."""
        if self.momentum is not None:
            return self.momentum
        return 1.0 / float(self.num_batches_tracked) if self.num_batches_tracked is not None else 0.0

    def _track(self, count: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        unbiased = variance * count / (count - 1).clamp(min=1)
        for kept, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            kept.lerp_(new.to(kept.dtype), self._share())


def _channels(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Reshape one value per channel so that it broadcasts against ``like``, of shape ``(N, C, ...)``."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _other_dimensions(tensor: torch.Tensor) -> list[int]:
    return [i for i in range(tensor.dim()) if i != 1]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in a type for accumulation: float64 for float64, float32 for all others."""
    return tensor.double() if tensor.dtype is torch.float64 else tensor.float()


def _statistics(batch: torch.Tensor, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the number of values per channel, and each channel's mean and variance, over all ranks' batches.

    The ranks' means and variances are combined (Chan, Golub and LeVeque, 1979). With sums of squares, large values
    would lose their variance to rounding.
    """
    channels = batch.shape[1]
    values = _wide(batch.detach())
    count = values.numel() // channels if channels else 0
    dimensions = _other_dimensions(values)
    mean = values.mean(dimensions) if count else values.new_zeros(channels)
    variance = values.var(dimensions, unbiased=False) if count else values.new_zeros(channels)
    own = torch.cat([values.new_full((1,), count), mean, variance])
    # Layers run one after the other, so they can share names. One name per number of channels keeps the shape, and so
    # the cached response, unchanged.
    everybody = allgather(own.unsqueeze(0), f"sync_batch_norm.{channels}", process_set)
    counts, means, variances = everybody[:, :1], everybody[:, 1 : channels + 1], everybody[:, channels + 1 :]
    total = counts.sum()
    whole_mean = (counts * means).sum(0) / total
    whole_variance = (counts * (variances + (means - whole_mean) ** 2)).sum(0) / total
    return total, whole_mean, whole_variance


class _Normalize(torch.autograd.Function):
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, where mean and variance depend on all ranks' ``x``."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        statistics: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        eps: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        total, mean, variance = statistics
        scale = torch.rsqrt(variance + eps)
        ctx.save_for_backward(batch, weight, mean, scale, total)
        ctx.process_set = process_set
        ctx.has_bias = bias is not None
        output = (_wide(batch) - _channels(mean, batch)) * _channels(scale, batch)
        if weight is not None:
            output = output * _channels(weight, batch)
        if bias is not None:
            output = output + _channels(bias, batch)
        return output.to(batch.dtype)

    @staticmethod
    @once_differentiable  # a second derivative would lack the sums over ranks
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        batch, weight, mean, scale, total = ctx.saved_tensors
        grad = _wide(grads[0])
        normalized = (_wide(batch) - _channels(mean, batch)) * _channels(scale, batch)
        dimensions = _other_dimensions(batch)
        channels = batch.shape[1]
        # Separate tensors, not views of one: they become the gradients of two parameters, which are reduced in place.
        along_bias, along_weight = grad.sum(dimensions), (grad * normalized).sum(dimensions)
        own = torch.stack([along_bias, along_weight])
        name = f"sync_batch_norm.{channels}.backward"
        everybody = allreduce(own, None, name, op=Sum, process_set=ctx.process_set) / total
        along_ones, along_normalized = everybody
        inner = grad - _channels(along_ones, batch) - normalized * _channels(along_normalized, batch)
        factor = scale if weight is None else scale * _wide(weight)
        grad_batch = (inner * _channels(factor, batch)).to(batch.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = along_weight.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        grad_bias = along_bias.to(grads[0].dtype if weight is None else weight.dtype) if ctx.has_bias else None
        return grad_batch, grad_weight, grad_bias, None, None, None
