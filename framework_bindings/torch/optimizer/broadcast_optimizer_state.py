"""Give every rank the same optimizer state as one of them.

Note [State is changed where it is]
Schedulers, inner optimizers and programs keep an optimizer's dictionaries: a group whose learning rate they change, the
state of a parameter. So what the root has is written into the dictionaries and tensors that are there, and by the root,
too, which finds the same in them: whatever it means to a program that a dictionary stays or is replaced, it means on
all ranks alike.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any, NamedTuple

from horocache.torch.adapter import is_expanded
from horocache.torch.optimizer.broadcast_parameters import broadcast_parameters
from horocache.torch.optimizer.wrapped_class import WrappedOptimizer

import torch
from horocache.collectives.object_collectives import allgather_object, broadcast_object
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank the root's optimizer state: options of the parameter groups, and state of the parameters.

    Works before the first step, without a step on made-up gradients: ranks other than the root need no state of their
    own. Options and state are written into the dictionaries and tensors that are there, so that schedulers and inner
    optimizers go on with them.

    Args:
        optimizer: distributed or not; the same parameters in the same groups on all ranks. Optimizers that are its
            attributes, as those within Lookahead or SAM, get their root's state, too. What else a class keeps has to be
            in its ``state_dict()``, which the class's own ``load_state_dict()`` loads on all ranks then.
        root_rank: whose state to take; a global rank in the set.
        model: not needed; accepted because Horovod does.
        process_set: the ranks that take part.

    Raises:
        ValueError: the optimizer is L-BFGS; or classes, groups or numbers of parameters differ between a rank and the
            root, or each rank keeps a share of the state, as with ``ZeroRedundancyOptimizer``. Raised on all ranks.
    """
    optimizers = _with_inner(optimizer)
    if any(isinstance(each, torch.optim.LBFGS) for each in optimizers.values()):
        raise InvalidArgumentError("cannot broadcast torch.optim.LBFGS state.")
    _check_alike(optimizers, root_rank, process_set)
    is_root = context.rank() == root_rank
    found = _Tensors()
    states = [_state_of(each, found) for each in optimizers.values()] if is_root else []
    kinds = [(tensor.dtype, tuple(tensor.shape)) for tensor in found.tensors]
    states, kinds = broadcast_object((states, kinds), root_rank, "optimizer_state", process_set)
    tensors = found.tensors if is_root else [torch.empty(shape, dtype=dtype) for dtype, shape in kinds]
    # Contiguous copies on the root: they are sent, and what they were made of stays.
    named = [(f"optimizer_state.{i:06}", tensor.detach().contiguous()) for i, tensor in enumerate(tensors)]
    broadcast_parameters(named, root_rank, process_set)
    writer = _Writer([tensor for _, tensor in named])
    for each, state in zip(optimizers.values(), states, strict=True):
        writer.load(each, state, optimizers.values())
    for each, state in zip(optimizers.values(), states, strict=True):
        writer.write(each, state)


class _State(NamedTuple):
    """What one optimizer has, with a :class:`_Place` for each tensor."""

    groups: list[dict[str, Any]]  # without the parameters
    by_parameter: dict[int, Any]  # by the parameter's place among those of all groups
    others: dict[Any, Any]
    whole: dict[str, Any] | None  # of a class that loads more than that


class _Place(NamedTuple):
    """Stands for a tensor."""

    number: int


def _with_inner(optimizer: torch.optim.Optimizer) -> dict[str, torch.optim.Optimizer]:
    """An optimizer and those that are its attributes, and theirs, by the path to each."""
    found = {"": optimizer}
    waiting = [("", optimizer)]
    while waiting:
        path, outer = waiting.pop()
        for name, value in sorted(vars(outer).items()):
            # A wrapped optimizer and the plain one have the same attributes.
            if isinstance(value, torch.optim.Optimizer) and all(vars(value) is not vars(e) for e in found.values()):
                found[f"{path}.{name}"] = value
                waiting.append((f"{path}.{name}", value))
    return found


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _check_alike(optimizers: Mapping[str, torch.optim.Optimizer], root_rank: int, process_set: ProcessSet) -> None:
    """Raise on all ranks if one's optimizers, or the parameters in their groups, are not the root's."""
    mine = _structure(optimizers)
    everyone = dict(zip(process_set.ranks, allgather_object(mine, "optimizer_state.groups", process_set), strict=False))
    if root_rank not in everyone:
        return
    roots_counts, roots_numbers = everyone[root_rank]
    for rank, (counts, numbers) in everyone.items():
        if counts[0] == roots_counts[0] and numbers.keys() == roots_numbers.keys():
            for path, theirs in numbers.items():
                if theirs != roots_numbers[path]:
                    raise InvalidArgumentError(
                        f"broadcast_optimizer_state: the inner optimizer {path} has other parameters on rank {rank} "
                        f"(numbers {theirs}) than on the root, rank {root_rank} (numbers {roots_numbers[path]}): each "
                        "rank keeps a share of the state, as with ZeroRedundancyOptimizer. Load each share on its rank."
                    )
        if counts != roots_counts:
            raise InvalidArgumentError(
                f"broadcast_optimizer_state: rank {rank} has {', '.join(counts)}; the root, rank {root_rank}, has "
                f"{', '.join(roots_counts)}. Make the same optimizer with the same groups on all ranks before."
            )


