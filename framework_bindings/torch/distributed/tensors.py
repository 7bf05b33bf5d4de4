"""Converts tensors of torch.distributed's functions to contiguous vectors for the core, and stores results in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from horocache.collectives.api import And, Average, Max, Min, Or, Product, Sum, Xor
from horocache.errors import InvalidArgumentError, MismatchError, UnsupportedError

from ..adapter import DTYPES, TorchAdapter
from .work import Store

_adapter = TorchAdapter()
_strided = torch.strided

# horocache's reduce operations, by the number of ReduceOp.RedOpType.
_REDUCTIONS = (Sum, Average, Product, Min, Max, And, Or, Xor)
_PREMUL_SUM = 8  # the number of ReduceOp.RedOpType.PREMUL_SUM


def reduction(op: Any) -> tuple[int, float]:
    """Return the reduce operation of a ``ReduceOp``, and the factor of the tensors before the reduction."""
    number = hash(op)  # the hash is the number of the type; a comparison costs three times as much
    if number < len(_REDUCTIONS):
        return _REDUCTIONS[number], 1.0
    if number != _PREMUL_SUM:
        raise UnsupportedError(f"torch.distributed's reduce operation {op!r} is not known here.")
    return Sum, float(op.__getstate__()[1])


def to_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's values as a vector, which shares the tensor's memory if possible."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    # A typical tensor takes neither of these branches.
    if tensor.dtype not in DTYPES or tensor.layout is not _strided:
        _adapter.check(tensor)
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        tensor = _adapter.dense(tensor)[0]
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def to_move(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as a vector for an operation that only moves them: as bytes, if the core lacks the type."""
    if tensor.dtype in DTYPES:
        return to_reduce(tensor)
    if tensor.layout is not _strided or tensor.is_quantized:
        _adapter.check(tensor)
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def length(tensor: torch.Tensor) -> int:
    """Return the number of elements of the vector that :func:`to_move` returns."""
    return tensor.numel() if tensor.dtype in DTYPES else tensor.numel() * tensor.element_size()


def nothing_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty vector of the element type that :func:`to_move` returns."""
    return torch.empty(0, dtype=tensor.dtype if tensor.dtype in DTYPES else torch.uint8, device=tensor.device)


def put(target: torch.Tensor, values: torch.Tensor) -> None:
    """Store a vector of values in a tensor.

    Raises:
        InvalidArgumentError: the element types differ.
    """
    if values.dtype is not target.dtype:
        if target.dtype in DTYPES or values.dtype is not torch.uint8:
            raise InvalidArgumentError(
                f"a tensor of {target.dtype} was given for a result of {values.dtype}. Types must be equal."
            )
        values = values.view(target.dtype)
    # `data` has its own version counter. torch's backends do not count their writes, either, and
    # FullyShardedDataParallel gathers into tensors that a graph has saved.
    target.data.copy_(values if target.dim() == 1 else values.view(target.shape))


def put_back(target: torch.Tensor, vector: torch.Tensor) -> Store | None:
    """Return a function that copies ``vector`` into the tensor; None if they share memory.

    The core writes to ``vector``; the function is called afterwards.
    """
    if vector.data_ptr() == target.data_ptr():
        return None
    _adapter.check_writable(target)
    return lambda _: put(target, vector)


def results_of(answer: Any) -> list[torch.Tensor]:
    """Return the vectors that the core has allocated."""
    return [_adapter.from_result(result) for result in answer]


def put_results(targets: Sequence[torch.Tensor]) -> Store:
    """Return a function that stores each result of the core in its tensor."""

    def store(answer: Any) -> None:
        for target, result in zip(targets, answer, strict=True):
            values = _adapter.from_result(result)
            if values.numel() != length(target):
                raise MismatchError(
                    f"the result has {values.numel()} elements, the tensor of shape {tuple(target.shape)} that was "
                    f"given for it has {length(target)}. Give one of the size that is sent."
                )
            put(target, values)

    return store


def put_parts(targets: Sequence[torch.Tensor], counts: Sequence[int]) -> Store:
    """Return a function that stores consecutive parts of the only result, ``counts`` elements each, in the tensors."""

    def store(answer: Any) -> None:
        parts = torch.split_with_sizes(_adapter.from_result(answer[0]), list(counts))
        for target, part in zip(targets, parts, strict=True):
            put(target, part)

    return store


def all_of(stores: Sequence[Store | None]) -> Store | None:
    """Combine the functions that store the results of a group; None if none of the tensors needs one."""
    needed = [store for store in stores if store is not None]
    if not needed:
        return None

    def store(answer: Any) -> None:
        for each in needed:
            each(answer)

    return store


def equal_parts(vector: torch.Tensor, ranks: int) -> Sequence[torch.Tensor]:
    """Split a vector into equal parts, one for each rank."""
    return torch.split_with_sizes(vector, [vector.numel() // ranks] * ranks)


def newest(group: Any, *names: str) -> Any:
    """Return a method that torch has renamed, by the first of these names that the group has."""
    return next(getattr(group, name) for name in names if hasattr(group, name))


def joined(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate vectors; a single vector is returned as it is."""
    return vectors[0] if len(vectors) == 1 else torch.cat(list(vectors))


def only(tensors: Any, what: str) -> Any:
    """Return the tensor, or the only element of a list: torch has lists for processes with several devices."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidArgumentError(f"{what} takes one tensor of each process; there are {len(tensors)}.")
    return tensors[0]


def only_list(lists: Any, what: str) -> Any:
    """Return a list of tensors: some overloads pass the list itself, some a list whose only element it is."""
    return lists if lists and isinstance(lists[0], torch.Tensor) else only(lists, what)


def options(kind: Any, given: Any, **others: Any) -> Any:
    """Return the options of a call: the given object of torch's, or a new one from single arguments.

    Args:
        kind: the class of the options.
        given: an instance of ``kind``; None; or the value of the first of ``others``, as some overloads pass it.
        others: values by name; None for a value that the call does not set.
    """
    if isinstance(given, kind):
        return given
    made = kind()
    if given is not None:
        if not others:
            raise InvalidArgumentError(f"{given!r} is not a {kind.__name__}.")
        others[next(iter(others))] = given
    for name, value in others.items():
        if value is not None:
            setattr(made, name, value)
    return made


def check_count(found: int, wanted: int, what: str) -> None:
    """Raise InvalidArgumentError unless a tensor has the required number of elements."""
    if found != wanted:
        raise InvalidArgumentError(f"{what} has {found} elements; it needs {wanted}.")


def check_lists(lists: Sequence[Any], ranks: int, what: str) -> None:
    """Raise InvalidArgumentError unless the list has one element for each rank."""
    if len(lists) != ranks:
        raise InvalidArgumentError(f"{what} needs one tensor for each of {ranks} ranks; it has {len(lists)}.")
