"""Tensors as bytes, for ranks that get them without having them before."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from horocache.errors import UnsupportedError
from horocache.moe.exchanges.exchange import Memory

__all__ = ["RawTensor"]


@dataclass(frozen=True)
class RawTensor:
    """All that a rank needs to make a tensor from its bytes.

    Attributes:
        dtype: element type.
        shape: of the tensor.
        stride: of the tensor, or that of a dense copy if elements overlap or have gaps.
        on_device: True if the tensor is where its parameter is; otherwise it is on the CPU, as some optimizers keep the
            number of steps.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    on_device: bool

    @property
    def bytes(self) -> int:
        """The size of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, tensor: torch.Tensor, device: torch.device, what: str) -> RawTensor:
        """Describe a tensor.

        Args:
            tensor: any dense tensor.
            device: of the parameter that it belongs to.
            what: names the tensor in errors.

        Raises:
            UnsupportedError: the tensor is not dense, has no elements of its own, as those of type meta and parts of a
                sharded one, or is on a third device.
        """
        plain = type(tensor.data) in (torch.Tensor, torch.nn.Parameter)
        if not plain or tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
            raise UnsupportedError(
                f"{what} is a {type(tensor.data).__name__} ({tensor.layout}) on {tensor.device}, and only plain dense "
                "tensors move between ranks; make the expert without sharding, quantization and meta tensors"
            )
        if tensor.device not in (device, torch.device("cpu")):
            raise UnsupportedError(f"{what} is on {tensor.device}, and its parameter on {device}; keep them together")
        stride = torch.empty_like(tensor, device="meta").stride()
        return cls(tensor.dtype, tuple(tensor.shape), tuple(stride), tensor.device == device)

    @staticmethod
    def to_bytes(tensor: torch.Tensor) -> Memory:
        """Return the elements in the order of a contiguous tensor."""
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        memory: Memory = flat.view(torch.uint8).numpy()
        return memory

    def from_bytes(self, memory: Memory, device: torch.device) -> torch.Tensor:
        """Return a new tensor.

        Args:
            memory: as many bytes as :attr:`bytes`.
            device: that of the parameter.
        """
        values = torch.empty(self.shape, dtype=self.dtype)
        values.view(-1).view(torch.uint8).numpy()[:] = memory
        where = device if self.on_device else torch.device("cpu")
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=where)
        return made.copy_(values)
