"""Bucket views: gradients in memory that the ranks of a host share, where they are reduced in place.

Note [Whose memory a gradient is in]
Autograd allocates a new tensor for a gradient that is None, and adds to an existing gradient. With
``zero_grad(set_to_none=False)`` a gradient therefore stays in its bucket view, and nothing is copied. Otherwise the
slot copies each new gradient into its bucket view, which then becomes the parameter's gradient. Two cases differ:

* the program has assigned the gradient itself, for example as a view of its own flat buffer, and autograd only adds to
  it. Other tensors share its memory, so the gradient is reduced where it is;
* the program has kept the gradient of an earlier step, which is the bucket view. That tensor keeps its values, and the
  parameter gets a new bucket view.

A tensor that the program has given other memory, as ``model.to(dtype)`` does with gradients, is no longer a bucket
view.

Note [Freed memory is kept]
glibc returns free memory to the kernel only from the end of the heap. When a step ends, gradients in private memory are
the last blocks of the heap, so the freed memory of the activations below them stays with the process. Gradients in
shared memory do not have this effect: the activations' memory would return to the kernel after each step, and the next
step would fault it in again, page by page. So the binding makes malloc keep freed memory (knob ``keep_heap``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from horocache import _core
from horocache.core import context
from horocache.errors import InvalidArgumentError, UnsupportedError

from ..adapter import DTYPES, collectives
from .bucket import Slot
from .gradient_queue import count_users

BucketView = bool | Literal["auto"]


def check_bucket_view(wanted: Any, plain: bool) -> None:
    """Check the option ``gradient_as_bucket_view``.

    Args:
        wanted: the option.
        plain: True if gradients are sent uncompressed.

    Raises:
        InvalidArgumentError: the option is not True, False or "auto".
        UnsupportedError: the option is True, and torch cannot count the tensors on a storage or gradients are
            compressed.
    """
    if wanted not in (True, False, "auto"):
        raise InvalidArgumentError(f"gradient_as_bucket_view={wanted!r}; it is True, False or 'auto'.")
    if wanted is True and count_users is None:
        raise UnsupportedError(
            "gradient_as_bucket_view=True needs a torch that tells how many tensors are on a storage; this is "
            f"{torch.__version__}."
        )
    if wanted is True and not plain:
        raise UnsupportedError(
            "gradient_as_bucket_view=True and a compression are both given: compressed gradients are copies. Leave one "
            "of them out."
        )


class GradientPlaces:
    """The bucket views of a reducer's gradients.

    Role: owned by the reducer; used by the thread that runs backward and step. The tensors own their memory.
    """

    def __init__(self, wanted: BucketView, plain: bool) -> None:
        check_bucket_view(wanted, plain)
        runtime = context.current().runtime
        on_one_host = runtime.local_size == runtime.size
        shares = runtime.knobs()["region_bytes"][0] not in ("0", 0)
        automatic = plain and on_one_host and shares and count_users is not None
        self.wanted = wanted is True or (wanted == "auto" and automatic)
        self._keeps_heap = runtime.knobs()["keep_heap"][0] == "auto"
        self._laid_out = False

    def take(self, slots: Iterable[Slot]) -> None:
        """Mark the slots whose gradients get a bucket view when the first gradient arrives."""
        for slot in slots:
            slot.placed = self.wanted and _can_be_placed(slot.param)

    def adopt(self, slot: Slot, slots: Iterable[Slot]) -> None:
        """Move a gradient into its bucket view if it is uniquely referenced; see Note [Whose memory a gradient is in].

        Args:
            slot: the slot of a gradient to which a backward pass has just added.
            slots: all slots, in the order of their bucket views in memory.
        """
        _forget_if_moved(slot)
        alone = _core.grad_is_alone(slot)
        grad = slot.param.grad
        if grad is None or grad is slot.view:
            return
        if grad.layout is not torch.strided or not grad.is_cpu or grad.requires_grad:
            slot.placed = grad.layout is torch.strided
            return
        if not alone:
            return
        if not self._laid_out:
            self._laid_out = True
            self._lay_out([other for other in slots if other.placed and other.view is None])
        if not _fits(slot, grad) or not _core.place_is_free(slot):
            self._lay_out([slot])
        slot.view.copy_(grad)
        slot.queue.placed += slot.bytes
        slot.param.grad = slot.view

    def zeros(self, slot: Slot) -> torch.Tensor | None:
        """Return the slot's bucket view filled with zeros, for a missing gradient; None if it is not available."""
        if not _fits(slot, slot.param) or not _core.place_is_free(slot):
            return None
        place: torch.Tensor = slot.view.zero_()
        return place

    def _lay_out(self, slots: list[Slot]) -> None:
        by_dtype: dict[torch.dtype, list[Slot]] = {}
        for slot in slots:
            by_dtype.setdefault(slot.param.dtype, []).append(slot)
        for dtype, alike in by_dtype.items():
            total = sum(slot.param.numel() for slot in alike)
            memory = context.current().runtime.empty([total], collectives.adapter.dtype_name(dtype))
            first = 0
            for slot in alike:
                _assign(slot, collectives.adapter.from_result(memory.part(first, [slot.param.numel()])))
                assert count_users is not None and slot.storage is not None  # otherwise bucket views are off
                slot.users = count_users(slot.storage)
                first += slot.param.numel()
            if self._keeps_heap and context.current().runtime.is_shared(alike[0].compact):
                _core.keep_freed_memory()


def _can_be_placed(param: torch.Tensor) -> bool:
    return (
        param.is_cpu
        and param.layout is torch.strided
        and param.dtype in DTYPES
        and not param.is_complex()
        and param.numel() > 0
    )


def _assign(slot: Slot, flat: torch.Tensor) -> None:
    """Make the bucket view from these elements, with the strides that autograd gives the parameter's gradient."""
    param = slot.param
    order = sorted(range(param.dim()), key=lambda d: (-param.stride(d), d))
    extents = [param.shape[d] for d in order]
    dense = flat.view(extents)
    if all(n == 1 or s == t for n, s, t in zip(extents, dense.stride(), (param.stride(d) for d in order), strict=True)):
        strides = list(param.stride())
    else:  # the parameter has holes, or several of its elements share memory
        strides = list(torch.empty(param.shape, device="meta").stride())
        dense = flat.view(param.shape)
    # In place: as_strided() would make a view, on which autograd forbids detach_().
    slot.view = flat.as_strided_(param.shape, strides)
    slot.compact = slot.view if slot.view.is_contiguous() else slot.view.as_strided(dense.shape, dense.stride())
    slot.storage = slot.view.untyped_storage()._cdata
    slot.bytes = slot.view.numel() * slot.view.element_size()
    slot.place = slot.view.data_ptr()


def _forget_if_moved(slot: Slot) -> None:
    """Drop the bucket view if the program gave its tensor other memory (``grad.data = ...``, ``model.to(dtype)``)."""
    if slot.view is None or _core.is_at_place(slot):
        return
    slot.view = slot.compact = slot.storage = None
    slot.place = 0


def _fits(slot: Slot, tensor: torch.Tensor) -> bool:
    view = slot.view
    return view is not None and view.shape == tensor.shape and view.dtype is tensor.dtype
