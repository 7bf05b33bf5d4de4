"""What a framework implements so that every collective works on its tensors.

A new framework is one :class:`TensorAdapter` (and, if it trains, an optimizer); the semantics of the collectives are in
:mod:`horocache.collectives.api`, once for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horocache._core import Result

T = TypeVar("T")


class TensorAdapter(Protocol[T]):
    """One framework's tensors, as the operations see them.

    Role: stateless; one instance per framework, shared by all threads.
    """

    def check(self, value: Any) -> T:
        """The tensor to send for what the caller passed.

        Raises:
            InvalidArgumentError: not a tensor of this framework. UnsupportedError: a device, layout or element type
                that no backend handles.
        """

    def as_is(self, value: Any, writable: bool) -> bool:
        """Whether the core can read from, and where ``writable`` write to, the memory of ``value`` where it is.

        True promises what :meth:`check`, :meth:`dense` and :meth:`check_writable` would find out more slowly; False
        promises nothing.
        """

    plain_type: type | None
    """The tensors that the core may read by itself, with memory, shape and element type; None: there are none.

    Of these very types, not of those derived from them. The core asks a tensor whether its memory holds its values.
    """

    def check_writable(self, tensor: T) -> None:
        """Raise InvalidArgumentError if an in-place operation could not store its result."""

    def shape(self, tensor: T) -> tuple[int, ...]:
        """Dimensions."""

    def dense(self, tensor: T) -> tuple[T, bool]:
        """Contiguous memory in row-major order with the tensor's values, and whether it is a private copy."""

    def empty_like(self, tensor: T) -> T:
        """A new contiguous tensor of the same shape, element type and device; its values do not matter."""

    def copy_into(self, target: T, source: T) -> None:
        """Store the values of ``source`` in ``target``, whatever strides it has."""

    def written(self, tensor: T, answer: object = None) -> T:
        """Take notice that the core wrote into the tensor's memory; returns the tensor.

        ``answer`` is not used: with it this is the finisher of an operation in place.
        """

    def all_written(self, tensors: Sequence[T], answer: object = None) -> list[T]:
        """The same for several."""

    def floating(self, tensor: T) -> bool:
        """Whether the elements are real floating-point numbers."""

    def dot(self, a: T, b: T) -> float:
        """The scalar product of two floating-point tensors of one shape, in float64."""

    def as_rows(self, tensor: T) -> T:
        """The tensor itself, or one row for a scalar."""

    def first_rows(self, tensor: T, rows: int) -> T:
        """The first ``rows`` rows, sharing memory."""

    def from_result(self, result: Result) -> T:
        """A tensor on memory that the core allocated, without a copy."""

    def dtype_name(self, dtype: Any) -> str:
        """The core's name of an element type; None is the framework's default for floating-point numbers."""

    def integers(self, values: Sequence[int]) -> T:
        """A one-dimensional tensor of 32-bit integers."""
