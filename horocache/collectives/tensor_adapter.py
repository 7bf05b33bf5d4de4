"""The interface that a framework implements so that every collective works on its tensors.

A new framework needs one :class:`TensorAdapter` and, if it trains, an optimizer. Each collective is
defined once, in a file of its own in :mod:`horocache.collectives`; ``operations.py`` joins them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from horocache._core import Result

T = TypeVar("T")


class TensorAdapter(Protocol[T]):
    """Access to one framework's tensors for the collectives.

    Role: stateless; one instance per framework, shared by all threads.
    """

    def check(self, value: Any) -> T:
        """Return the tensor to send for the caller's value.

        Raises:
            InvalidArgumentError: ``value`` is not a tensor of this framework. UnsupportedError: no backend handles the
                device, layout or element type.
        """

    def as_is(self, value: Any, writable: bool) -> bool:
        """Fast check that the core can read and, if ``writable``, write the memory of ``value`` where it is.

        True means that ``value`` passes :meth:`check`, :meth:`dense` and, if ``writable``, :meth:`check_writable` as it
        is. False means unknown.
        """

    plain_type: type | None
    """The tensors that the core may read by itself, with memory, shape and element type; None: there are none.

    Of these very types, not of those derived from them. The core asks a tensor whether its memory holds its values.
    """

    def check_writable(self, tensor: T) -> None:
        """Raise InvalidArgumentError if an in-place operation could not store its result."""

    def shape(self, tensor: T) -> tuple[int, ...]:
        """Return the dimensions."""

    def dense(self, tensor: T) -> tuple[T, bool]:
        """Return contiguous memory in row-major order with the tensor's values, and True if it is a private copy."""

    def empty_like(self, tensor: T) -> T:
        """Return a new contiguous tensor of the same shape, element type and device; its values are undefined."""

    def on_host(self, tensor: T, values: bool) -> T:
        """Return the tensor itself if it is in the host's memory, otherwise a contiguous one there.

        ``values``: the new tensor has the tensor's values, once they are computed; otherwise they are undefined.
        """

    def copy_into(self, target: T, source: T) -> None:
        """Store the values of ``source`` in ``target``, which may have any strides."""

    def written(self, tensor: T, answer: object = None) -> T:
        """Record that the core has written into the tensor's memory; returns the tensor.

        ``answer`` is not used. With it, this method can be the finisher of an in-place operation.
        """

    def all_written(self, tensors: Sequence[T], answer: object = None) -> list[T]:
        """Do the same as :meth:`written` for several tensors."""

    def floating(self, tensor: T) -> bool:
        """True if the elements are real floating-point numbers."""

    def float_type(self, tensor: T) -> str:
        """Return the core's name of the element type of a real floating-point tensor; empty for other tensors."""

    def to_numpy(self, tensor: T) -> npt.NDArray[np.floating[Any]]:
        """Return the values of a contiguous floating-point tensor as an array on the host, of the same shape.

        The array has float64 for float64, otherwise float32. It may share the tensor's memory, and is not modified.
        """

    def store_numpy(self, target: T, values: npt.NDArray[np.floating[Any]]) -> None:
        """Store an array of the type that :meth:`to_numpy` returns in ``target``, rounded to its element type.

        ``target`` may have any strides.
        """

    def dot(self, a: T, b: T) -> float:
        """Return the scalar product of two floating-point tensors of the same shape, in float64."""

    def as_rows(self, tensor: T) -> T:
        """Return the tensor itself, or one row for a scalar."""

    def first_rows(self, tensor: T, rows: int) -> T:
        """Return the first ``rows`` rows, which share the tensor's memory."""

    def from_result(self, result: Result) -> T:
        """Return a tensor on memory that the core allocated, without a copy."""

    def dtype_name(self, dtype: Any) -> str:
        """Return the core's name of an element type; None is the framework's default for floating-point numbers."""

    def integers(self, values: Sequence[int]) -> T:
        """Return a one-dimensional tensor of 32-bit integers."""
