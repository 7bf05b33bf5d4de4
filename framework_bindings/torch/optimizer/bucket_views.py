"""Bucket views: gradients in memory that the ranks of a host share, where they are reduced in place.

Note [Whose memory a gradient is in] in cpp_core/python/torch_gradients/bucket_view.h says which gradients are moved
there.

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
        UnsupportedError: the option is True, and torch cannot tell who uses a tensor's memory or gradients are
            compressed.
    """
    if wanted not in (True, False, "auto"):
        raise InvalidArgumentError(f"gradient_as_bucket_view={wanted!r}; it is True, False or 'auto'.")
    if wanted is True and count_users is None:
        raise UnsupportedError(
            "gradient_as_bucket_view=True needs a torch that counts the tensors on a storage and has DLPack's "
            f"exchange table; this is torch {torch.__version__}."
        )
    if wanted is True and not plain:
        raise UnsupportedError(
            "gradient_as_bucket_view=True and a compression are both given: compressed gradients are copies. Leave one "
            "of them out."
        )


class BucketViews:
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

    def mark(self, slot: Slot) -> None:
        """Let the slot's gradient get a bucket view when the first gradient arrives, if it can have one."""
        slot.wants_view = self.wanted and _can_have_view(slot.param)

    def allocate(self, slot: Slot, slots: Iterable[Slot]) -> None:
        """Give the slot a new bucket view; the first time, give one to all slots that want one.

        Args:
            slot: a slot without a bucket view, or with one that the program uses.
            slots: all slots, in the order of their bucket views in memory.
        """
        if self._laid_out:
            self._lay_out([slot])
            return
        self._laid_out = True
        self._lay_out([other for other in slots if other.wants_view])

    def zeros(self, slot: Slot) -> torch.Tensor | None:
        """Return the slot's bucket view filled with zeros, for a missing gradient; None if it is not available."""
        view, param = slot.view, slot.param
        fits = view is not None and (view.shape, view.dtype, view.device) == (param.shape, param.dtype, param.device)
        if view is None or not fits or not _core.view_is_free(slot):
            return None
        zeros: torch.Tensor = view.zero_()
        return zeros

    def _lay_out(self, slots: list[Slot]) -> None:
        by_dtype: dict[torch.dtype, list[Slot]] = {}
        for slot in slots:
            by_dtype.setdefault(slot.param.dtype, []).append(slot)
        for dtype, alike in by_dtype.items():
            total = sum(slot.param.numel() for slot in alike)
            memory = context.current().runtime.empty([total], collectives.adapter.dtype_name(dtype))
            first = 0
            for slot in alike:
                _set_view(slot, collectives.adapter.from_result(memory.part(first, [slot.param.numel()])))
                assert count_users is not None and slot.storage is not None  # otherwise bucket views are off
                slot.users = count_users(slot.storage)
                first += slot.param.numel()
            if self._keeps_heap and context.current().runtime.is_shared(alike[0].compact):
                _core.keep_freed_memory()


def _can_have_view(param: torch.Tensor) -> bool:
    return (
        param.is_cpu
        and param.layout is torch.strided
        and param.dtype in DTYPES
        and not param.is_complex()
        and param.numel() > 0
    )


def _set_view(slot: Slot, flat: torch.Tensor) -> None:
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
    slot.view_address = slot.view.data_ptr()
