"""Marks of expert parameters, whose gradients are not part of the data-parallel allreduce.

A mixture of experts places each expert on some of the ranks. The other parameters, the *shared* ones, are equal on all
ranks of the data-parallel process set. An expert parameter is equal on its *holders* only. The marks are two attributes
of the parameter: ``allreduce = False``, as in DeepSpeed, and ``expert_holders``, a process set or None.
``docs/explanation/expert_parameters.md`` explains how optimizers treat them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from horocache.collectives.object_collectives import allgather_object
from horocache.core import context
from horocache.core.process_set import ProcessSet, process_sets
from horocache.errors import InvalidArgumentError
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["Experts", "check_same_experts", "holders_of", "is_expert", "mark_expert", "marked_tensors", "part_experts"]

_Item = TypeVar("_Item")
# The tensors that mark_expert() has marked: state_dict() gives other tensors on their memory.
_marked = WeakTensorKeyDictionary()


class Experts(NamedTuple):
    """The ranks that hold the same experts, and what belongs to these experts."""

    holders: ProcessSet | None  # None: this rank alone
    items: list[Any]


def mark_expert(parameter: torch.Tensor, holders: ProcessSet | None = None) -> None:
    """Mark a parameter, or a buffer, as that of an expert.

    ``copy.deepcopy`` of a parameter drops the marks, as it drops all attributes: mark the copy, too. Pickles keep them.

    Args:
        parameter: the parameter of one expert on this rank. Gets the attributes ``allreduce`` and ``expert_holders``.
        holders: the ranks that hold a copy of the same expert, with the same name of the parameter; this rank is one
            of them. None: this rank alone.

    Raises:
        InvalidArgumentError: ``parameter`` is not a tensor, ``holders`` is neither a ProcessSet nor None, or this rank
            is not among the holders.
    """
    if not isinstance(parameter, torch.Tensor):
        raise InvalidArgumentError(f"mark_expert takes a parameter, not {parameter!r}.")
    if holders is not None and not isinstance(holders, ProcessSet):
        raise InvalidArgumentError(
            f"the holders of an expert are a ProcessSet, or None for this rank, not {holders!r}."
        )
    if holders is not None:
        _check_included(parameter, holders)
    marks: Any = parameter
    marks.allreduce = False
    marks.expert_holders = holders
    _marked[parameter] = True


def is_expert(parameter: Any) -> bool:
    """Return True if the parameter belongs to an expert: its attribute ``allreduce`` is False."""
    return getattr(parameter, "allreduce", True) is False


def holders_of(parameter: torch.Tensor) -> ProcessSet | None:
    """Return the registered process set of the ranks that hold a copy of an expert's parameter.

    Returns:
        None if this rank alone holds it, also if the marked process set has one rank.

    Raises:
        InvalidArgumentError: the parameter is not marked as an expert's, or lacks one of the two attributes; its
            process set is not registered in this job, or this rank is not in it.
    """
    if not is_expert(parameter):
        raise InvalidArgumentError(
            f"the parameter of shape {tuple(parameter.shape)} is not marked as an expert's; see mark_expert()."
        )
    if not hasattr(parameter, "expert_holders"):  # as DeepSpeed marks them, whose groups are not known here
        raise InvalidArgumentError(
            f"rank {context.rank()}: the parameter of shape {tuple(parameter.shape)} has allreduce=False, as that of "
            "an expert, and no attribute expert_holders. Call horocache.torch.moe.mark_expert(parameter, holders)."
        )
    marked = cast(Any, parameter).expert_holders
    if marked is None:
        return None
    if not isinstance(marked, ProcessSet):
        raise InvalidArgumentError(
            f"rank {context.rank()}: expert_holders of the parameter of shape {tuple(parameter.shape)} is {marked!r}; "
            "it must be a ProcessSet, or None for this rank alone. Call horocache.torch.moe.mark_expert()."
        )
    _check_included(parameter, marked)
    if marked.size() == 1:
        return None
    # A set of a pickled model, or of an earlier session, may have the number that another set has now.
    fitting = [known for known in process_sets() if known is marked or known.ranks == marked.ranks]
    if not fitting:
        raise InvalidArgumentError(
            f"rank {context.rank()}: the expert's parameter of shape {tuple(parameter.shape)} is held by the ranks "
            f"{marked.ranks}, which are not a registered process set. Give the set to init(process_sets=[...]), or "
            "call add_process_set(), before."
        )
    return marked if any(known is marked for known in fitting) else fitting[0]


def part_experts(
    items: Iterable[_Item], tensor_of: Callable[[_Item], torch.Tensor]
) -> tuple[list[_Item], list[Experts]]:
    """Part the items of shared parameters from those of experts.

    Args:
        items: parameters, or what belongs to one parameter each.
        tensor_of: returns the parameter of an item.

    Returns:
        The items of shared parameters, and those of experts by their holders: first those that this rank alone holds,
        then the process sets in the order of their numbers, which is the same on all ranks. The order of items stays.

    Raises:
        InvalidArgumentError: as :func:`holders_of`.
    """
    shared: list[_Item] = []
    groups: dict[int, Experts] = {}
    for item in items:
        tensor = tensor_of(item)
        if not is_expert(tensor):
            shared.append(item)
            continue
        holders = holders_of(tensor)
        number = -1 if holders is None or holders.process_set_id is None else holders.process_set_id
        groups.setdefault(number, Experts(holders, [])).items.append(item)
    return shared, [groups[number] for number in sorted(groups)]


def marked_tensors(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return, for each tensor, the marked parameter on the same memory, or else the tensor itself.

    ``state_dict()`` detaches parameters, and so drops their marks. Only parameters that :func:`mark_expert` marked in
    this process are found; a tensor without elements has no memory and is not found.
    """
    if not len(_marked):
        return list(tensors)
    by_place = {_place(parameter): parameter for parameter in _marked if _place(parameter) is not None}
    return [tensor if is_expert(tensor) else by_place.get(_place(tensor), tensor) for tensor in tensors]


