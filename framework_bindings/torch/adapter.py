"""The tensor adapter for torch: how the collectives check, read and write torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from horocache import _core
from horocache.collectives.api import Collectives
from horocache.collectives.compression import Array
from horocache.errors import InvalidArgumentError, UnsupportedError, no_memory_for
from torch.utils import dlpack
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
        # Available since torch 2.3.
        *(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)),
    )
)

CUDA = "cuda"  # the type of the devices, besides the CPU, whose tensors the core takes

_Tensor = torch.Tensor
_strided = torch.strided


def _version_counter() -> Callable[[Any], object] | None:
    """Return the function that increments the version counters of tensors; None before torch 2.2.

    Autograd compares version counters to detect that a saved tensor has been overwritten.
    """
    # The public function adds type checks to this one. They take as long as the rest of a small operation.
    direct = getattr(torch._C, "_increment_version", None)
    public = getattr(torch.autograd.graph, "increment_version", None)
    try:
        if direct is not None:
            direct(())
            return cast("Callable[[Any], object]", direct)
    except TypeError:  # this version of torch takes a single tensor
        pass
    if public is None:
        return None
    return lambda tensors: [public(tensor) for tensor in tensors if not tensor.is_inference()]


_increment_versions = _version_counter()
_to_capsule = cast(Any, dlpack).to_dlpack  # lets no stream wait, and takes tensors of any device


def _current_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):  # torch before 2.10
    _core.read_with(torch.Tensor, _to_capsule, _current_stream)


def can_be_sent(tensor: torch.Tensor) -> bool:
    """Return True if the core takes tensors of the device."""
    return tensor.is_cpu or tensor.device.type == CUDA


def with_own_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the same memory, of which torch does not know that it is a view of another one."""
    return from_dlpack(_to_capsule(tensor))  # a tensor itself would have to be on the current device


def is_expanded(tensor: torch.Tensor) -> bool:
    """Return True if several elements share memory, as after :meth:`torch.Tensor.expand`."""
    repeats = any(step == 0 and count > 1 for step, count in zip(tensor.stride(), tensor.shape, strict=True))
    return repeats and tensor.numel() > 0


def _of_memory(error: RuntimeError, tensor: torch.Tensor) -> Exception:
    # torch has an out-of-memory error for devices only; for CPU memory it raises a plain RuntimeError.
    return no_memory_for(tensor.nbytes) if tensor.is_cpu and "allocate" in str(error) else error


class TorchAdapter:
    """:class:`~horocache.collectives.tensor_adapter.TensorAdapter` for dense tensors on CPU and CUDA."""

    plain_type: type | None = _Tensor

    def check(self, value: Any) -> torch.Tensor:
        """Return the tensor itself if a backend can send it; otherwise raise."""
        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(
                f"expected a torch.Tensor, got {type(value).__module__}.{type(value).__qualname__}."
            )
        if not can_be_sent(value):
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
        """Return True if the core can read and write the tensor's own memory.

        Fast path: True means that :meth:`check`, :meth:`dense` and :meth:`check_writable` accept the tensor as it is.
        False means unknown.
        """
        return (
            type(value) is _Tensor
            and not value.requires_grad
            and not value.is_neg()  # a typical tensor passes all tests, so their order does not matter
            and not value.is_conj()
            and (value.is_cpu or value.device.type == CUDA)
            and value.dtype in DTYPES
            and value.layout is _strided
            and value.is_contiguous()
        )

    def check_writable(self, tensor: torch.Tensor) -> None:
        """Raise InvalidArgumentError if elements of the tensor share memory."""
        if is_expanded(tensor):
            raise InvalidArgumentError(
                f"the tensor of shape {tuple(tensor.shape)} is expanded: several of its elements are the same memory, "
                "so an in-place operation cannot store its result in it. Use .clone()."
            )

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Return the dimensions."""
        return tuple(tensor.shape)

    def dense(self, tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Return the values in contiguous memory, detached from the graph, and whether that is a private copy."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor, False
        try:
            return tensor.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg(), True
        except RuntimeError as error:
            raise _of_memory(error, tensor) from None

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a new contiguous tensor of the same shape and dtype; its values are undefined."""
        try:
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        except RuntimeError as error:
            raise _of_memory(error, tensor) from None

    def on_host(self, tensor: torch.Tensor, values: bool) -> torch.Tensor:
        """Return the tensor itself if it is on the CPU, otherwise a contiguous one there."""
        if tensor.is_cpu:
            return tensor
        return tensor.cpu() if values else torch.empty_like(tensor, device="cpu")

    def copy_into(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy the values of ``source`` into ``target``; autograd does not record the copy."""
        target.detach().copy_(source)

    def written(self, tensor: torch.Tensor, answer: object = None) -> torch.Tensor:
        """Increment the tensor's version, so that autograd refuses a graph that saved the overwritten values."""
        if _increment_versions is not None:
            _increment_versions((tensor,))
        return tensor

    def all_written(self, tensors: Sequence[torch.Tensor], answer: object = None) -> list[torch.Tensor]:
        """Increment the versions of several tensors in one call."""
        if _increment_versions is not None:
            _increment_versions(tensors)
        return list(tensors)

    def floating(self, tensor: torch.Tensor) -> bool:
        """Return True if the elements are real floating-point numbers."""
        return tensor.dtype.is_floating_point

    def float_type(self, tensor: torch.Tensor) -> str:
        """Return the name of the element type, if it is a real floating-point type."""
        return self.dtype_name(tensor.dtype) if tensor.dtype.is_floating_point else ""

    def to_numpy(self, tensor: torch.Tensor) -> Array:
        """Return the values as an array on the host, in the tensor's memory if they are there in that type."""
        dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
        return tensor.to("cpu", dtype).numpy()

    def store_numpy(self, target: torch.Tensor, values: Array) -> None:
        """Copy the values into ``target``; autograd does not record the copy."""
        self.copy_into(target, torch.from_numpy(values))

    def dot(self, a: torch.Tensor, b: torch.Tensor) -> float:
        """Return the scalar product, computed in float64."""
        return float(torch.dot(a.reshape(-1).double(), b.reshape(-1).double()))

    def as_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself, or one row for a scalar."""
        return tensor if tensor.dim() else tensor.reshape(1)

    def first_rows(self, tensor: torch.Tensor, rows: int) -> torch.Tensor:
        """Return the first ``rows`` rows, which share the tensor's memory."""
        return tensor if rows == tensor.shape[0] else tensor[:rows]

    def from_result(self, result: Result) -> torch.Tensor:
        """Return a tensor on memory that the core allocated, without a copy; or a copy on the operation's device."""
        if result.on_device:
            dtype = getattr(torch, result.dtype)
            tensor = torch.empty(result.shape, dtype=dtype, device=torch.device(CUDA, result.cuda_device))
            result.copy_to(tensor)
            return tensor
        tensor = from_dlpack(result)
        return tensor if result.cuda_device < 0 else tensor.to(torch.device(CUDA, result.cuda_device))

    def dtype_name(self, dtype: Any) -> str:
        """Return the element type's name in torch; None is torch's default dtype."""
        return str(torch.get_default_dtype() if dtype is None else dtype).removeprefix("torch.")

    def integers(self, values: Sequence[int]) -> torch.Tensor:
        """Return an int32 vector."""
        return torch.tensor(values, dtype=torch.int32)


collectives: Collectives[torch.Tensor] = Collectives(TorchAdapter())
