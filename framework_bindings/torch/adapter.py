"""torch tensors, as the operations of horocache see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from horocache.collectives.api import Collectives
from horocache.errors import InvalidArgumentError, UnsupportedError, no_memory_for
from torch.utils.dlpack import from_dlpack

if TYPE_CHECKING:
    from horocache._core import Result

DTYPES = frozenset(
    (
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.bool,
        # torch has these since 2.3.
        *(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)),
    )
)

_Tensor = torch.Tensor
_strided = torch.strided


def _version_counter() -> Callable[[Any], object] | None:
    """What tells autograd that the memory of some tensors has changed; torch has it since 2.2."""
    # The public function checks types on top of this one, which takes as long as the rest of a small operation.
    direct = getattr(torch._C, "_increment_version", None)
    public = getattr(torch.autograd.graph, "increment_version", None)
    try:
        if direct is not None:
            direct(())
            return cast("Callable[[Any], object]", direct)
    except TypeError:  # it takes one tensor
        pass
    if public is None:
        return None
    return lambda tensors: [public(tensor) for tensor in tensors if not tensor.is_inference()]


_increment_versions = _version_counter()


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several elements are the same memory, as :meth:`torch.Tensor.expand` makes them."""
    return any(step == 0 and count > 1 for step, count in zip(tensor.stride(), tensor.shape, strict=True))


def _of_memory(error: RuntimeError, tensor: torch.Tensor) -> Exception:
    # torch has a type of its own for devices alone.
    return no_memory_for(tensor.nbytes) if "allocate" in str(error) else error


class TorchAdapter:
    """:class:`~horocache.collectives.tensor_adapter.TensorAdapter` for dense CPU ``torch.Tensor``."""

    plain_type: type | None = _Tensor

    def check(self, value: Any) -> torch.Tensor:
        """The tensor itself, if a backend can send it."""
        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(
                f"expected a torch.Tensor, got {type(value).__module__}.{type(value).__qualname__}."
            )
        if not value.is_cpu:
            raise UnsupportedError(
                f"the tensor is on {value.device}; there is no {value.device.type.upper()} backend yet. "
                "Move it with .cpu()."
            )
        if value.layout is not torch.strided:
            raise UnsupportedError(f"tensors of layout {value.layout} cannot be sent; see sparse_allreduce_async.")
        if value.dtype not in DTYPES:
            names = ", ".join(sorted(str(dtype) for dtype in DTYPES))
            raise UnsupportedError(f"tensors of dtype {value.dtype} cannot be sent; there are {names}.")
        return value

    def as_is(self, value: Any, writable: bool) -> bool:
        """Whether the tensor can be sent from, and written into, where it is."""
        return (
            type(value) is _Tensor
            and not value.requires_grad
            and not value.is_neg()  # the usual tensor passes all of them, so their order does not matter
            and not value.is_conj()
            and value.is_cpu
            and value.dtype in DTYPES
            and value.layout is _strided
            and value.is_contiguous()
        )

    def check_writable(self, tensor: torch.Tensor) -> None:
        """Refuse tensors whose elements share memory."""
        if is_expanded(tensor):
            raise InvalidArgumentError(
                f"the tensor of shape {tuple(tensor.shape)} is expanded: several of its elements are the same memory, "
                "so an in-place operation cannot store its result in it. Use .clone()."
            )

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Dimensions."""
        return tuple(tensor.shape)

    def dense(self, tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """The tensor itself, without its graph, if it is contiguous, else a copy."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor, False
        try:
            return tensor.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg(), True
        except RuntimeError as error:
            raise _of_memory(error, tensor) from None

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new contiguous tensor."""
        try:
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        except RuntimeError as error:
            raise _of_memory(error, tensor) from None

    def copy_into(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Store the values, unseen by autograd."""
        target.detach().copy_(source)

    def written(self, tensor: torch.Tensor, answer: object = None) -> torch.Tensor:
        """Make autograd refuse a graph that saved the values that are gone."""
        if _increment_versions is not None:
            _increment_versions((tensor,))
        return tensor

    def all_written(self, tensors: Sequence[torch.Tensor], answer: object = None) -> list[torch.Tensor]:
        """The same for several, in one call."""
        if _increment_versions is not None:
            _increment_versions(tensors)
        return list(tensors)

    def floating(self, tensor: torch.Tensor) -> bool:
        """Whether the elements are real floating-point numbers."""
        return tensor.dtype.is_floating_point

    def dot(self, a: torch.Tensor, b: torch.Tensor) -> float:
        """The scalar product, in float64."""
        return float(torch.dot(a.reshape(-1).double(), b.reshape(-1).double()))

    def as_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """A scalar as one row."""
        return tensor if tensor.dim() else tensor.reshape(1)

    def first_rows(self, tensor: torch.Tensor, rows: int) -> torch.Tensor:
        """The first rows."""
        return tensor if rows == tensor.shape[0] else tensor[:rows]

    def from_result(self, result: Result) -> torch.Tensor:
        """A tensor on the core's memory, by DLPack."""
        tensor: torch.Tensor = from_dlpack(result)
        return tensor

    def dtype_name(self, dtype: Any) -> str:
        """As torch calls it; None is torch's default."""
        return str(torch.get_default_dtype() if dtype is None else dtype).removeprefix("torch.")

    def integers(self, values: Sequence[int]) -> torch.Tensor:
        """An int32 vector."""
        return torch.tensor(values, dtype=torch.int32)


collectives: Collectives[torch.Tensor] = Collectives(TorchAdapter())
