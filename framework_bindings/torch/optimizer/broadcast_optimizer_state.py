"""Broadcasts optimizer state from one rank to all.

Note [State is changed where it is]
Schedulers, inner optimizers and programs keep references to an optimizer's dictionaries, such as a group whose learning
rate they change, or the state of a parameter. The root's state is therefore written into the existing dictionaries and
tensors. The root does this, too, with its own values. So a dictionary is kept or replaced on all ranks alike, with the
same effect on the program on every rank.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from horocache.collectives.object_collectives import allgather_object, broadcast_object
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError, UnsupportedError

from ..adapter import is_expanded
from ..expert_parameters import is_expert, part_experts
from .broadcast_parameters import broadcast_parameters, check_holders
from .wrapped_class import WrappedOptimizer


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the root's optimizer state to all ranks: options of the parameter groups, and state of the parameters.

    Works before the first step, without a step on made-up gradients: only the root needs state. Options and state are
    written into the existing dictionaries and tensors, so that schedulers and inner optimizers go on using them.

    State of expert parameters (see :func:`horocache.torch.moe.mark_expert`), and options of groups that have only such
    parameters, are those of the lowest rank that holds the expert, on all ranks that hold it. If one rank alone holds
    it, they stay as they are. Ranks may hold different experts, and have different groups of them.

    Args:
        optimizer: a distributed or plain optimizer, with the same parameters in the same groups on all ranks, except
            for those of experts. The holders of an expert have it in the same order.
            Optimizers that are its attributes, such as those within Lookahead or SAM, get the state of the root's
            optimizers, too. Any other state of the class must be in its ``state_dict()``; the class's own
            ``load_state_dict()`` then loads it on all ranks.
        root_rank: the rank whose state all ranks get; a global rank in the set.
        model: ignored; accepted for compatibility with Horovod.
        process_set: the ranks that take part.

    Raises:
        ValueError: the optimizer is L-BFGS; classes, groups or numbers of parameters differ between a rank and the
            root; or each rank keeps a share of the state, as with ``ZeroRedundancyOptimizer``. Raised on all ranks.
            The holders of an expert have different experts, or are not all in ``process_set``.
        UnsupportedError: with experts, the class of the optimizer has state of its own, besides options and state of
            the parameters.
    """
    optimizers = _with_inner(optimizer)
    if any(isinstance(each, torch.optim.LBFGS) for each in optimizers.values()):
        raise InvalidArgumentError("cannot broadcast torch.optim.LBFGS state.")
    with_experts = _check_alike(optimizers, root_rank, process_set)
    scopes = [_shared_scope(each, with_experts) for each in optimizers.values()]
    _broadcast(scopes, root_rank, process_set)
    for holders, scopes in _expert_scopes(optimizers.values(), process_set):
        _check_same_experts(scopes, holders)
        _broadcast(scopes, holders.ranks[0], holders)


class _Scope(NamedTuple):
    """The part of an optimizer that is broadcast from one rank."""

    optimizer: torch.optim.Optimizer
    groups: list[dict[str, Any]]  # whose options are broadcast
    parameters: list[torch.Tensor]  # whose state is broadcast
    with_experts: bool = False  # True if an optimizer of some rank has experts, whose state is not in this part
    of_experts: bool = False  # True if this is only the state of experts, and options of their groups


def _shared_scope(optimizer: torch.optim.Optimizer, with_experts: bool) -> _Scope:
    groups = optimizer.param_groups
    if with_experts:  # ranks may have other groups of experts, or an empty one instead
        groups = [group for group in groups if not all(map(is_expert, group["params"]))]
    shared = [param for param in _parameters_of(optimizer) if not is_expert(param)]
    return _Scope(optimizer, groups, shared, with_experts)


def _expert_scopes(
    optimizers: Iterable[torch.optim.Optimizer], process_set: ProcessSet
) -> list[tuple[ProcessSet, list[_Scope]]]:
    """Return what the holders of the same experts broadcast, in the order of the numbers of their process sets."""
    everyone = [(each, param) for each in optimizers for param in _parameters_of(each)]
    found = []
    for holders, items in part_experts(everyone, lambda each: each[1])[1]:
        if holders is None:
            continue
        check_holders(holders, f"of shape {tuple(items[0][1].shape)}", process_set)
        scopes = []
        for optimizer in optimizers:
            params = [param for owner, param in items if owner is optimizer]
            held = set(params)
            groups = [
                group
                for group in optimizer.param_groups
                if held.intersection(group["params"]) and all(map(is_expert, group["params"]))
            ]
            scopes.append(_Scope(optimizer, groups, params, True, True))
        found.append((holders, scopes))
    return found


