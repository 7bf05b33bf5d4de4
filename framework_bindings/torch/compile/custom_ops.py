"""The blocking collectives as operators ``horocache::*``, which torch's compiler takes into its graphs.

Note [Collectives in compiled graphs]
An operator must run on every rank, once, and in program order, independent of the use of its results: a rank that does
not use a result must still take part. Therefore

* the operators are registered as effects of the kind ORDERED. Ahead-of-time autograd then threads a token through all
  of them, in the forward and in the backward graph: the compiler cannot remove an operator, merge it with an equal one,
  run it twice to save memory, or move it past another. Inductor turns tokens into dependencies, which
  :mod:`horocache.torch.compile.inductor_order` preserves;
* the operators write to no tensor, because torch has no tokens for operators that do. In-place forms copy the result;
* everything that shapes and gradients depend on is an argument, including this rank's place in the process set and the
  number of ranks. The compiler guards the values that arguments are computed from, so a graph is not reused for another
  job size. A kernel that is nevertheless called with another place raises an error;
* numbers of rows that other ranks decide on are unbacked symbols, of which only a lower bound is assumed;
* errors are not raised while a graph is made. Kernels check at run time and raise the errors of eager calls.

All arguments are positional, because Inductor drops keywords of effectful operators. The results are one list, because
Inductor loses track of unbacked symbols in several results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from horocache.collectives.barrier import barrier
from horocache.collectives.completion import synchronize
from horocache.core.process_set import ProcessSet, registered_set
from horocache.data_parallel import vjp
from horocache.data_parallel.vjp import Call, Reduction
from horocache.errors import InvalidArgumentError
from torch._library.effects import EffectType

from ..adapter import collectives
from ..compression import Compression
from ..vjp_arithmetic import Arithmetic, with_rows
from .inductor_order import keep_order_in_generated_code

Tensors = list[torch.Tensor]
Nothings = tuple[None, ...]

# The compressors that operators accept, by name; other compressors cannot be in a graph.
COMPRESSORS: dict[str, Any] = {
    compressor.wire_name: compressor for compressor in (Compression.none, Compression.fp16, Compression.bf16)
}


class Place(NamedTuple):
    """A process set as an argument of operators: its number, this process's rank in it, and its size."""

    number: int
    rank: int  # negative: not a member, or unknown while the graph was made
    ranks: int

    def resolve(self) -> ProcessSet:
        """Return the process set.

        Raises:
            NotInitializedError: horocache is not initialized.
            InvalidArgumentError: the set is not registered, or the graph was made for another place.
        """
        process_set = registered_set(self.number)
        if self.rank >= 0 and (self.rank, self.ranks) != (process_set.rank(), process_set.size()):
            raise InvalidArgumentError(
                f"the graph was compiled for rank {self.rank} of {self.ranks} of process set {self.number}, but this "
                f"is rank {process_set.rank()} of {process_set.size()}. Compile it again."
            )
        return process_set


def _call(name: str | None, number: int, rank: int, ranks: int, backend: str | None, group: bool) -> Call:
    """Return the last arguments of an operator on tensors as a Call; the inverse of :func:`tail`."""
    return Call(name, Place(number, rank, ranks), backend, group)


def tail(call: Call) -> tuple[Any, ...]:
    """Return the last arguments of an operator on tensors; the inverse of :func:`_call`."""
    return (call.name, *call.process_set, call.backend, call.group)


def _run(kind: str, tensors: Tensors, call: Call, **arguments: Any) -> list[Any]:
    """Run a collective as eager calls do; return one result for each tensor."""
    where = {"name": call.name, "process_set": call.process_set.resolve(), "backend": call.backend}
    method = getattr(collectives, f"grouped_{kind}" if call.group else kind)
    answer = method(tensors if call.group else tensors[0], **arguments, **where)
    if "_async" in kind:
        answer = synchronize(answer)
    return list(answer) if call.group else [answer]


def _like(tensors: Tensors) -> Tensors:
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _with_rows(tensor: torch.Tensor, rows: Any) -> torch.Tensor:
    """Return an empty tensor with ``rows`` rows like those of ``tensor``; a scalar counts as one row."""
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _unknown_rows(at_least: Any = 0) -> Any:
    return torch.library.get_ctx().new_dynamic_size(min=at_least if isinstance(at_least, int) else 0)


class _Graph(Arithmetic):
    """Implements :class:`horocache.data_parallel.vjp.Differentiable` for compiled graphs."""

    uncompressed = ""

    def refuse(self, grads: Sequence[torch.Tensor], reduce_op: int, what: str) -> Sequence[torch.Tensor]:
        refused: Tensors = op("no_gradient")(list(grads), reduce_op, what)
        return refused

    def allreduce(self, tensors: Sequence[torch.Tensor], how: Reduction, call: Call) -> Sequence[torch.Tensor]:
        reduced: Tensors = op("allreduce")(list(tensors), how.compression, how.op, *how.scales, *tail(call))
        return reduced

    def allgather(self, tensors: Sequence[torch.Tensor], call: Call) -> Sequence[torch.Tensor]:
        gathered: Tensors = op("allgather")(list(tensors), *tail(call))
        return gathered[: len(tensors)]

    def alltoall_back(self, tensor: torch.Tensor, splits: torch.Tensor, rows: Any, call: Call) -> torch.Tensor:
        back: torch.Tensor = op("alltoall")([tensor], splits, rows, *tail(call))[0]
        return back


