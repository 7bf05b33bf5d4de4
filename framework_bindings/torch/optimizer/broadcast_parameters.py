"""Broadcasts parameters from one rank to all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from horocache.collectives.api import synchronize
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError

from ..adapter import collectives


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite every rank's tensors with the root's.

    Args:
        params: a ``state_dict()``, or a list of tensors or of pairs of name and tensor, such as
            ``list(model.named_parameters())``. Names, shapes and dtypes must be the same on all ranks.
        root_rank: the rank whose values all ranks get; a global rank in the set.
        process_set: the ranks that take part.

    Raises:
        ValueError: ``params`` has another type, or an entry is not a tensor. MismatchError: the ranks' tensors
            do not match.
    """
    if isinstance(params, dict):
        pairs = sorted(params.items())
    elif isinstance(params, list):
        pairs = [p if isinstance(p, tuple) else (str(i), p) for i, p in enumerate(params)]
    else:
        raise InvalidArgumentError(f"invalid params of type: {type(params).__name__}; pass a state_dict or a list.")
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(
                f"broadcast_parameters: {name} is a {type(tensor).__name__}, not a tensor; "
                "send it with broadcast_object."
            )
    if not pairs:
        return
    # One group for each device, so that the ranks agree once. The core sends neighbours of one dtype as one buffer.
    pairs.sort(key=lambda pair: str(pair[1].dtype))
    names = _unique([str(name) for name, _ in pairs])
    groups: dict[torch.device, tuple[list[torch.Tensor], list[str]]] = {}
    for name, (_, tensor) in zip(names, pairs, strict=True):
        tensors, names_here = groups.setdefault(tensor.device, ([], []))
        tensors.append(tensor)
        names_here.append(name)
    synchronize([collectives.broadcast_parameters_async_(*group, root_rank, process_set) for group in groups.values()])


def _unique(names: list[str]) -> list[str]:
    """Number the names that repeat, as those of a list with the parameters of two models may."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        unique.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return unique
