"""The operations as JAX's transformations see them: result shapes, gradients and batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
from horocache.collectives.arguments import Name
from horocache.collectives.completion import synchronize
from horocache.collectives.reduce_op import Average, Sum
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet
from horocache.data_parallel import vjp
from horocache.data_parallel.vjp import Call, Reduction
from horocache.errors import InvalidArgumentError, UnsupportedError

from .adapter import collectives
from .compression import Compression
from .primitive import Arrays, Operation, Places, apply, described

Rows = tuple[int, ...]  # the number of rows of an array on each rank


def place_in(process_set: ProcessSet) -> tuple[int, int]:
    """Return this process's rank in a process set, and the number of ranks in the set."""
    return process_set.rank(), process_set.size()


def _compiled_name(name: Name) -> Name:
    """Return an operation's name in a compiled function; see Note [Operations in compiled functions]."""
    if name is None:
        return "jit"
    return b"jit/" + name if isinstance(name, bytes) else f"jit/{name}"


def _with_rows(array: Any, rows: int) -> jax.ShapeDtypeStruct:
    return described((rows, *array.shape[1:]), array.dtype)


@dataclass(frozen=True, kw_only=True)
class Collective(Operation):
    """A collective on one array, or on several arrays as a group."""

    name: Name
    process_set: ProcessSet
    backend: str | None
    group: bool = False
    is_tangent: bool = False

    @property
    def call(self) -> Call:
        """The arguments that the operation shares with the operation of its gradient."""
        return Call(self.name, self.process_set, self.backend, self.group)

    def differentiated(self) -> tuple[Operation, Operation]:
        """Return the operation, and the same operation on the tangents: collectives are linear."""
        return self, replace(self, is_tangent=True)

    def results(self, arrays: Arrays) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes and types of the arguments, which are those of the results."""
        return [described(array.shape, array.dtype) for array in arrays]

    def with_batches(self, arrays: Arrays, places: Places) -> tuple[Arrays, Places]:
        """Run the operation unchanged: it works element by element."""
        return apply(self, arrays), places

    def where(self, compiled: bool) -> dict[str, Any]:
        """Return the arguments that all collectives have, for :mod:`horocache.collectives.api`."""
        name = self.name
        if self.is_tangent and name is not None:
            name = name + b".tangent" if isinstance(name, bytes) else f"{name}.tangent"
        if compiled:
            name = _compiled_name(name)
        return {"name": name, "process_set": self.process_set, "backend": self.backend}

    def run_as(self, kind: str, arrays: Arrays, compiled: bool, **arguments: Any) -> Arrays:
        """Run the collective ``kind``, or ``grouped_<kind>`` for a group."""
        method = getattr(collectives, f"grouped_{kind}" if self.group else kind)
        answer = method(list(arrays) if self.group else arrays[0], **arguments, **self.where(compiled))
        return list(answer) if self.group else [answer]


@dataclass(frozen=True, kw_only=True)
class _Reducing(Collective):
    """A collective that reduces."""

    compression: AnyCompressor
    op: int
    scales: tuple[float, float]

    kind: ClassVar[str]

    def differentiated(self) -> tuple[Operation, Operation]:
        """Return the operation, and that for tangents. Only Average and Sum have tangents."""
        if self.op in (Average, Sum):
            return super().differentiated()
        return self, _NoGradient(self.kind, self.op, self.results)

    def run(self, arrays: Arrays, compiled: bool) -> Arrays:
        """Reduce the arrays over the ranks."""
        before, after = self.scales
        how = {"compression": self.compression, "op": self.op, "prescale_factor": before, "postscale_factor": after}
        return self.run_as(self.kind, arrays, compiled, **how)


@dataclass(frozen=True, kw_only=True)
class Allreduce(_Reducing):
    """An allreduce of arrays in a traced function."""

    kind: ClassVar[str] = "allreduce"

    def cotangents(self, grads: Arrays, arrays: Arrays) -> Arrays:
        """Reduce the cotangents in the same way."""
        how = Reduction(self.compression, self.op, self.scales)
        return vjp.of_allreduce(_Operations(), grads, how, self.call)


@dataclass(frozen=True, kw_only=True)
class Broadcast(Collective):
    """A broadcast of arrays in a traced function."""

    root_rank: int

    def run(self, arrays: Arrays, compiled: bool) -> Arrays:
        """Copy the root's arrays to all ranks."""
        return self.run_as("broadcast", arrays, compiled, root_rank=self.root_rank)

    def cotangents(self, grads: Arrays, arrays: Arrays) -> Arrays:
        """Return the average of the ranks' cotangents on the root, zeros on the other ranks."""
        is_root = self.process_set.ranks[self.process_set.rank()] == self.root_rank
        return vjp.of_broadcast(_Operations(), grads, is_root, self.call)


