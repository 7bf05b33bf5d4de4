"""Access to a framework's tensors, and which framework a tensor belongs to.

NumPy arrays are known from the start. The module for torch tensors is imported when the first one comes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from horocache.collectives.numpy import collectives
from horocache.collectives.operations import Collectives
from horocache.errors import InvalidArgumentError, no_memory_for


class Arrays:
    """Access to one framework's tensors, besides that of its :class:`TensorAdapter`.

    A *vector* is a contiguous one-dimensional tensor.

    Role: stateless, except for the codes of element types; one instance per framework, shared by all threads.
    """

    def __init__(self, of: Collectives[Any], tensor_type: type) -> None:
        self.collectives = of
        self.adapter = of.adapter
        self.tensor_type = tensor_type
        self.plain_type = of.adapter.plain_type
        self.codes: dict[Any, str] = {}  # the core's names of element types, as far as they have come up

    def is_tensor(self, value: Any) -> bool:
        """True if ``value`` is a tensor of the framework."""
        return isinstance(value, self.tensor_type)

    def code(self, tensor: Any) -> str:
        """Return the core's name of a tensor's element type, which is the same on ranks with other frameworks.

        Raises:
            UnsupportedError: the core cannot send such tensors.
        """
        known = self.codes.get(tensor.dtype)
        if known is None:
            self.adapter.check(tensor)
            known = self.codes[tensor.dtype] = self.adapter.dtype_name(tensor.dtype)
        return known

    def checked(self, tensor: Any, what: str) -> Any:
        """Return the tensor if the core can send it. ``what`` names it in the error."""
        if not self.is_tensor(tensor):
            raise InvalidArgumentError(
                f"{what} must be a tensor like the others of the call, not {type(tensor).__qualname__}."
            )
        return self.adapter.check(tensor)

    def vector(self, tensor: Any) -> tuple[Any, bool]:
        """Return the tensor's elements as a vector, and True if that is a private copy."""
        dense, private = self.adapter.dense(tensor)
        return dense.reshape(-1), private

    # ---- on a vector; the frameworks differ

    def count(self, tensor: Any) -> int:
        """Return the number of elements."""
        return int(tensor.size)

    def copy(self, vector: Any) -> Any:
        """Return a vector with the same values and memory of its own."""
        try:
            return vector.copy()
        except MemoryError:
            raise no_memory_for(vector.nbytes) from None

    def joined(self, vectors: Sequence[Any]) -> Any:
        """Return one vector with the elements of several."""
        try:
            return np.concatenate(vectors)
        except MemoryError:
            raise no_memory_for(sum(vector.nbytes for vector in vectors)) from None

    def new(self, count: int, like: Any) -> Any:
        """Return a vector of ``count`` undefined elements."""
        try:
            return np.empty(count, like.dtype)
        except MemoryError:
            raise no_memory_for(count * like.itemsize) from None

    def overlap(self, one: Any, other: Any) -> bool:
        """True if two vectors share memory."""
        return bool(one.size and other.size and np.may_share_memory(one, other))

    def on_host(self, tensor: Any) -> bool:
        """True if the core can store results of any operation in the tensor's memory."""
        return True


NUMPY = Arrays(collectives, np.ndarray)
_known: dict[type, Arrays] = {np.ndarray: NUMPY}
# Those whose tensors of exactly this type the core can read by itself.
plain: dict[type, Arrays] = {np.ndarray: NUMPY}


def arrays_of(tensor: Any) -> Arrays:
    """Return the access to the framework that a tensor belongs to.

    Raises:
        InvalidArgumentError: ``tensor`` is neither a NumPy array nor a torch tensor.
    """
    known = _known.get(type(tensor))
    if known is None:
        known = _known[type(tensor)] = _found(tensor)
    return known


def _found(tensor: Any) -> Arrays:
    if isinstance(tensor, np.ndarray):
        return NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        module = importlib.import_module("horocache.mcr_dl.torch_arrays")
        arrays: Arrays = module.TORCH
        plain[torch.Tensor] = arrays
        return arrays
    raise InvalidArgumentError(
        f"mcr_dl takes torch tensors and NumPy arrays, not {type(tensor).__module__}.{type(tensor).__qualname__}."
    )