def _structure(optimizers: Mapping[str, torch.optim.Optimizer]) -> tuple[list[str], dict[str, list[list[int]]]]:
    """Each optimizer's class and numbers of parameters; and which of the outer one's parameters the inner ones have."""
    counts = [
        f"{type(each).__name__}{path and ' as ' + path[1:]} with "
        f"{' + '.join(str(len(group['params'])) for group in each.param_groups)} parameters"
        for path, each in optimizers.items()
    ]
    number_of = {param: number for number, param in enumerate(_parameters_of(optimizers[""]))}
    numbers = {
        path[1:]: [[number_of.get(param, -1) for param in group["params"]] for group in each.param_groups]
        for path, each in optimizers.items()
        if path
    }
    return counts, numbers


class _Tensors:
    """Tensors that are taken out of a structure; one that is there twice is sent once."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, _Place] = {}

    def without(self, value: Any) -> Any:
        """The same structure with a place instead of each tensor."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._places:
                self._places[id(value)] = _Place(len(self.tensors))
                self.tensors.append(value)
            return self._places[id(value)]
        if isinstance(value, dict):
            return {key: self.without(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return _like(value, [self.without(item) for item in value])
        return value


def _like(sequence: Any, items: Iterable[Any]) -> Any:
    """A list or tuple of these items, of the same type."""
    return type(sequence)(*items) if hasattr(sequence, "_fields") else type(sequence)(items)


def _loads_more(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's class can load more than groups and state."""
    plain = optimizer._plain if isinstance(optimizer, WrappedOptimizer) else optimizer
    return type(plain).load_state_dict is not torch.optim.Optimizer.load_state_dict


def _state_of(optimizer: torch.optim.Optimizer, found: _Tensors) -> _State:
    params = _parameters_of(optimizer)
    numbers = {param: number for number, param in enumerate(params)}
    state = optimizer.state
    whole = optimizer.state_dict() if _loads_more(optimizer) else {}
    return _State(
        [found.without({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups],
        {numbers[key]: found.without(state[key]) for key in state if key in numbers},
        {key: found.without(value) for key, value in state.items() if not isinstance(key, torch.Tensor)},
        None if whole.keys() <= {"state", "param_groups"} else found.without(whole),
    )


class _Writer:
    """Writes the root's state where this rank has its own; see Note [State is changed where it is]."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._written: dict[int, tuple[torch.Tensor, int]] = {}  # by id: this rank's tensor, and the root's in it

    def load(
        self, optimizer: torch.optim.Optimizer, given: _State, everyone: Collection[torch.optim.Optimizer]
    ) -> None:
        """Let the class load what it has besides groups and state; everyone's dictionaries stay."""
        if given.whole is None:
            return
        own = [(each, each.param_groups, each.state) for each in everyone]
        optimizer.load_state_dict(self._merged(None, given.whole))
        replaced = {}
        for each, groups, state in own:
            replaced.update({id(each.param_groups): groups, id(each.state): state})
        for each, _, _ in own:
            for name, value in vars(each).items():
                vars(each)[name] = replaced.get(id(value), value)

    def write(self, optimizer: torch.optim.Optimizer, given: _State) -> None:
        """Write options and state into the dictionaries that are there."""
        for group, options in zip(optimizer.param_groups, given.groups, strict=True):
            self._update(group, options, {"params"})
        params = _parameters_of(optimizer)
        by_parameter = {params[number]: entry for number, entry in given.by_parameter.items()}
        of_former_ones = {key for key in optimizer.state if isinstance(key, torch.Tensor)} - set(params)
        self._update(optimizer.state, {**by_parameter, **given.others}, of_former_ones)

    def _merged(self, own: Any, given: Any) -> Any:
        """What ``given`` means, written into ``own`` as far as that can hold it."""
        if isinstance(given, _Place):
            return self._tensor(own, given.number)
        if isinstance(given, dict):
            return self._update(own if isinstance(own, dict) else {}, given, ())
        if isinstance(given, (list, tuple)):
            paired = own if isinstance(own, (list, tuple)) and len(own) == len(given) else [None] * len(given)
            items = [self._merged(mine, item) for mine, item in zip(paired, given, strict=True)]
            if isinstance(given, list) and isinstance(own, list):
                own[:] = items
                return own
            return _like(given, items)
        return given

    def _update(self, own: dict[Any, Any], given: dict[Any, Any], spared: Container[Any]) -> dict[Any, Any]:
        for key in [key for key in own if key not in given and key not in spared]:
            del own[key]
        for key, item in given.items():
            own[key] = self._merged(own.get(key), item)
        return own

    def _tensor(self, own: Any, index: int) -> torch.Tensor:
        given = self._tensors[index]
        # Two of the root's may be one here, which then has to stay the first of them.
        if _holds(own, given) and self._written.setdefault(id(own), (own, index))[1] == index:
            with torch.no_grad():
                own.copy_(given)
            return own  # type: ignore[no-any-return]
        return given


def _holds(own: Any, given: torch.Tensor) -> bool:
    """Whether ``given`` can be copied into what this rank has in its place."""
    return (
        isinstance(own, torch.Tensor)
        and own.layout is torch.strided
        and own.shape == given.shape
        and own.dtype is given.dtype
        and not is_expanded(own)
    )