def _check_same_experts(scopes: Sequence[_Scope], holders: ProcessSet) -> None:
    """Raise on all holders if one has other experts in its optimizers than the lowest."""
    own = [[len(each.groups), *((str(p.dtype), tuple(p.shape)) for p in each.parameters)] for each in scopes]
    everyone = allgather_object(own, f"optimizer_state.experts_of_set_{holders.process_set_id}", holders)
    for rank, theirs in zip(holders.ranks, everyone, strict=True):
        if theirs != everyone[0]:
            raise InvalidArgumentError(
                f"broadcast_optimizer_state: rank {rank} has {_of_experts(theirs)}; rank {holders.ranks[0]} has "
                f"{_of_experts(everyone[0])}. The ranks {holders.ranks} hold the same experts, and must have them in "
                "the same order and groups of the optimizer."
            )


def _of_experts(entries: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{each[0]} groups of experts with parameters {list(each[1:])}" for each in entries)


def _broadcast(scopes: Sequence[_Scope], root_rank: int, process_set: ProcessSet) -> None:
    """Write the root's state of these parts into the other ranks'."""
    is_root = context.rank() == root_rank
    found = _Tensors()
    states = [_state_of(each, found) for each in scopes] if is_root else []
    devices = _devices_of(each.optimizer for each in scopes)
    kinds = [(tensor.dtype, tuple(tensor.shape), _number_of(tensor, devices)) for tensor in found.tensors]
    states, kinds = broadcast_object((states, kinds), root_rank, "optimizer_state", process_set)
    for scope, state in zip(scopes, states, strict=True):
        if scope.with_experts and state.whole is not None:
            kind = type(scope.optimizer).__name__
            raise UnsupportedError(
                f"broadcast_optimizer_state: {kind} has state of its own, {sorted(state.whole)}, besides the "
                "parameters', which cannot be told apart from that of experts. Give the experts an optimizer of their "
                "own, of a class that only has state of parameters."
            )
    tensors = found.tensors if is_root else _empty(kinds, devices)
    # The root sends contiguous tensors; where contiguous() makes a copy, the state itself stays as it is.
    named = [(f"optimizer_state.{i:06}", tensor.detach().contiguous()) for i, tensor in enumerate(tensors)]
    broadcast_parameters(named, root_rank, process_set)
    writer = _Writer([tensor for _, tensor in named])
    optimizers = [each.optimizer for each in scopes]
    for scope, state in zip(scopes, states, strict=True):
        writer.load(scope.optimizer, state, optimizers)
    for scope, state in zip(scopes, states, strict=True):
        writer.write(scope, state)


def _devices_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.device]:
    """Return the parameters' devices besides the CPU, in the order of the parameters."""
    found = (param.device for each in optimizers for param in _parameters_of(each))
    return list(dict.fromkeys(device for device in found if device.type != "cpu"))


def _number_of(tensor: torch.Tensor, devices: Sequence[torch.device]) -> int:
    """Return the number of the tensor's device among the parameters' devices; -1 for any other device."""
    return devices.index(tensor.device) if tensor.device in devices else -1


def _empty(kinds: Sequence[tuple[torch.dtype, tuple[int, ...], int]], devices: Sequence[torch.device]) -> list[Any]:
    """Return tensors for the root's, each on the device that has the root's number on this rank."""
    places = [*devices, torch.device("cpu")]
    return [torch.empty(shape, dtype=dtype, device=places[min(number, len(devices))]) for dtype, shape, number in kinds]


class _State(NamedTuple):
    """The state of one optimizer, with a :class:`_Place` instead of each tensor."""

    groups: list[dict[str, Any]]  # options, without the parameters
    by_parameter: dict[int, Any]  # state by the parameter's number among those of all groups
    others: dict[Any, Any]  # state under keys that are not tensors
    whole: dict[str, Any] | None  # the state_dict(), if the class loads more than groups and state


class _Place(NamedTuple):
    """Placeholder of a tensor, by its number among the tensors that are sent."""

    number: int


def _with_inner(optimizer: torch.optim.Optimizer) -> dict[str, torch.optim.Optimizer]:
    """Return an optimizer, the optimizers among its attributes, and recursively theirs, by attribute path."""
    found = {"": optimizer}
    waiting = [("", optimizer)]
    while waiting:
        path, outer = waiting.pop()
        for name, value in sorted(vars(outer).items()):
            # A wrapped optimizer and its plain optimizer share one attribute dictionary: they count once.
            if isinstance(value, torch.optim.Optimizer) and all(vars(value) is not vars(e) for e in found.values()):
                found[f"{path}.{name}"] = value
                waiting.append((f"{path}.{name}", value))
    return found


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _check_alike(optimizers: Mapping[str, torch.optim.Optimizer], root_rank: int, process_set: ProcessSet) -> bool:
    """Compare the ranks' optimizers; return True if an optimizer of some rank has parameters of experts.

    Raises:
        InvalidArgumentError: a rank's optimizers, or the shared parameters in their groups, differ from the root's.
            Raised on all ranks.
    """
    mine = _structure(optimizers)
    gathered = allgather_object(mine, "optimizer_state.groups", process_set)
    with_experts = any(each.has_experts for each in gathered)
    everyone = {
        rank: (each.counts(with_experts), each.numbers_of_inner(with_experts))
        for rank, each in zip(process_set.ranks, gathered, strict=False)
    }
    if root_rank not in everyone:
        return with_experts
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
    return with_experts


