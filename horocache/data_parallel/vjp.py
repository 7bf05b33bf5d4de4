"""The gradients of the collectives, as formulas over collectives.

The convention is Horovod's: each rank differentiates its own loss, and the mean of the losses is optimized. So the
gradient of a sum over ranks is a sum, and the gradient of a copy to all ranks is the mean of the ranks' gradients.

The formulas are written once, for all frameworks: for torch's eager operations (:mod:`horocache.torch.autograd`), for
those of a compiled graph (:mod:`horocache.torch.compile.custom_ops`), and for TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from horocache.collectives.arguments import Name
from horocache.collectives.reduce_op import Average, Sum
from horocache.errors import UnsupportedError

T = TypeVar("T")


def backward_name(name: Name) -> Name:
    """Return the name of the operation that computes the gradient of operation ``name``."""
    if name is None:
        return None
    return name + b".backward" if isinstance(name, bytes) else f"{name}.backward"


def member_name(name: Name, index: int) -> Name:
    """Return the name of one operation of a group that is run one by one; the first one has the group's name."""
    if name is None or index == 0:
        return name
    return name + b".%d" % index if isinstance(name, bytes) else f"{name}.{index}"


def without_algorithm(backend: str | None) -> str | None:
    """Return the backend without its algorithm: if the gradient is another operation, it has other algorithms."""
    return None if backend is None else backend.partition("/")[0]


def refuse(op: int, what: str) -> NoReturn:
    """Raise UnsupportedError for a reduction that has no gradient."""
    raise UnsupportedError(f"{what} has a gradient for Average and Sum only, not for op={op}; detach the tensor.")


class Call(NamedTuple):
    """The arguments that an operation and the operation of its gradient have in common."""

    name: Name
    process_set: Any  # as the framework's operations take it
    backend: str | None
    group: bool

    def of_gradient(self) -> Call:
        """Return the call for a gradient that is the same operation."""
        return self._replace(name=backward_name(self.name))

    def of_other_gradient(self) -> Call:
        """Return the call for a gradient that is another operation."""
        return self._replace(name=backward_name(self.name), backend=without_algorithm(self.backend))


class Reduction(NamedTuple):
    """The arguments of an allreduce that define its reduction."""

    compression: Any  # as the framework's operations take it
    op: int
    scales: tuple[float, float]


class Differentiable(Protocol[T]):
    """The operations that the formulas use. They are differentiable, too."""

    uncompressed: Any

    def refuse(self, grads: Sequence[T], op: int, what: str) -> Sequence[T]:
        """Raise UnsupportedError when the backward pass runs, because the reduction has no gradient."""

    def allreduce(self, tensors: Sequence[T], how: Reduction, call: Call) -> Sequence[T]:
        """Reduce one tensor, or a group."""

    def allgather(self, tensors: Sequence[T], call: Call) -> Sequence[T]:
        """Gather the rows of one tensor, or a group."""

    def alltoall_back(self, tensor: T, splits: T, rows: Any, call: Call) -> T:
        """Send ``splits`` rows to the ranks; return ``rows`` rows, of which those that do not come are zeros."""

    def own_rows(self, tensor: T, start: Any, shape: Sequence[Any]) -> T:
        """Return the part of the given shape that begins at row ``start``; a scalar is one row."""

    def zeros(self, tensor: T) -> T:
        """Return zeros that depend on the tensor, so that every rank runs the operation and its gradient."""

    def scale(self, tensor: T, factor: float) -> T:
        """Multiply every element by ``factor``."""


def _of_linear(run: Differentiable[T], grads: Sequence[T], op: int, what: str) -> Sequence[T]:
    # Refused only in the backward pass, so that a result without a backward pass, such as a loss, need not be detached.
    return grads if op in (Average, Sum) else run.refuse(grads, op, what)


def of_allreduce(run: Differentiable[T], grads: Sequence[T], how: Reduction, call: Call) -> Sequence[T]:
    """Reduce the gradients the same way."""
    grads = _of_linear(run, grads, how.op, "allreduce")
    return run.allreduce(grads, how, call.of_gradient())


def _average(run: Differentiable[T], grads: Sequence[T], call: Call) -> Sequence[T]:
    return run.allreduce(grads, Reduction(run.uncompressed, Average, (1.0, 1.0)), call.of_other_gradient())


def of_allgather(
    run: Differentiable[T],
    grads: Sequence[T],
    starts: Sequence[Any],
    shapes: Sequence[Sequence[Any]],
    call: Call,
) -> list[T]:
    """Return this rank's rows of the gradients' mean over the ranks.

    Args:
        run: the operations.
        grads: the gradients of the results.
        starts: for each result, the first row of this rank: an int, or a tensor of one element if the row is unknown
            before the graph runs.
        shapes: the shapes of the gathered tensors.
        call: the arguments of the allgather.
    """
    means = _average(run, grads, call)
    return [run.own_rows(*each) for each in zip(means, starts, shapes, strict=True)]


def of_broadcast(run: Differentiable[T], grads: Sequence[T], is_root: bool, call: Call) -> Sequence[T]:
    """Return the mean over the ranks on the root, and zeros on other ranks."""
    means = _average(run, grads, call)
    if is_root:
        return means
    return [run.zeros(mean) for mean in means]


def of_alltoall(
    run: Differentiable[T],
    grads: Sequence[T],
    received: Sequence[T],
    shapes: Sequence[Sequence[Any]],
    call: Call,
) -> list[T]:
    """Send the rows back by alltoall, with the received splits, one tensor after the other."""
    back = call.of_gradient()._replace(group=False)
    results = []
    for index, (grad, splits, shape) in enumerate(zip(grads, received, shapes, strict=True)):
        own = back._replace(name=member_name(back.name, index))
        results.append(run.alltoall_back(grad, splits, shape[0], own))
    return results


def of_reducescatter(
    run: Differentiable[T],
    grads: Sequence[T],
    op: int,
    scales: tuple[float, float],
    ranks: int,
    call: Call,
) -> Sequence[T]:
    """Allgather the gradients, multiplied by the scales and, for Sum, by the number of ranks."""
    grads = _of_linear(run, grads, op, "reducescatter")
    factor = scales[0] * scales[1] * (ranks if op == Sum else 1)
    scaled = [grad if factor == 1.0 else run.scale(grad, factor) for grad in grads]
    return run.allgather(scaled, call.of_other_gradient())
