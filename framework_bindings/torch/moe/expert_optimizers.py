"""The optimizers of a layer's experts: what they know of one parameter, and how parameters come and go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from horocache.errors import InvalidArgumentError, UnsupportedError

from ..optimizer.optimizer import DistributedMixin
from ..optimizer.other_optimizers import distributed_optimizers
from .raw_tensor import RawTensor

__all__ = ["Entry", "ExpertOptimizers", "Placed"]

_NAMES = "param_names"  # of torch: a list beside "params"
_PLAIN = (int, float, bool, str, type(None))
# Optimizers whose state is not that of one parameter each.
_WITHOUT_STATE_OF_PARAMETERS = ("LBFGS", "ZeroRedundancyOptimizer")


@dataclass(frozen=True)
class Entry:
    """A parameter in an optimizer.

    Attributes:
        optimizer: its place among the optimizers that the program gave.
        group: the number of the parameter's group.
        label: its name in a DistributedOptimizer; None in other optimizers.
        name: its name in an optimizer that was made with named parameters.
        state: by key: a number or text, or the description of a tensor. None: the optimizer has not stepped with it.
    """

    optimizer: int
    group: int
    label: str | None
    name: str | None
    state: dict[str, Any] | None

    def tensors(self) -> list[tuple[str, RawTensor]]:
        """Return the tensors of the state, by key."""
        return [(key, value) for key, value in (self.state or {}).items() if isinstance(value, RawTensor)]


class Placed(NamedTuple):
    """A parameter that comes to this rank, and its place and state in an optimizer."""

    param: torch.Tensor
    entry: Entry
    state: dict[str, Any] | None


class ExpertOptimizers:
    """The optimizers that train the experts of a layer.

    Args:
        optimizers: one optimizer, several, or None.

    Raises:
        InvalidArgumentError: something else was given. UnsupportedError: the state of an optimizer is not one for each
            parameter.
    """

    def __init__(self, optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None) -> None:
        if optimizers is None:
            given: list[Any] = []
        else:
            given = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        wrappers = {id(each._plain): each for each in distributed_optimizers()}
        self._optimizers = [wrappers.get(id(each), each) for each in given]
        for number, optimizer in enumerate(self._optimizers):
            _check_kind(number, optimizer)

    def __len__(self) -> int:
        return len(self._optimizers)

    def check(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Check that these optimizers are all of the experts' parameters, and are between two steps.

        Raises:
            InvalidArgumentError: a trained parameter is in none of the optimizers although there are some, in two of
                them, or in a DistributedOptimizer that was not given; or gradients are in flight.
        """
        experts = {param for _, param in named}
        for number, optimizer in enumerate(self._optimizers):
            if isinstance(optimizer, DistributedMixin):
                _check_distributed(number, optimizer, experts)
        places: dict[torch.Tensor, list[tuple[int, int]]] = {param: [] for param in experts}
        for place, param in self._places():
            if param in places:
                places[param].append(place)
        for name, param in named:
            if len(places[param]) > 1:
                raise InvalidArgumentError(
                    f"{name} is in several groups of the given optimizers, by optimizer and group: {places[param]}; "
                    "leave it in one"
                )
            if self._optimizers and not places[param] and param.requires_grad:
                raise InvalidArgumentError(
                    f"{name} is in none of the {len(self)} given optimizers, so that its state would be lost; give all "
                    "optimizers of the layer's experts, or freeze the parameter"
                )
        self._check_complete(experts)

    def _check_complete(self, experts: set[torch.Tensor]) -> None:
        given = {id(each) for each in self._optimizers}
        if any(id(other) not in given and experts & _params_of(other) for other in distributed_optimizers()):
            raise InvalidArgumentError(
                "a DistributedOptimizer has experts of the layer and was not given; give all optimizers of the layer's "
                "experts"
            )

    def entry(self, what: str, param: torch.Tensor) -> Entry | None:
        """Return what the optimizers know of a parameter; None if it is in none of them.

        Raises:
            UnsupportedError: its state has something else than tensors, numbers and texts.
        """
        for (number, group), found in self._places():
            if found is not param:
                continue
            optimizer = self._optimizers[number]
            options = optimizer.param_groups[group]
            label = name = None
            if isinstance(optimizer, DistributedMixin):
                label = dict((p, n) for n, p in optimizer._named_parameters())[param]
            if _NAMES in options:
                name = next(n for n, p in zip(options[_NAMES], options["params"], strict=True) if p is param)
            state = optimizer.state.get(param)
            if state is not None:
                where = f"{what} of optimizer {number}"
                state = {key: _described(value, param.device, f"{key!r} of {where}") for key, value in state.items()}
            return Entry(number, group, label, name, state)
        return None

    def state_of(self, entry: Entry, param: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of a parameter's state, in the order of ``entry.tensors()``."""
        state = self._optimizers[entry.optimizer].state
        return [state[param][key] for key, _ in entry.tensors()]

    def options(self) -> list[list[dict[str, Any]]]:
        """Return the options of all groups of all optimizers, without parameters, to be compared between ranks."""
        return [
            [
                {key: _comparable(value) for key, value in group.items() if key not in ("params", _NAMES)}
                for group in optimizer.param_groups
            ]
            for optimizer in self._optimizers
        ]

    def replace(
        self,
        gone: Sequence[torch.Tensor],
        placed: Sequence[Placed],
        order: Sequence[torch.Tensor],
        before: Sequence[torch.Tensor],
        after: Sequence[torch.Tensor],
    ) -> None:
        """Take parameters out of the optimizers and put others in, in place.

        A group has the parameters of the layer where a model would list them, so that its state_dict fits an optimizer
        that is made anew with the new map.

        Args:
            gone: parameters that have left this rank.
            placed: those that have come.
            order: all parameters of the layer's experts, as the model lists them from now on.
            before: the layer's parameters that the model lists before the experts.
            after: those that it lists after them.
        """
        leaving = set(gone)
        for number, optimizer in enumerate(self._optimizers):
            mine = [each for each in placed if each.entry.optimizer == number]
            touched = leaving & _params_of(optimizer)
            for index, group in enumerate(optimizer.param_groups):
                coming = {each.param: each.entry.name for each in mine if each.entry.group == index}
                if coming or any(param in touched for param in group["params"]):
                    _put(group, leaving, coming, order, (before, after))
            for param in touched:
                optimizer.state.pop(param, None)
            for each in mine:
                if each.state is not None:
                    optimizer.state[each.param] = each.state
            if isinstance(optimizer, DistributedMixin):
                optimizer._exchange_parameters(touched, {each.param: each.entry.label for each in mine})

    def _places(self) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
        for number, optimizer in enumerate(self._optimizers):
            for group, options in enumerate(optimizer.param_groups):
                for param in options["params"]:
                    yield (number, group), param


def _params_of(optimizer: torch.optim.Optimizer) -> set[torch.Tensor]:
    return {param for group in optimizer.param_groups for param in group["params"]}


def _check_kind(number: int, optimizer: Any) -> None:
    kind = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(
            f"optimizer {number} is a {kind}, not a torch.optim.Optimizer; give the optimizer that it wraps"
        )
    names = {base.__name__ for base in type(optimizer).__mro__} & set(_WITHOUT_STATE_OF_PARAMETERS)
    strange = [key for key in optimizer.state if not isinstance(key, torch.Tensor)]
    if names or strange:
        why = f"state under {strange[0]!r}" if strange else "such a state by its class"
        raise UnsupportedError(
            f"optimizer {number} ({kind}) keeps state that is not of one parameter each ({why}), which cannot move "
            "with an expert; use an optimizer with state for each parameter, such as SGD or Adam"
        )


def _check_distributed(number: int, optimizer: DistributedMixin, experts: set[torch.Tensor]) -> None:
    if optimizer._in_flight():
        raise InvalidArgumentError(
            f"gradients of optimizer {number} are in flight; move experts after step() and zero_grad()"
        )
    groups = optimizer._arguments["groups"]
    if isinstance(groups, list) and {param for group in groups for param in group} & experts:
        raise UnsupportedError(
            f"optimizer {number} was wrapped with groups=[...] that have parameters of experts, which would not be the "
            "same after a move; leave the experts out of groups"
        )


def _described(value: Any, device: torch.device, what: str) -> Any:
    if isinstance(value, torch.Tensor):
        return RawTensor.of(value, device, what)
    if isinstance(value, _PLAIN):
        return value
    raise UnsupportedError(
        f"{what} is a {type(value).__name__}, and only tensors, numbers and texts move between ranks; use an optimizer "
        "with such state, such as SGD or Adam"
    )


def _comparable(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _put(
    group: dict[str, Any],
    leaving: set[torch.Tensor],
    coming: dict[torch.Tensor, str | None],
    order: Sequence[torch.Tensor],
    beside: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
) -> None:
    """Change the parameters of a group, and their names, if it has names."""
    present: list[torch.Tensor] = group["params"]
    names = dict(zip(present, group[_NAMES], strict=True)) | coming if _NAMES in group else {}
    members = set(present) | set(coming)
    layers = leaving | set(order)
    others = [param for param in present if param not in layers]
    at = next((at for at, param in enumerate(present) if param in layers), None)
    if at is None:
        at = _place_among(others, *beside)
    present[:] = [*others[:at], *(param for param in order if param in members), *others[at:]]
    if _NAMES in group:
        group[_NAMES][:] = [names[param] for param in present]


def _place_among(others: Sequence[torch.Tensor], before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> int:
    """Return the place of a layer's experts in a group without any: behind the gate, or else at the end."""
    gate, shared = set(before), set(after)
    behind = [at + 1 for at, param in enumerate(others) if param in gate]
    ahead = [at for at, param in enumerate(others) if param in shared]
    return behind[-1] if behind else next(iter(ahead), len(others))
