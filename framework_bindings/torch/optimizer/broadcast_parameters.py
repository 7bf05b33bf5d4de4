"""Broadcasts parameters from one rank to all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from horocache.collectives.api import synchronize
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError

from ..adapter import collectives
from ..expert_parameters import marked_tensors, part_experts


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite every rank's tensors with the root's.

    Parameters of experts (see :func:`horocache.torch.moe.mark_expert`) get the values of the lowest rank that holds the
    expert, on all ranks that hold it. Those that one rank alone holds stay as they are. Ranks may hold different
    experts.

    Args:
        params: a ``state_dict()``, or a list of tensors or of pairs of name and tensor, such as
            ``list(model.named_parameters())``. Names, shapes and dtypes must be the same on all ranks, those of experts
            on all ranks that hold the expert.
        root_rank: the rank whose values all ranks get; a global rank in the set.
        process_set: the ranks that take part.

    Raises:
        ValueError: ``params`` has another type, an entry is not a tensor, or a holder of an expert is not in
            ``process_set``. MismatchError: the ranks' tensors do not match.
    """
    if isinstance(params, dict):
        pairs: list[Any] = sorted(params.items())
    elif isinstance(params, list):
        pairs = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise InvalidArgumentError(f"invalid params of type: {type(params).__name__}; pass a state_dict or a list.")
    for position, (name, tensor) in enumerate(pairs):
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(
                f"broadcast_parameters: {position if name is None else name} is a {type(tensor).__name__}, not a "
                "tensor; send it with broadcast_object."
            )
    marked = marked_tensors([tensor for _, tensor in pairs])
    shared, experts = part_experts(zip(pairs, marked, strict=True), lambda each: each[1])
    for holders, items in experts:
        check_holders(holders, f"{items[0][0][0] or 'in the list'}", process_set)
    handles = _start([pair for pair, _ in shared], root_rank, process_set)
    for holders, items in experts:
        if holders is not None:
            # Holders may list their experts in any order of names.
            held = sorted((pair for pair, _ in items), key=lambda pair: str(pair[0]))
            handles += _start(held, holders.ranks[0], holders, "expert.")
    synchronize(handles)


def check_holders(holders: ProcessSet | None, name: str, process_set: ProcessSet) -> None:
    """Raise InvalidArgumentError unless all holders of an expert's parameter are ranks of ``process_set``."""
    missing = [] if holders is None else sorted(set(holders.ranks) - set(process_set.ranks))
    if holders is not None and missing:
        raise InvalidArgumentError(
            f"rank {context.rank()}: the expert's parameter {name} is held by the ranks {holders.ranks}, and of these "
            f"{missing} are not in the process set {process_set.ranks}. Give a process set with all holders, or mark "
            "the parameter with fewer holders."
        )


def _start(pairs: list[Any], root_rank: int, process_set: ProcessSet, prefix: str = "") -> list[int]:
    """Start to broadcast tensors; those without a name get the prefix and their position in this list as a name."""
    # One group for each device, so that the ranks agree once. The core sends neighbours of one dtype as one buffer.
    numbered = enumerate(pairs)
    named = sorted(((f"{prefix}{i}" if name is None else str(name), each) for i, (name, each) in numbered), key=_dtype)
    groups: dict[torch.device, tuple[list[torch.Tensor], list[str]]] = {}
    for name, (_, tensor) in zip(_unique([name for name, _ in named]), named, strict=True):
        tensors, names_here = groups.setdefault(tensor.device, ([], []))
        tensors.append(tensor)
        names_here.append(name)
    return [collectives.broadcast_parameters_async_(*group, root_rank, process_set) for group in groups.values()]


def _dtype(pair: tuple[str, torch.Tensor]) -> str:
    return str(pair[1].dtype)


def _unique(names: list[str]) -> list[str]:
    """Number the names that repeat, as those of a list with the parameters of two models may."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        unique.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return unique