@dataclass(frozen=True, kw_only=True)
class _ByRows(Collective):
    """A collective that distributes rows: the first dimension matters, and results depend on the rank.

    In a function that JAX compiles or differentiates, the sizes of the results must be known before it runs.
    """

    place: tuple[int, int]  # this rank's number in the set, and the number of ranks
    foreseen: bool = False  # True if the results must have the shapes that ``results`` returns

    def differentiated(self) -> tuple[Operation, Operation]:
        """Return the operation and that for tangents, both with results of known shapes."""
        own = replace(self, foreseen=True)
        return own, replace(own, is_tangent=True)

    def check_place(self) -> None:
        """Raise InvalidArgumentError if the function was traced for another rank or another number of ranks."""
        now = place_in(self.process_set)
        if now != self.place:
            raise InvalidArgumentError(
                f"the function was compiled for rank {self.place[0]} of {self.place[1]}, but this is rank {now[0]} of "
                f"{now[1]} of the process set: call jax.clear_caches() after init()."
            )

    def with_batches(self, arrays: Arrays, places: Places) -> tuple[Arrays, Places]:
        """Move the batch behind the rows, where all ranks have the same dimensions, and run the operation once."""
        moved = []
        for array, place in zip(arrays, places, strict=True):
            if place is None:
                moved.append(array)
            else:
                moved.append(self.row_of_scalars(array) if array.ndim == 1 else jnp.moveaxis(array, place, 1))
        return apply(self, moved), [None if place is None else 1 for place in places]

    def row_of_scalars(self, array: Any) -> Any:
        """Return a batch of scalars as one row; raises InvalidArgumentError if the operation does not take scalars."""
        self.results([described((), array.dtype)])  # raises if a scalar is not allowed
        return array[None]


@dataclass(frozen=True, kw_only=True)
class Allgather(_ByRows):
    """An allgather of arrays in a traced function."""

    rows: tuple[Rows, ...] | None = None  # one entry per array; None if all ranks have the same number of rows

    def expected(self, arrays: Arrays) -> tuple[Rows, ...]:
        """Return the expected number of rows on each rank, for each array; a scalar counts as one row."""
        return self.rows or tuple((array.shape[0] if array.shape else 1,) * self.place[1] for array in arrays)

    def results(self, arrays: Arrays) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes of the results, which have the rows of all ranks."""
        return [_with_rows(array, sum(rows)) for array, rows in zip(arrays, self.expected(arrays), strict=True)]

    def run(self, arrays: Arrays, compiled: bool) -> Arrays:
        """Gather the rows; raises InvalidArgumentError if sizes must be known beforehand and differ from these."""
        self.check_place()
        gathered = collectives.allgather_with_rows(list(arrays), group=self.group, **self.where(compiled))
        if compiled or self.foreseen:
            for expected, (_, rows) in zip(self.expected(arrays), gathered, strict=True):
                _check_rows("allgather", expected, rows)
        return [output for output, _ in gathered]

    def cotangents(self, grads: Arrays, arrays: Arrays) -> Arrays:
        """Average the cotangents over the ranks, and take this rank's rows."""
        starts = [sum(rows[: self.place[0]]) for rows in self.expected(arrays)]
        return vjp.of_allgather(_Operations(), grads, starts, [array.shape for array in arrays], self.call)


@dataclass(frozen=True, kw_only=True)
class Alltoall(_ByRows):
    """An alltoall of one array in a traced function; every rank gets the same number of rows."""

    def results(self, arrays: Arrays) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes of the arguments; raises InvalidArgumentError if the rows cannot be split evenly."""
        for array in arrays:
            if not array.shape or array.shape[0] % self.place[1]:
                raise InvalidArgumentError(
                    f"alltoall without splits shares the rows out evenly among {self.place[1]} ranks; an array of "
                    f"shape {array.shape} cannot be shared out so."
                )
        return super().results(arrays)

    def run(self, arrays: Arrays, compiled: bool) -> Arrays:
        """Exchange rows; raises InvalidArgumentError if sizes must be known beforehand and differ from these."""
        self.check_place()
        output, received = synchronize(collectives.alltoall_async(arrays[0], None, **self.where(compiled)))
        if compiled or self.foreseen:
            rows = received.tolist()
            _check_rows("alltoall", (arrays[0].shape[0] // self.place[1],) * self.place[1], rows)
        return [output]

    def cotangents(self, grads: Arrays, arrays: Arrays) -> Arrays:
        """Send the rows of the cotangents back."""
        return vjp.of_alltoall(_Operations(), grads, grads, [array.shape for array in arrays], self.call)


@dataclass(frozen=True, kw_only=True)
class Reducescatter(_Reducing, _ByRows):
    """A reducescatter of arrays in a traced function."""

    kind: ClassVar[str] = "reducescatter"

    def shares(self, array: Any) -> Rows:
        """Return the number of rows for each rank; the first ranks get one more if the rows do not divide evenly."""
        if not array.shape:
            raise InvalidArgumentError("Reducescatter does not support scalar inputs: they have no rows to share out.")
        ranks = self.place[1]
        return tuple((array.shape[0] - rank + ranks - 1) // ranks for rank in range(ranks))

    def results(self, arrays: Arrays) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes of this rank's parts."""
        return [_with_rows(array, self.shares(array)[self.place[0]]) for array in arrays]

    def run(self, arrays: Arrays, compiled: bool) -> Arrays:
        """Reduce the arrays over the ranks and return this rank's rows."""
        self.check_place()
        return super().run(arrays, compiled)

    def cotangents(self, grads: Arrays, arrays: Arrays) -> Arrays:
        """Gather the scaled cotangents."""
        run = _Operations(tuple(self.shares(array) for array in arrays))
        return vjp.of_reducescatter(run, grads, self.op, self.scales, self.place[1], self.call)