_graph = _Graph()


# ---- allreduce, and the kernel in common with reducescatter


def _reducing(kind: str) -> Callable[..., Tensors]:
    def kernel(tensors: Tensors, compression: str, op: int, pre: float, post: float, *where: Any) -> Tensors:
        how = {"compression": COMPRESSORS[compression], "op": op, "prescale_factor": pre, "postscale_factor": post}
        return _run(kind, tensors, _call(*where), **how)

    return kernel


def _allreduce_fake(tensors: Tensors, *_: Any) -> Tensors:
    return _like(tensors)


def _allreduce_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    _, compression, op, prescale, postscale, *where = inputs
    ctx.call = Reduction(compression, op, (prescale, postscale)), _call(*where)


def _allreduce_backward(ctx: Any, grads: Tensors) -> tuple[Any, ...]:
    return (list(vjp.of_allreduce(_graph, grads, *ctx.call)), *[None] * 10)


# ---- allgather


def _allgather(tensors: Tensors, *where: Any) -> Tensors:
    """Return the results, and a tensor with the number of this rank's first row in each result."""
    call = _call(*where)
    process_set = call.process_set.resolve()
    gathered = collectives.allgather_with_rows(tensors, call.name, process_set, call.group, backend=call.backend)
    starts = [sum(rows[: process_set.rank()]) for _, rows in gathered]
    return [*(output for output, _ in gathered), torch.tensor(starts)]


def _allgather_fake(tensors: Tensors, *_: Any) -> Tensors:
    outputs = [_with_rows(tensor, _unknown_rows(tensor.shape[0] if tensor.dim() else 1)) for tensor in tensors]
    return [*outputs, torch.empty(len(tensors), dtype=torch.int64)]


def _allgather_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    tensors, *where = inputs
    ctx.save_for_backward(output[-1])
    ctx.shapes, ctx.call = [tensor.shape for tensor in tensors], _call(*where)


def _allgather_backward(ctx: Any, grads: Tensors) -> tuple[Any, ...]:
    (starts,) = ctx.saved_tensors
    own = vjp.of_allgather(_graph, grads[:-1], starts.split(1), ctx.shapes, ctx.call)
    return (own, *[None] * 6)


# ---- broadcast


def _broadcast(tensors: Tensors, root_rank: int, is_root: bool, *where: Any) -> Tensors:
    return _run("broadcast", tensors, _call(*where), root_rank=root_rank)


def _broadcast_fake(tensors: Tensors, *_: Any) -> Tensors:
    return _like(tensors)


def _broadcast_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    _, _, is_root, *where = inputs
    ctx.call = is_root, _call(*where)


def _broadcast_backward(ctx: Any, grads: Tensors) -> tuple[Any, ...]:
    return (list(vjp.of_broadcast(_graph, grads, *ctx.call)), *[None] * 8)


# ---- reducescatter


def own_rows(rows: Any, rank: int, ranks: int) -> Any:
    """Return how many of ``rows`` reducescatter gives to a rank: if shares are uneven, the first ranks get one more.

    The formula has no comparison, so that the number of rows may be a symbol.
    """
    return (rows - rank + ranks - 1) // ranks


def _reducescatter_fake(tensors: Tensors, *arguments: Any) -> Tensors:
    rank, ranks = arguments[-4:-2]
    shaped = rank >= 0 and all(tensor.dim() for tensor in tensors)  # otherwise the kernel raises an error
    return [_with_rows(t, own_rows(t.shape[0], rank, ranks)) for t in tensors] if shaped else _like(tensors)


def _reducescatter_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    _, _, op, prescale, postscale, *where = inputs
    call = _call(*where)
    ctx.how = op, (prescale, postscale), call.process_set.ranks, call


def _reducescatter_backward(ctx: Any, grads: Tensors) -> tuple[Any, ...]:
    return (list(vjp.of_reducescatter(_graph, grads, *ctx.how)), *[None] * 10)


# ---- alltoall


def _alltoall(tensors: Tensors, splits: torch.Tensor | None, rows: int | None, *where: Any) -> Tensors:
    """Return the results, padded with zeros up to ``rows`` rows, and the number of rows from each rank."""
    pairs = _run("alltoall_async", tensors, _call(*where), splits=splits)
    outputs = [output if rows is None else with_rows(output, rows) for output, _ in pairs]
    return [*outputs, *(received for _, received in pairs)]


def _alltoall_fake(tensors: Tensors, splits: torch.Tensor | None, rows: Any, *where: Any) -> Tensors:
    outputs = [_with_rows(tensor, _unknown_rows() if rows is None else rows) for tensor in tensors]
    return outputs + _received_fake(tensors, where)


