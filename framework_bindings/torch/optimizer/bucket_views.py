"""Bucket views: gradients side by side in one block of memory, where they are reduced in place.

On the CPU, the ranks of a host share this memory. On a GPU it is torch's own; NCCL then needs no copy of it.

Note [Whose memory a gradient is in] in cpp_core/python/torch_gradients/bucket_view.h says which gradients are moved
there.

Note [Freed memory is kept]
glibc returns free memory to the kernel only from the end of the heap. When a step ends, gradients in private memory are
the last blocks of the heap, so the freed memory of the activations below them stays with the process. Gradients in
shared memory do not have this effect: the activations' memory would return to the kernel after each step, and the next
step would fault it in again, page by page. So the binding makes malloc keep freed memory (knob ``keep_heap``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from horocache import _core
from horocache.core import context
from horocache.errors import InvalidArgumentError, UnsupportedError

from ..adapter import DTYPES, can_be_sent, collectives, with_own_storage
from .bucket import Bucket, Slot
from .gradient_queue import count_users

BucketView = bool | Literal["auto"]
_VECTOR_BYTES = 16
_BEHIND_WHOLE_VECTORS = 1  # of the values of flat_part()


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
        self._on_devices = wanted is True
        on_one_host = runtime.local_size == runtime.size
        shares = runtime.knobs()["region_bytes"][0] not in ("0", 0)
        automatic = plain and on_one_host and shares and count_users is not None
        self.wanted = wanted is True or (wanted == "auto" and automatic)
        self._keeps_heap = runtime.knobs()["keep_heap"][0] == "auto"
        self._laid_out: set[_Kind] = set()

    def mark(self, slot: Slot, settled: bool) -> None:
        """Let the slot's gradient get a bucket view when the next gradient arrives, if it can have one.

        Args:
            slot: the slot.
            settled: True if its bucket stays as it is. On a device, only then are bucket views of use: they have the
                order of their bucket.
        """
        on_cpu = slot.param.is_cpu
        slot.moves_at_once = not on_cpu
        slot.wants_view = self.wanted and self._can_have_view(slot.param) and (on_cpu or settled)

    def allocate(self, slot: Slot, buckets: Iterable[Bucket]) -> None:
        """Give the slot a new bucket view; the first time, give one to all slots of its kind that want one.

        Args:
            slot: a slot without a bucket view, or with one that the program uses.
            buckets: all buckets, in the order of their bucket views in memory.
        """
        kind = _kind_of(slot)
        if kind in self._laid_out:
            self._lay_out([slot])
            return
        self._laid_out.add(kind)
        slots = [other for bucket in buckets for other in _in_memory_order(bucket)]
        self._lay_out([other for other in slots if other.wants_view and _kind_of(other) == kind])

    def zeros(self, slot: Slot) -> torch.Tensor | None:
        """Return the slot's bucket view filled with zeros, for a missing gradient; None if it is not available."""
        view, param = slot.view, slot.param
        fits = view is not None and (view.shape, view.dtype, view.device) == (param.shape, param.dtype, param.device)
        if view is None or not fits or not _core.view_is_free(slot):
            return None
        zeros: torch.Tensor = view.zero_()
        return zeros

    def _can_have_view(self, param: torch.Tensor) -> bool:
        return (
            (param.is_cpu or (self._on_devices and can_be_sent(param)))
            and param.layout is torch.strided
            and param.dtype in DTYPES
            and not param.is_complex()
            and param.numel() > 0
        )

    def _lay_out(self, slots: list[Slot]) -> None:
        """Give bucket views to slots of one kind, one behind the other."""
        places, end = _place(slots)
        memory = _allocate(end, slots[0].param.dtype, slots[0].param.device)
        for slot, first in zip(slots, places, strict=True):
            _set_view(slot, memory, first)
            assert count_users is not None and slot.storage is not None  # otherwise bucket views are off
            slot.users = count_users(slot.storage)
        if self._keeps_heap and memory.is_cpu and context.current().runtime.is_shared(slots[0].compact):
            _core.keep_freed_memory()


_Kind = tuple[torch.dtype, torch.device]


def _kind_of(slot: Slot) -> _Kind:
    return slot.param.dtype, slot.param.device


def _in_memory_order(bucket: Bucket) -> Sequence[Slot]:
    """Return the slots of a bucket, on a device in the order in which NCCL's backend packs their gradients."""
    if bucket.slots[0].param.is_cpu:
        return bucket.slots
    return sorted(bucket.slots, key=_part_of)


def _part_of(slot: Slot) -> int:
    return _core.flat_part(slot.param.numel() * slot.param.element_size())


def _place(slots: Iterable[Slot]) -> tuple[list[int], int]:
    """Return the elements at which the slots' bucket views begin, and the number of elements.

    On a device, what the backend takes for one array begins at a whole vector, and is without gaps.
    """
    places, end = [], 0
    bucket: Bucket | None = None
    for slot in slots:
        param = slot.param
        is_inside = slot.bucket is bucket and _part_of(slot) == _BEHIND_WHOLE_VECTORS
        if not param.is_cpu and not is_inside:
            end += -end % max(1, _VECTOR_BYTES // param.element_size())
        places.append(end)
        end += param.numel()
        bucket = slot.bucket
    return places, end


def _allocate(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.empty(count, dtype=dtype, device=device)
    adapter = collectives.adapter
    return adapter.from_result(context.current().runtime.empty([count], adapter.dtype_name(dtype)))


def _set_view(slot: Slot, memory: torch.Tensor, first: int) -> None:
    """Make the bucket view from elements of a vector, with the strides that autograd gives the parameter's gradient."""
    param = slot.param
    order = sorted(range(param.dim()), key=lambda d: (-param.stride(d), d))
    extents = [param.shape[d] for d in order]
    steps = torch.empty(extents, device="meta").stride()
    if all(n == 1 or s == t for n, s, t in zip(extents, steps, (param.stride(d) for d in order), strict=True)):
        strides = param.stride()
    else:  # the parameter has holes, or several of its elements share memory
        extents = list(param.shape)
        strides = steps = torch.empty(extents, device="meta").stride()
    slot.view = with_own_storage(memory.as_strided(param.shape, strides, first))
    if not param.is_cpu:
        # Not the view itself: an operation that the device has not done yet keeps it, as a user of the view would.
        slot.compact = memory.as_strided(extents, steps, first)
    else:
        slot.compact = slot.view if slot.view.is_contiguous() else slot.view.as_strided(extents, steps)
    slot.storage = slot.view.untyped_storage()._cdata
    slot.bytes = slot.view.numel() * slot.view.element_size()
    slot.view_address = slot.view.data_ptr()
