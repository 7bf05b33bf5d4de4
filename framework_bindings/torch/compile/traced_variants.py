"""Traced variants of the blocking collectives for torch's compiler: each calls one operator of the graph.

The compiler traces a public function's *traced variant* instead of the function, with the same arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import numpy as np

import torch
from horocache.collectives.api import Average, Sum
from horocache.collectives.barrier import barrier
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.data_parallel.vjp import Call

from ..adapter import collectives, is_expanded
from .custom_ops import COMPRESSORS, Place, op, own_rows, tail
from .dynamo import in_checkpoint, outside, traced_as

Tensors = list[torch.Tensor]
Arguments = Mapping[str, Any]  # of a public function, by name, defaults filled in
Operation = Callable[[Tensors, Arguments, bool], Any]  # (tensors, arguments, True for a group) -> results

_NAME_OF = {compressor: name for name, compressor in COMPRESSORS.items()}


# ---- arguments


def _place(process_set: Any) -> Place:
    """Return the process set as an argument of operators. An invalid set is left for the kernel to reject."""
    number = process_set.process_set_id if isinstance(process_set, ProcessSet) else None
    if number is None or not context.is_initialized():
        return Place(-1 if number is None else number, -1, 0)
    return Place(number, process_set.rank() if process_set.included() else -1, process_set.size())


def _name(name: Any) -> str | None:
    if name is None or isinstance(name, str):
        return name
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


def _is_text(name: str | None) -> bool:
    """Return True if operators can take the name. Bytes that are not UTF-8 have become lone surrogates."""
    return name is None or name.encode("utf-8", "ignore").decode("utf-8") == name


def _tail(arguments: Arguments, group: bool) -> tuple[Any, ...]:
    return tail(Call(_name(arguments["name"]), _place(arguments["process_set"]), arguments["backend"], group))


def _reduction(arguments: Arguments) -> tuple[Any, ...]:
    compression, reduce_op, average = arguments.get("compression"), arguments["op"], arguments.get("average")
    if average is not None:
        reduce_op = Average if average else Sum
    return (
        "" if compression is None else _NAME_OF[compression],
        Average if reduce_op is None else reduce_op,
        arguments["prescale_factor"],
        arguments["postscale_factor"],
    )


def _splits(splits: Any) -> torch.Tensor | None:
    if splits is None or isinstance(splits, torch.Tensor):
        return splits
    return torch.from_numpy(splits) if isinstance(splits, np.ndarray) else torch.tensor(list(splits))


# ---- operations: from tensors and arguments to results


def _allreduce(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    return op("allreduce")(tensors, *_reduction(arguments), *_tail(arguments, group))


def _allgather(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    return op("allgather")(tensors, *_tail(arguments, group))[: len(tensors)]


def _broadcast(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    root = arguments["root_rank"]
    is_root = context.is_initialized() and context.rank() == root
    return op("broadcast")(tensors, root, is_root, *_tail(arguments, group))


def _reducescatter(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    return op("reducescatter")(tensors, *_reduction(arguments), *_tail(arguments, group))


def _alltoall(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    splits = _splits(arguments["splits"])
    results = op("alltoall")(tensors, splits, None, *_tail(arguments, group))
    outputs, received = results[: len(tensors)], results[len(tensors) :]
    return outputs if splits is None else list(zip(outputs, received, strict=True))


# ---- in-place operations, which copy from a new tensor; see Note [Collectives in compiled graphs]


def _store(tensors: Tensors, results: Sequence[torch.Tensor]) -> None:
    for tensor, result in zip(tensors, results, strict=True):
        tensor.detach().copy_(result)  # autograd does not record it, as in eager calls


def _detached(tensors: Tensors) -> Tensors:
    return [tensor.detach() for tensor in tensors]


def _in_place(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return the in-place form of an operation whose results have the shapes of its tensors."""

    def run(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
        _store(tensors, operation(_detached(tensors), arguments, group))
        return tensors

    return run


def _allgather_in_place(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    _store(tensors, op("allgather_in_place")(_detached(tensors), *_tail(arguments, group)))
    return tensors


def _alltoall_in_place(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    splits = _splits(arguments["splits"])
    results = op("alltoall_in_place")(_detached(tensors), splits, *_tail(arguments, group))
    outputs, received = results[: len(tensors)], results[len(tensors) :]
    _store(tensors, outputs)
    return tensors if splits is None else list(zip(tensors, received, strict=True))


def _reducescatter_in_place(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    results = _reducescatter(_detached(tensors), arguments, group)
    place = _place(arguments["process_set"])
    before = [sum(own_rows(tensor.shape[0], rank, place.ranks) for rank in range(place.rank)) for tensor in tensors]
    own = [
        tensor[start : start + result.shape[0]] for tensor, start, result in zip(tensors, before, results, strict=True)
    ]
    _store(own, results)
    return own


# ---- traced variants


def _eagerly(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return function(*given, **named)


outside(_eagerly, "only eager calls take these arguments, or report what is wrong with them")


def _uncheckpointed(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return function(*given, **named)


outside(_uncheckpointed, "collectives cannot be run a second time in the backward graph of a checkpointed region")

_TYPES: dict[str, Any] = {
    "name": (str, bytes, int, type(None)),
    "op": (int, type(None)),
    "root_rank": int,
    "prescale_factor": (int, float),
    "postscale_factor": (int, float),
    "backend": (str, type(None)),
}


def _are_tensors(tensors: Any, in_place: bool) -> bool:
    if not isinstance(tensors, (list, tuple)) or not tensors:
        return False
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return False
    return not (in_place and any(is_expanded(tensor) for tensor in tensors))


def _fit(arguments: Arguments, kind: str) -> bool:
    """Return True if an operator can take the arguments: their types are right, and the compressor is known."""
    tensors = arguments["tensors"] if kind.startswith("grouped") else [arguments["tensor"]]
    compression = arguments.get("compression")
    return (
        _are_tensors(tensors, kind.endswith("_"))
        and all(isinstance(arguments[name], types) for name, types in _TYPES.items() if name in arguments)
        and (compression is None or any(compression is known for known in _NAME_OF))
        and (arguments.get("average") is None or arguments["op"] is None)
        and arguments.get("priority", 0) == 0
        and _is_text(_name(arguments["name"]))
    )


def _traced_variant(function: Any, operation: Operation, kind: str) -> Callable[..., Any]:
    """Return the traced variant of ``function``."""
    group = kind.startswith("grouped")
    parameters = inspect.signature(function).parameters
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    names = frozenset(parameters)
    by_position = [name for name, each in parameters.items() if each.kind is not each.KEYWORD_ONLY]

    def variant(*given: Any, **named: Any) -> Any:
        at_positions = dict(zip(by_position, given, strict=False))
        arguments = {**defaults, **at_positions, **named}
        if in_checkpoint():
            return _uncheckpointed(function, *given, **named)
        known = len(given) <= len(by_position) and names == arguments.keys()
        if not known or at_positions.keys() & named.keys() or not _fit(arguments, kind):
            return _eagerly(function, *given, **named)
        tensors = list(arguments["tensors"]) if group else [arguments["tensor"]]
        results = operation(tensors, arguments, group)
        return results if group else results[0]

    return variant


def _variant_of_method(method: Any, operation: Operation, kind: str) -> Callable[..., Any]:
    """Return the traced variant of a method that other frameworks share; their calls run eagerly."""
    variant = _traced_variant(method, operation, kind)
    shared = method.__func__

    def variant_of_method(owner: Any, *given: Any, **named: Any) -> Any:
        if owner is not collectives:
            return _eagerly(shared, owner, *given, **named)
        return variant(*given, **named)

    return variant_of_method


def _barrier(process_set: ProcessSet = global_process_set, *, backend: str | None = None) -> None:
    if backend is None or isinstance(backend, str):
        op("barrier")(*_place(process_set), backend)
    else:
        _eagerly(barrier, process_set, backend=backend)


_OPERATIONS: dict[str, Operation] = {
    "allgather": _allgather,
    "allgather_": _allgather_in_place,
    "allreduce": _allreduce,
    "allreduce_": _in_place(_allreduce),
    "alltoall": _alltoall,
    "alltoall_": _alltoall_in_place,
    "broadcast": _broadcast,
    "broadcast_": _in_place(_broadcast),
    "reducescatter": _reducescatter,
    "reducescatter_": _reducescatter_in_place,
}


def add_traced_variants(functions: Mapping[str, Any]) -> None:
    """Give the blocking collectives among ``functions`` their traced variants."""
    traced_as(functions["barrier"], _barrier)
    for single, operation in _OPERATIONS.items():
        for kind in (single, f"grouped_{single}"):
            function = functions[kind]
            make = _variant_of_method if isinstance(function, MethodType) else _traced_variant
            traced_as(function, make(function, operation, kind))