def _received_fake(tensors: Tensors, where: tuple[Any, ...]) -> Tensors:
    return [torch.empty(_call(*where).process_set.ranks, dtype=torch.int32) for _ in tensors]


def _alltoall_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    tensors, _, _, *where = inputs
    ctx.save_for_backward(*output[len(tensors) :])
    ctx.shapes, ctx.call = [tensor.shape for tensor in tensors], _call(*where)


def _alltoall_backward(ctx: Any, grads: Tensors) -> tuple[Any, ...]:
    outputs = grads[: len(ctx.shapes)]
    back = vjp.of_alltoall(_graph, outputs, ctx.saved_tensors, ctx.shapes, ctx.call)
    return (back, *[None] * 8)


# ---- operators without a gradient


def _no_gradient(grads: Tensors, op: int, what: str) -> Tensors:
    vjp.refuse(op, what)


def _no_gradient_fake(grads: Tensors, *_: Any) -> Tensors:
    return _like(grads)


def _barrier(number: int, rank: int, ranks: int, backend: str | None) -> None:
    barrier(Place(number, rank, ranks).resolve(), backend=backend)


def _barrier_fake(*_: Any) -> None:
    return None


def _allgather_in_place(tensors: Tensors, *where: Any) -> Tensors:
    return _run("allgather_", [tensor.clone() for tensor in tensors], _call(*where))


def _alltoall_in_place(tensors: Tensors, splits: torch.Tensor | None, *where: Any) -> Tensors:
    pairs = _run("alltoall_async_", [tensor.clone() for tensor in tensors], _call(*where), splits=splits)
    return [*(output for output, _ in pairs), *(received for _, received in pairs)]


def _alltoall_in_place_fake(tensors: Tensors, splits: torch.Tensor | None, *where: Any) -> Tensors:
    return _like(tensors) + _received_fake(tensors, where)


# ---- registration


def op(name: str) -> Any:
    """Return the operator of this name."""
    return getattr(torch.ops.horocache, name).default


class _Operator(NamedTuple):
    schema: str  # the full schema
    kernel: Callable[..., Any]
    fake: Callable[..., Any]
    setup: Callable[..., None] | None = None
    backward: Callable[..., tuple[Any, ...]] | None = None


_REDUCTION = "str compression, int op, float prescale, float postscale, "
_WHERE = "int process_set, int rank, int ranks, str? backend"
_TAIL = f"str? name, {_WHERE}, bool group"

_OPERATORS = (
    _Operator(
        f"allreduce(Tensor[] tensors, {_REDUCTION}{_TAIL}) -> Tensor[]",
        _reducing("allreduce"),
        _allreduce_fake,
        _allreduce_setup,
        _allreduce_backward,
    ),
    _Operator(
        f"allgather(Tensor[] tensors, {_TAIL}) -> Tensor[]",
        _allgather,
        _allgather_fake,
        _allgather_setup,
        _allgather_backward,
    ),
    _Operator(
        f"broadcast(Tensor[] tensors, int root_rank, bool is_root, {_TAIL}) -> Tensor[]",
        _broadcast,
        _broadcast_fake,
        _broadcast_setup,
        _broadcast_backward,
    ),
    _Operator(
        f"reducescatter(Tensor[] tensors, {_REDUCTION}{_TAIL}) -> Tensor[]",
        _reducing("reducescatter"),
        _reducescatter_fake,
        _reducescatter_setup,
        _reducescatter_backward,
    ),
    _Operator(
        f"alltoall(Tensor[] tensors, Tensor? splits, SymInt? rows, {_TAIL}) -> Tensor[]",
        _alltoall,
        _alltoall_fake,
        _alltoall_setup,
        _alltoall_backward,
    ),
    _Operator("no_gradient(Tensor[] grads, int op, str what) -> Tensor[]", _no_gradient, _no_gradient_fake),
    _Operator(f"barrier({_WHERE}) -> ()", _barrier, _barrier_fake),
    _Operator(f"allgather_in_place(Tensor[] tensors, {_TAIL}) -> Tensor[]", _allgather_in_place, _allreduce_fake),
    _Operator(
        f"alltoall_in_place(Tensor[] tensors, Tensor? splits, {_TAIL}) -> Tensor[]",
        _alltoall_in_place,
        _alltoall_in_place_fake,
    ),
)

_NAMES = tuple(operator.schema.partition("(")[0] for operator in _OPERATORS)
_library: Any = cast(Any, torch.library.Library)("horocache", "DEF")


def _fake_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    def fake(*arguments: Any) -> Any:
        keep_order_in_generated_code(map(op, _NAMES))
        return function(*arguments)

    return fake


def _register(name: str, operator: _Operator) -> None:
    _library.define(operator.schema)
    qualified = f"horocache::{name}"
    _library.impl(name, operator.kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, _fake_kernel(operator.fake), lib=_library)
    if operator.backward is not None:
        torch.library.register_autograd(qualified, operator.backward, setup_context=operator.setup, lib=_library)
    _library._register_effectful_op(qualified, EffectType.ORDERED)


for _name, _operator in zip(_NAMES, _OPERATORS, strict=True):
    _register(_name, _operator)