def _check_rows(kind: str, expected: Sequence[int], rows: Sequence[int]) -> None:
    if list(rows) != list(expected):
        raise InvalidArgumentError(
            f"{kind} in a function that JAX compiles or differentiates needs sizes that are known when it is traced: "
            f"{list(expected)} rows from the ranks. There came {list(rows)}. Pad the arrays to one size, or call it "
            "outside."
        )


@dataclass(frozen=True)
class OnHost(Operation):
    """A function of arrays that runs on the host, in order with the other operations. All ranks must call it alike.

    Args:
        what: names the operation in errors.
        shapes: the shapes and types of the results.
        function: gets the arrays, and a prefix for the names of the operations that it runs; returns the results.
    """

    what: str
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    function: Callable[[list[Any], str], Sequence[Any]] = field(hash=False)

    def results(self, arrays: Arrays) -> Sequence[jax.ShapeDtypeStruct]:
        """Return the given shapes."""
        return self.shapes

    def run(self, arrays: Arrays, compiled: bool) -> Arrays:
        """Call the function."""
        return self.function(list(arrays), "jit/" if compiled else "")

    def differentiated(self) -> NoReturn:
        """Raise UnsupportedError."""
        raise UnsupportedError(
            f"{self.what} has no gradient: call it outside of the differentiated function, or on jax.lax.stop_gradient "
            "of its arguments."
        )

    def cotangents(self, grads: Arrays, arrays: Arrays) -> NoReturn:
        """Raise UnsupportedError."""
        self.differentiated()

    def with_batches(self, arrays: Arrays, places: Places) -> NoReturn:
        """Raise UnsupportedError."""
        raise UnsupportedError(f"{self.what} cannot be inside of jax.vmap: call it outside, on the whole batch.")


@dataclass(frozen=True)
class _NoGradient(Operation):
    """Stands for the tangents of a reduction without a gradient; raises UnsupportedError if they are needed."""

    kind: str
    op: int
    shapes: Callable[[Arrays], Sequence[jax.ShapeDtypeStruct]] = field(hash=False, compare=False)

    has_effect: ClassVar[bool] = False

    def results(self, arrays: Arrays) -> Sequence[jax.ShapeDtypeStruct]:
        """Return the shapes of the reduction's results."""
        return self.shapes(arrays)

    def run(self, arrays: Arrays, compiled: bool) -> NoReturn:
        """Raise UnsupportedError."""
        raise UnsupportedError(
            f"{self.kind} has a gradient for Average and Sum only, not for op={self.op}: call it on "
            "jax.lax.stop_gradient of its argument."
        )

    def differentiated(self) -> NoReturn:
        """Raise UnsupportedError."""
        self.run([], False)

    def cotangents(self, grads: Arrays, arrays: Arrays) -> NoReturn:
        """Raise UnsupportedError."""
        self.run([], False)

    def with_batches(self, arrays: Arrays, places: Places) -> tuple[Arrays, Places]:
        """Stay the same operation, on the batches."""
        return apply(self, arrays), places


class _Operations:
    """Implements :class:`horocache.data_parallel.vjp.Differentiable` for traced functions.

    Args:
        rows: the number of rows of each gathered array on each rank; None if it is the same on all ranks.
    """

    def __init__(self, rows: tuple[Rows, ...] | None = None) -> None:
        self._rows = rows
        self.uncompressed: Any = Compression.none

    def refuse(self, grads: Arrays, op: int, what: str) -> NoReturn:
        _NoGradient(what, op, lambda _: []).run([], False)

    def allreduce(self, tensors: Arrays, how: Reduction, call: Call) -> Arrays:
        return apply(Allreduce(**how._asdict(), **call._asdict()), tensors)

    def allgather(self, tensors: Arrays, call: Call) -> Arrays:
        place = place_in(call.process_set)
        return apply(Allgather(place=place, rows=self._rows, foreseen=True, **call._asdict()), tensors)

    def alltoall_back(self, tensor: Any, splits: Any, rows: Any, call: Call) -> Any:
        return apply(Alltoall(place=place_in(call.process_set), foreseen=True, **call._asdict()), [tensor])[0]

    def own_rows(self, tensor: Any, start: int, shape: Sequence[int]) -> Any:
        return tensor[start : start + (shape[0] if shape else 1)].reshape(shape)

    def zeros(self, tensor: Any) -> Any:
        return jnp.where(jnp.zeros((), bool), tensor, jnp.zeros_like(tensor))

    def scale(self, tensor: Any, factor: float) -> Any:
        return tensor * factor
