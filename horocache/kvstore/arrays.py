"""Access to the tensors of a store's keys: NumPy arrays, torch tensors and MXNet's arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from horocache.collectives.numpy import collectives as numpy_collectives
from horocache.collectives.operations import Collectives
from horocache.errors import InvalidArgumentError
from horocache.kvstore.ndarray import is_ndarray, view_of


def is_torch(value: object) -> bool:
    """True for a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def checked(value: Any, key: object, what: str) -> Any:
    """Return a tensor whose memory the store can read and write.

    Args:
        value: the caller's.
        key: for the error.
        what: "value" or "out", for the error.

    Raises:
        InvalidArgumentError: it is none. UnsupportedError: see :func:`horocache.kvstore.ndarray.view_of`.
    """
    if isinstance(value, np.ndarray):
        return value
    if is_torch(value):
        return value.detach()
    if is_ndarray(value):
        return view_of(value)
    raise InvalidArgumentError(
        f"key {key!r}: {what} must be a torch tensor, a NumPy array or an MXNet array, not {type(value).__name__}."
    )


def kind(value: Any) -> tuple[str, str, tuple[int, ...]]:
    """Return framework, element type and shape, which all values of a key share."""
    framework = "torch" if is_torch(value) else "numpy"
    return framework, str(value.dtype).removeprefix("torch."), tuple(value.shape)


def described(of: tuple[str, str, tuple[int, ...]]) -> str:
    """Return what :func:`kind` returned as text."""
    framework, dtype, shape = of
    return f"{framework} {dtype}{list(shape)}"


def is_plain(value: Any) -> bool:
    """True if collectives can store a result in the tensor's memory as it is."""
    if is_torch(value):
        return bool(value.is_contiguous() and not value.is_neg() and not value.is_conj())
    return bool(value.flags.c_contiguous and value.flags.writeable)


def copy_of(value: Any) -> Any:
    """Return a contiguous tensor with the same values and memory of its own."""
    return value.clone().contiguous() if is_torch(value) else np.array(value, order="C")


def new_like(value: Any) -> Any:
    """Return a contiguous tensor of the same shape and type, with undefined values."""
    if is_torch(value):
        return value.new_empty(value.shape)
    return np.empty(value.shape, value.dtype)


def assign(target: Any, source: Any) -> None:
    """Copy the values of ``source``, which may be a NumPy view of torch's memory, into ``target``."""
    target[...] = source


def sum_into(target: Any, values: Sequence[Any]) -> None:
    """Store the sum of ``values``, in their order, in ``target``."""
    assign(target, values[0])
    for value in values[1:]:
        target += value


def share_memory(one: Any, other: Any) -> bool:
    """True if two tensors of one kind are the same memory."""
    if one is other:
        return True
    if is_torch(one):
        same = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
        return bool(same and one.shape == other.shape and one.numel())
    return bool(one.size) and one.ctypes.data == other.ctypes.data and one.strides == other.strides


def overlap(one: Any, other: Any) -> bool:
    """True if two tensors of one kind may share memory."""
    if is_torch(one):
        return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and one.numel())
    return bool(np.may_share_memory(one, other))


def collectives_of(value: Any) -> Collectives[Any]:
    """Return the collectives on the tensor's framework."""
    if not is_torch(value):
        return numpy_collectives
    from horocache.torch import adapter  # noqa: PLC0415  (a program without torch tensors needs no torch)

    on_torch: Collectives[Any] = adapter.collectives
    return on_torch
