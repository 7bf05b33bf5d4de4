"""The state that a reducer keeps for each parameter, and the buckets of gradients that are submitted together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from horocache import _core
from horocache.collectives.api import full_name
from horocache.data_parallel.bucketing import priorities
from horocache.errors import InvalidArgumentError


class Slot(_core.GradientSlot):
    """One parameter, the state of its gradient, and its autograd hook; see Note [Counting gradients down]."""

    __slots__ = ("buffer", "context", "passes", "sparse", "sparse_dims")

    def __init__(self, index: int, name: str, param: torch.Tensor, passes: int, queue: _core.GradientQueue) -> None:
        self.index = index
        self.name = name
        self.param = param
        self.bytes = param.numel() * param.element_size()
        self.passes = passes
        self.passes_left = passes
        self.queue = queue
        self.buffer: torch.Tensor | None = None  # sent instead of the gradient itself; kept between steps
        self.context: Any = None  # from the user's compressor, for decompress()
        self.sparse: Callable[[], torch.Tensor] | None = None  # finishes the sparse reduction in flight
        self.sparse_dims: int | None = None  # of the gradient; 0: dense; None: unknown or never recorded

    def raise_too_many_passes(self) -> None:
        """Raise AssertionError: more backward passes than ``backward_passes_per_step`` have run."""
        self.passes_left = 0
        raise AssertionError(
            f"Gradients were computed more than backward_passes_per_step times ({self.passes}) before call to step(); "
            f"the parameter is {self.name}. If backward() is called several times before each step(), give "
            "DistributedOptimizer(backward_passes_per_step=) their number. If the parameter is used several times in "
            "activation checkpoints, pass use_reentrant=False to torch.utils.checkpoint."
        )

    def record_submitted(self, grad: torch.Tensor) -> None:
        """Record the gradient that is submitted, with its version and address."""
        self.grad = grad
        self.version = grad._version
        self.address = _address(grad)

    def check_untouched(self) -> None:
        """Raise InvalidArgumentError if the gradient was changed or replaced after its submission.

        In-place changes of a gradient on a larger storage, such as a view of a flat buffer, are not detected: all views
        share one version counter, so a write to another parameter's gradient looks like a change of this one.
        """
        grad, now = self.grad, self.param.grad
        if grad is None:
            return
        resized = now is grad and now.shape != self.param.shape
        moved = now is grad and self.address not in (0, _address(grad))
        if now is grad and not (resized or moved) and (grad._version == self.version or _is_part(grad)):
            return
        how = "set to None" if now is None else "replaced" if now is not grad else "changed"
        how = "resized" if resized else "given other memory" if moved else how
        raise InvalidArgumentError(
            f"the gradient of {self.name} was {how} while it was being reduced. Call optimizer.synchronize() after the "
            "backward pass, then change the gradients, and step within "
            "optimizer.skip_synchronize(). Call zero_grad() before the backward pass or after step()."
        )


class Bucket(_core.GradientBucket):
    """The gradients that are submitted together: a group, or a single gradient."""

    __slots__ = ("finish", "name", "names")

    def __init__(self, slots: list[Slot], group: bool) -> None:
        self.slots = slots
        first = slots[0].name
        kind, base = ("grouped_allreduce", f"{first}.and_{len(slots) - 1}_more") if group else ("allreduce", first)
        self.name = full_name(kind, base)
        self.names = [f"allreduce.{slot.name}" for slot in slots] if group else None
        self.group = group
        self.priority = 0  # set by prioritize()
        self.missing = len(slots)
        self.finish: list[Slot] = []  # slots whose gradient is sent from a buffer
        for slot in slots:
            slot.bucket = self


def of_one_kind(slots: Sequence[Slot]) -> list[Bucket]:
    """Group these parameters; return one group for each element type and device."""
    by_kind: dict[tuple[torch.dtype, torch.device], list[Slot]] = {}
    for slot in slots:
        by_kind.setdefault((slot.param.dtype, slot.param.device), []).append(slot)
    return [Bucket(same, True) for same in by_kind.values()]


def fixed_buckets(groups: Sequence[Sequence[torch.Tensor]], slots: Sequence[Slot]) -> list[Bucket]:
    """Return the buckets of the user's groups, and a bucket for each of the other parameters."""
    slot_of = {slot.param: slot for slot in slots}
    buckets = []
    for group in groups:
        buckets.extend(of_one_kind([slot_of.pop(param) for param in group if param in slot_of]))
    return buckets + [Bucket([slot], False) for slot in slot_of.values()]


def prioritize(buckets: Sequence[Bucket], used: Sequence[int]) -> None:
    """Give the highest priorities to the buckets that the next forward pass needs first.

    Args:
        buckets: all buckets.
        used: numbers of slots, in the order in which the forward pass uses the parameters.
    """
    numbers = [[slot.index for slot in bucket.slots] for bucket in buckets]
    for bucket, priority in zip(buckets, priorities(numbers, used), strict=True):
        bucket.priority = priority


def no_gradient(slot: Slot) -> torch.Tensor:
    """Return zeros of the kind that the other ranks send, dense or sparse; see Note [Kinds of missing gradients]."""
    param = slot.param
    if slot.sparse_dims:
        indices = torch.empty((slot.sparse_dims, 0), dtype=torch.int64, device=param.device)
        values = torch.empty((0, *param.shape[slot.sparse_dims :]), dtype=param.dtype, device=param.device)
        return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)
    return torch.zeros_like(param)


def _address(grad: torch.Tensor) -> int:
    """Return the address of the gradient's elements; 0 if they are in several blocks, as those of a sparse tensor."""
    return grad.data_ptr() if grad.layout is torch.strided else 0


def _is_part(grad: torch.Tensor) -> bool:
    """Return True if the gradient's storage holds more than its own elements."""
    return grad.layout is torch.strided and grad.untyped_storage().nbytes() > grad.numel() * grad.element_size()


def is_lazy(grad: torch.Tensor) -> bool:
    """Return True if the memory holds the negatives or conjugates of the gradient's values."""
    return grad.is_conj() or grad.is_neg()
