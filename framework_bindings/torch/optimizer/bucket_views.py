"""Gradients that live in memory which the ranks of a host share, so that they are reduced where they are.

Note [Whose memory a gradient is in]
Autograd makes a new tensor for a gradient that is None, and adds to one that is there. So with
``zero_grad(set_to_none=False)`` the place is never left, and nothing is copied; else the slot moves each new gradient
into its place, and the parameter's gradient is the place from then on. Two things stay as they are: a gradient that
the program has put there itself (a view of its own flat buffer, say), to which autograd has only added; and one of an
earlier step that the program has kept, whose parameter gets a new place instead. A tensor that the program has given
other memory is no place any more: ``model.to(dtype)`` does that to gradients.

Note [Freed memory is kept]
Private gradients are the last blocks of the heap when a step ends, and hold what is free below them: glibc gives the
kernel only what is free at the end. With gradients in shared memory nothing holds the activations' memory, so it went
with each step, and the next one touched it anew, page by page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from horocache.torch.adapter import DTYPES, collectives
from horocache.torch.optimizer.bucket import Slot
from horocache.torch.optimizer.gradient_queue import count_users

import torch
from horocache import _core
from horocache.core import context
from horocache.errors import InvalidArgumentError, UnsupportedError

BucketView = bool | Literal["auto"]


def check_bucket_view(wanted: Any, plain: bool) -> None:
    """Raise unless it is True, False or "auto", and possible."""
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
    """The places of a reducer's gradients.

    Role: owned by the reducer; used by the thread that runs backward and step. The memory belongs to the tensors on it.
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
        """Give these a place when their first gradient is there."""
        for slot in slots:
            slot.placed = self.wanted and _can_be_placed(slot.param)

    def adopt(self, slot: Slot, slots: Iterable[Slot]) -> None:
        """Put a gradient into its place if that is autograd's alone; see Note [Whose memory a gradient is in].

        Args:
            slot: whose gradient is complete, or one pass further.
            slots: all, in the order in which they are to lie side by side.
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
        """The place of a gradient that nobody computed, with zeros in it; None if it has none."""
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
                assert count_users is not None and slot.storage is not None  # else no place is wanted
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
    """Make the place of these elements, with the strides that autograd gives a gradient of this parameter."""
    param = slot.param
    order = sorted(range(param.dim()), key=lambda d: (-param.stride(d), d))
    extents = [param.shape[d] for d in order]
    dense = flat.view(extents)
    if all(n == 1 or s == t for n, s, t in zip(extents, dense.stride(), (param.stride(d) for d in order), strict=True)):
        strides = list(param.stride())
    else:  # a parameter with holes, or several elements in one place
        strides = list(torch.empty(param.shape, device="meta").stride())
        dense = flat.view(param.shape)
    # Not a view for autograd, which would forbid detach_().
    slot.view = flat.as_strided_(param.shape, strides)
    slot.compact = slot.view if slot.view.is_contiguous() else slot.view.as_strided(dense.shape, dense.stride())
    slot.storage = slot.view.untyped_storage()._cdata
    slot.bytes = slot.view.numel() * slot.view.element_size()
    slot.place = slot.view.data_ptr()


def _forget_if_moved(slot: Slot) -> None:
    """Leave the view to the program if that has given it other memory (``grad.data = ...``, ``model.to(dtype)``)."""
    if slot.view is None or _core.is_at_place(slot):
        return
    slot.view = slot.compact = slot.storage = None
    slot.place = 0


def _fits(slot: Slot, tensor: torch.Tensor) -> bool:
    view = slot.view
    return view is not None and view.shape == tensor.shape and view.dtype is tensor.dtype