class _Structure(NamedTuple):
    """The optimizers of a rank, with the numbers of their shared parameters among those of the outer one, by group."""

    classes: list[str]  # each optimizer's class and the attribute path to it
    numbers: dict[str, list[list[int]]]  # by path
    has_experts: bool

    def counts(self, with_experts: bool) -> list[str]:
        """Describe each optimizer by its class and numbers of shared parameters.

        Args:
            with_experts: True to leave out groups without shared parameters.
        """
        kept = [[len(group) for group in groups if group or not with_experts] for groups in self.numbers.values()]
        return [
            f"{name} with {' + '.join(map(str, lengths))} parameters"
            for name, lengths in zip(self.classes, kept, strict=True)
        ]

    def numbers_of_inner(self, with_experts: bool) -> dict[str, list[list[int]]]:
        """Return the numbers of the shared parameters of each inner optimizer, in the same groups."""
        return {
            path[1:]: [group for group in groups if group or not with_experts]
            for path, groups in self.numbers.items()
            if path
        }


def _structure(optimizers: Mapping[str, torch.optim.Optimizer]) -> _Structure:
    shared = _shared_scope(optimizers[""], False).parameters
    number_of = {param: number for number, param in enumerate(shared)}
    return _Structure(
        [f"{type(each).__name__}{path and ' as ' + path[1:]}" for path, each in optimizers.items()],
        {
            path: [[number_of.get(p, -1) for p in group["params"] if not is_expert(p)] for group in each.param_groups]
            for path, each in optimizers.items()
        },
        any(is_expert(param) for each in optimizers.values() for param in _parameters_of(each)),
    )


class _Tensors:
    """Collects the tensors of a structure; a tensor that occurs twice is sent once."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, _Place] = {}

    def without(self, value: Any) -> Any:
        """Return the same structure with a placeholder instead of each tensor."""
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
    """Return a list or tuple of these items, of the type of ``sequence``."""
    return type(sequence)(*items) if hasattr(sequence, "_fields") else type(sequence)(items)


def _loads_more(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if the class overrides ``load_state_dict``, which may then load more than groups and state."""
    plain = optimizer._plain if isinstance(optimizer, WrappedOptimizer) else optimizer
    return type(plain).load_state_dict is not torch.optim.Optimizer.load_state_dict


def _state_of(scope: _Scope, found: _Tensors) -> _State:
    optimizer, numbers = scope.optimizer, {param: number for number, param in enumerate(scope.parameters)}
    state = optimizer.state
    groups = [found.without({k: v for k, v in group.items() if k != "params"}) for group in scope.groups]
    by_parameter = {numbers[key]: found.without(state[key]) for key in state if key in numbers}
    if scope.of_experts:
        return _State(groups, by_parameter, {}, None)
    whole = optimizer.state_dict() if _loads_more(optimizer) else {}
    return _State(
        groups,
        by_parameter,
        {key: found.without(value) for key, value in state.items() if not isinstance(key, torch.Tensor)},
        None if whole.keys() <= {"state", "param_groups"} else found.without(whole),
    )


class _Writer:
    """Writes the root's state into this rank's; see Note [State is changed where it is]."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._written: dict[int, tuple[torch.Tensor, int]] = {}  # by id: this rank's tensor, and the root's in it

    def load(
        self, optimizer: torch.optim.Optimizer, given: _State, everyone: Collection[torch.optim.Optimizer]
    ) -> None:
        """Let the class load what is not in groups and state; the optimizers ``everyone`` keep their dictionaries."""
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

    def write(self, scope: _Scope, given: _State) -> None:
        """Write options and state into the existing dictionaries."""
        for group, options in zip(scope.groups, given.groups, strict=True):
            self._update(group, options, {"params"})
        params, state = scope.parameters, scope.optimizer.state
        by_parameter = {params[number]: entry for number, entry in given.by_parameter.items()}
        # State of former parameters, and of other parts, stays.
        others = {key for key in state if isinstance(key, torch.Tensor) or scope.of_experts} - set(params)
        self._update(state, {**by_parameter, **given.others}, others)

    def _merged(self, own: Any, given: Any) -> Any:
        """Write ``given``, with tensors for placeholders, into ``own`` where ``own`` can hold it; return the result."""
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
        # Two tensors of the root may be one tensor here, which then keeps the values of the first.
        if _holds(own, given) and self._written.setdefault(id(own), (own, index))[1] == index:
            with torch.no_grad():
                own.copy_(given)
            return own  # type: ignore[no-any-return]
        return given


def _holds(own: Any, given: torch.Tensor) -> bool:
    """Return True if ``given`` can be copied into this rank's ``own``."""
    return (
        isinstance(own, torch.Tensor)
        and own.layout is torch.strided
        and own.shape == given.shape
        and own.dtype is given.dtype
        and not is_expanded(own)
    )