def check_same_experts(named: Sequence[tuple[str, torch.Tensor]], holders: ProcessSet) -> None:
    """Compare the names, shapes and element types of experts' parameters over their holders.

    Args:
        named: this rank's parameters with these holders, in any order.
        holders: the ranks that call this function.

    Raises:
        InvalidArgumentError: they differ. Raised on all holders; names both ranks and both parameters.
    """
    own = sorted((name, str(param.dtype), tuple(param.shape)) for name, param in named)
    everyone = allgather_object(own, f"experts_of_set_{holders.process_set_id}", holders)
    for rank, theirs in zip(holders.ranks, everyone, strict=True):
        if theirs != everyone[0]:
            here = [each for each in theirs if each not in everyone[0]]
            there = [each for each in everyone[0] if each not in theirs]
            raise InvalidArgumentError(
                f"rank {rank} has {_described(here)} where rank {holders.ranks[0]} has {_described(there)} among the "
                f"expert parameters that the ranks {holders.ranks} hold. Give an expert's parameters the same names on "
                "all its holders, such as names with the expert's number among all experts: as named_parameters of a "
                "DistributedOptimizer, or as attributes of the module for DistributedDataParallel."
            )


def _described(entries: Sequence[Any]) -> str:
    if not entries:
        return "no such parameter"
    name, dtype, shape = entries[0]
    return f"{name!r} ({dtype}, shape {shape})"


def _place(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return what tells the tensor's elements from those of other tensors; None if it has none in one block."""
    if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.device.type == "meta":
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _check_included(parameter: torch.Tensor, holders: ProcessSet) -> None:
    if not holders.included():
        raise InvalidArgumentError(
            f"rank {context.rank()} is not among the holders {holders.ranks} of the expert's parameter of shape "
            f"{tuple(parameter.shape)} that it has. Give the process set of the ranks that hold this expert."
        )
