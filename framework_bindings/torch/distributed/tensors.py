"""The tensors of torch.distributed's functions as the core moves them: vectors in contiguous memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horocache.torch.adapter import DTYPES, TorchAdapter
from horocache.torch.distributed.work import Store

import torch
from horocache.collectives.api import And, Average, Max, Min, Or, Product, Sum, Xor
from horocache.errors import InvalidArgumentError, MismatchError, UnsupportedError
from torch.utils.dlpack import from_dlpack

_adapter = TorchAdapter()
_strided = torch.strided

# By the number of ReduceOp.RedOpType.
_REDUCTIONS = (Sum, Average, Product, Min, Max, And, Or, Xor)
_PREMUL_SUM = 8


def reduction(op: Any) -> tuple[int, float]:
    """The reduce operation that a ``ReduceOp`` means, and what tensors are multiplied by before."""
    number = hash(op)  # its number in C++: a comparison costs three times as much
    if number < len(_REDUCTIONS):
        return _REDUCTIONS[number], 1.0
    if number != _PREMUL_SUM:
        raise UnsupportedError(f"torch.distributed's reduce operation {op!r} is not known here.")
    return Sum, float(op.__getstate__()[1])


def to_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values in a vector, which shares its memory where it can."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    # The usual tensor passes all of these; the rest is for others.
    if tensor.dtype not in DTYPES or tensor.layout is not _strided:
        _adapter.check(tensor)
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        tensor = _adapter.dense(tensor)[0]
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def to_move(tensor: torch.Tensor) -> torch.Tensor:
    """The same, where values are only moved: bytes stand for types that the core does not know."""
    if tensor.dtype in DTYPES:
        return to_reduce(tensor)
    if tensor.layout is not _strided or tensor.is_quantized:
        _adapter.check(tensor)
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def length(tensor: torch.Tensor) -> int:
    """The number of elements that :func:`to_move` makes of a tensor."""
    return tensor.numel() if tensor.dtype in DTYPES else tensor.numel() * tensor.element_size()


def nothing_like(tensor: torch.Tensor) -> torch.Tensor:
    """A vector of no elements, of the type that :func:`to_move` gives."""
    return torch.empty(0, dtype=tensor.dtype if tensor.dtype in DTYPES else torch.uint8)


def put(target: torch.Tensor, values: torch.Tensor) -> None:
    """Store a vector of values in a tensor.

    Raises:
        InvalidArgumentError: they are of another type.
    """
    if values.dtype is not target.dtype:
        if target.dtype in DTYPES or values.dtype is not torch.uint8:
            raise InvalidArgumentError(
                f"a tensor of {target.dtype} was given for a result of {values.dtype}. Types must be equal."
            )
        values = values.view(target.dtype)
    # With its own version counter: torch's backends do not count what they write, and FullyShardedDataParallel gathers
    # into tensors that a graph holds.
    target.data.copy_(values if target.dim() == 1 else values.view(target.shape))


def put_back(target: torch.Tensor, vector: torch.Tensor) -> Store | None:
    """What remains to be done when the core has written into ``vector``; None if that is the tensor's memory."""
    if vector.data_ptr() == target.data_ptr():
        return None
    _adapter.check_writable(target)
    return lambda _: put(target, vector)


def results_of(answer: Any) -> list[torch.Tensor]:
    """The vectors that the core has allocated."""
    return [from_dlpack(result) for result in answer]


def put_results(targets: Sequence[torch.Tensor]) -> Store:
    """Store what the core has allocated, each result in its tensor."""

    def store(answer: Any) -> None:
        for target, result in zip(targets, answer, strict=True):
            values = from_dlpack(result)
            if values.numel() != length(target):
                raise MismatchError(
                    f"the result has {values.numel()} elements, the tensor of shape {tuple(target.shape)} that was "
                    f"given for it has {length(target)}. Give one of the size that is sent."
                )
            put(target, values)

    return store


def put_parts(targets: Sequence[torch.Tensor], counts: Sequence[int]) -> Store:
    """Store the parts of the one result, one after the other."""

    def store(answer: Any) -> None:
        parts = torch.split_with_sizes(from_dlpack(answer[0]), list(counts))
        for target, part in zip(targets, parts, strict=True):
            put(target, part)

    return store


def all_of(stores: Sequence[Store | None]) -> Store | None:
    """Do what several operations in one have to do in the end."""
    needed = [store for store in stores if store is not None]
    if not needed:
        return None

    def store(answer: Any) -> None:
        for each in needed:
            each(answer)

    return store


def equal_parts(vector: torch.Tensor, ranks: int) -> Sequence[torch.Tensor]:
    """One part for each rank."""
    return torch.split_with_sizes(vector, [vector.numel() // ranks] * ranks)


def newest(group: Any, *names: str) -> Any:
    """A method that torch has renamed, by the first of its names that there is."""
    return next(getattr(group, name) for name in names if hasattr(group, name))


def joined(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All the values of some tensors."""
    return vectors[0] if len(vectors) == 1 else torch.cat(list(vectors))


def only(tensors: Any, what: str) -> Any:
    """The tensor, or the list, that there is one of: torch's interface has lists for processes with several devices."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidArgumentError(f"{what} takes one tensor of each process; there are {len(tensors)}.")
    return tensors[0]


def only_list(lists: Any, what: str) -> Any:
    """The list of tensors: some overloads have it alone, some in a list of its own."""
    return lists if lists and isinstance(lists[0], torch.Tensor) else only(lists, what)


def options(kind: Any, given: Any, **others: Any) -> Any:
    """The options of a call: an object of torch's, or made of single arguments.

    Args:
        kind: the class of the options.
        given: an object of it; None; or the value of the first of ``others``, as some overloads have it.
        others: values by name; None where the call has none.
    """
    if isinstance(given, kind):
        return given
    made = kind()
    if given is not None:
        if not others:
            raise InvalidArgumentError(f"{given!r} are no {kind.__name__}.")
        others[next(iter(others))] = given
    for name, value in others.items():
        if value is not None:
            setattr(made, name, value)
    return made


def check_count(found: int, wanted: int, what: str) -> None:
    """InvalidArgumentError unless a tensor has as many elements as it must."""
    if found != wanted:
        raise InvalidArgumentError(f"{what} has {found} elements; it needs {wanted}.")


def check_lists(lists: Sequence[Any], ranks: int, what: str) -> None:
    """InvalidArgumentError unless there is one for each rank."""
    if len(lists) != ranks:
        raise InvalidArgumentError(f"{what} needs one tensor for each of {ranks} ranks; it has {len(lists)}.")
