"""Give every rank the same parameters and optimizer state as one of them."""

from __future__ import annotations

from typing import Any

import torch
from horocache import _state
from horocache.errors import InvalidArgumentError
from horocache.objects import broadcast_object
from horocache.ops import synchronize
from horocache.process_set import ProcessSet, global_process_set

from .adapter import collectives


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite every rank's tensors with the root's.

    Args:
        params: a ``state_dict()``, or a list of tensors or of pairs of name and tensor, such as
            ``list(model.named_parameters())``. The same names, shapes and dtypes on all ranks.
        root_rank: whose values to take; a global rank in the set.
        process_set: the ranks that take part.

    Raises:
        ValueError: another type, or an entry that is no tensor. MismatchError: the ranks' tensors do not correspond.
    """
    if isinstance(params, dict):
        pairs = sorted(params.items())
    elif isinstance(params, list):
        pairs = [p if isinstance(p, tuple) else (str(i), p) for i, p in enumerate(params)]
    else:
        raise InvalidArgumentError(f"invalid params of type: {type(params).__name__}; pass a state_dict or a list.")
    by_dtype: dict[torch.dtype, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(
                f"broadcast_parameters: {name} is a {type(tensor).__name__}, not a tensor; "
                "send it with broadcast_object."
            )
        by_dtype.setdefault(tensor.dtype, []).append((name, tensor))
    # One group per dtype: one agreement for all, and few large copies.
    handles = []
    for dtype, members in by_dtype.items():
        name = f"parameters.{members[0][0]}.{str(dtype).removeprefix('torch.')}"
        tensors = [tensor for _, tensor in members]
        handles.append(collectives.grouped_broadcast_async_(tensors, root_rank, name, process_set))
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank the root's optimizer state: options of the parameter groups, and state of the parameters.

    Works before the first step, without a step on made-up gradients: ranks other than the root need no state of their
    own.

    Args:
        optimizer: distributed or not; the same parameters in the same groups on all ranks.
        root_rank: whose state to take; a global rank in the set.
        model: not needed; accepted because Horovod does.
        process_set: the ranks that take part.

    Raises:
        ValueError: the optimizer is L-BFGS, or its state does not fit this rank's parameter groups.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgumentError("cannot broadcast torch.optim.LBFGS state.")
    is_root = _state.rank() == root_rank
    tensors: list[torch.Tensor] = []
    skeleton = _extract(optimizer.state_dict(), tensors) if is_root else None
    kinds = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    skeleton, kinds = broadcast_object((skeleton, kinds), root_rank, "optimizer_state", process_set)
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in kinds]
    # Contiguous copies on the root: its state is read, never written.
    named = [(f"optimizer_state.{i:06}", tensor.detach().contiguous()) for i, tensor in enumerate(tensors)]
    broadcast_parameters(named, root_rank, process_set)
    if not is_root:
        _load(optimizer, _restore(skeleton, [tensor for _, tensor in named]))


def _load(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Load a state as it is: ``load_state_dict`` alone would cast it to the types of the parameters."""
    optimizer.load_state_dict(state_dict)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for index, given in state_dict["state"].items():
        if not isinstance(index, int) or not isinstance(given, dict):
            continue  # state of no parameter: nothing was cast
        loaded = optimizer.state[params[index]]
        for key, value in given.items():
            if isinstance(value, torch.Tensor) and loaded[key].dtype is not value.dtype:
                loaded[key] = value


class _Place:
    """Stands for a tensor in a state dict without tensors."""

    def __init__(self, index: int) -> None:
        self.index = index


def _extract(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The same structure with every tensor moved to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _extract(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_extract(item, tensors) for item in value)
    return value


def _restore(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure with the tensors back in their places."""
    if isinstance(value, _Place):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _restore(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_restore(item, tensors) for item in value)
    return value
