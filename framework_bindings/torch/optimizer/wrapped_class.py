"""The class of a wrapped optimizer: attributes in common with the plain optimizer, signatures, copies.

Note [One set of attributes]
The wrapped optimizer is the plain optimizer with another class in front: both objects have the same attribute
dictionary, so a change of one is a change of the other. A learning-rate scheduler, an inner optimizer or a callback
that has the plain optimizer therefore uses the parameter groups and the state that the wrapped optimizer steps with,
even after either object has replaced these, as ``load_state_dict`` does. Attributes of the wrapped optimizer only are
in slots, so that its hooks end with it, and not with the plain optimizer.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any, NoReturn, TypeVar, cast

import torch
from horocache.core.process_set import global_process_set, process_sets
from horocache.errors import InvalidArgumentError, UnsupportedError

from ..expert_parameters import holders_of, is_expert, mark_expert, part_experts

_Wrapped = TypeVar("_Wrapped", bound="WrappedOptimizer")


class WrappedOptimizer(torch.optim.Optimizer):
    """A distributed optimizer: the plain optimizer, and the arguments that it was wrapped with.

    Role: the base of the mixins, which precede the user's class in the bases. See Note [One set of attributes].
    """

    __slots__ = ("_arguments", "_make", "_names", "_plain", "_prefix", "_replaced_step")

    _plain: torch.optim.Optimizer
    _arguments: dict[str, Any]  # of DistributedOptimizer, without the optimizer and the names
    _make: Callable[..., Any]  # DistributedOptimizer, which wraps copies
    _names: dict[torch.Tensor, str]
    _prefix: str  # of generated names
    _replaced_step: Callable[..., Any] | None  # assigned to `step`, for example by a scheduler

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The parameters' names, under Horovod's name of the attribute."""
        return self._names

    def _named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Return all parameters of the groups with their names.

        A parameter without a name gets one from its position, which is the same on all ranks that have it.
        """
        used = set(self._names.values())
        by_position = default_names(self._prefix, self.param_groups)
        for param in (param for _, _, param in positions(self.param_groups) if param not in self._names):
            name = base = by_position[param]
            repetition = 0
            while name in used:  # by a parameter that had this position before
                repetition += 1
                name = f"{base}.{repetition}"
            used.add(name)
            self._names[param] = name
        return [(self._names[param], param) for _, _, param in positions(self.param_groups)]

    def _record_step_for_schedulers(self) -> None:
        """Record the step for schedulers of the plain optimizer, which check that it precedes their own steps."""
        attributes = vars(self)
        attributes["_opt_called"] = True
        if "_step_count" in attributes:  # in older torch
            attributes["_step_count"] += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a distributed optimizer of the copied parameters, which are named ``copy.NAME``."""
        self._named_parameters()
        plain = copy.deepcopy(self._plain, memo)
        copies = {param: memo[id(param)] for param in self._names if id(param) in memo}
        for param, copied in copies.items():
            if is_expert(param):
                mark_expert(copied, holders_of(param))
        arguments = dict(self._arguments)
        if isinstance(arguments["groups"], list):
            arguments["groups"] = [[copies[param] for param in group] for group in arguments["groups"]]
        named = [(f"copy.{self._names[param]}", new) for param, new in copies.items()]
        return self._make(plain, named, **arguments)

    def __copy__(self) -> NoReturn:
        """Raise UnsupportedError: two distributed optimizers would reduce each gradient twice."""
        raise UnsupportedError(
            "copy.copy() of a DistributedOptimizer would make a second one of the same parameters, and each gradient "
            "would be reduced twice. Use the optimizer itself, its state_dict(), or copy.deepcopy((model, optimizer))."
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the plain optimizer and the arguments to wrap it again; unpickling requires ``init()``."""
        arguments = dict(self._arguments)
        process_set = arguments.pop("process_set")
        ranks = None if process_set is global_process_set else process_set.ranks
        return _unpickled, (self._make, self._plain, self._named_parameters(), arguments, ranks)


def positions(groups: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield the group number, the position in the group, and the parameter, for every parameter."""
    return ((g, i, param) for g, group in enumerate(groups) for i, param in enumerate(group["params"]))


def default_names(prefix: str, groups: Sequence[dict[str, Any]]) -> dict[torch.Tensor, str]:
    """Return a name for each parameter from its position: ``PREFIXnoname.GROUP.POSITION``.

    Ranks that hold different experts have other positions, and other groups. Groups and positions of shared parameters
    are therefore counted without experts, and an expert is counted among those with the same holders.
    """
    shared, experts = part_experts(positions(groups), lambda each: each[2])
    if not experts:
        return {param: f"{prefix}noname.{group}.{position}" for group, position, param in shared}
    names, counts, present = {}, Counter[int](), sorted({group for group, _, _ in shared})
    for group, _, param in shared:
        names[param] = f"{prefix}noname.{present.index(group)}.{counts[group]}"
        counts[group] += 1
    for holders, items in experts:
        which = "of_this_rank" if holders is None else f"of_set_{holders.process_set_id}"
        names.update({param: f"{prefix}noname.expert_{which}.{number}" for number, (_, _, param) in enumerate(items)})
    return names


def _unpickled(
    make: Callable[..., Any],
    plain: torch.optim.Optimizer,
    named: list[tuple[str, torch.Tensor]],
    arguments: dict[str, Any],
    ranks: list[int] | None,
) -> Any:
    """Wrap an unpickled optimizer again, distributed over ``ranks`` of this job; None means all ranks."""
    fitting = [each for each in process_sets() if each.ranks == ranks] if ranks is not None else [global_process_set]
    if not fitting:
        raise InvalidArgumentError(
            f"the pickled DistributedOptimizer reduces its gradients over the process set {ranks}, which has not been "
            "registered in this job. Give it to init(process_sets=[...]), or call add_process_set(), before."
        )
    return make(plain, named, **{**arguments, "process_set": fitting[0]})


class _Step:
    """The method ``step`` of a wrapped optimizer.

    A scheduler of the plain optimizer puts its own ``step``, which does not reduce gradients, into the common
    dictionary. A descriptor with ``__set__`` takes precedence over that entry. A ``step`` that a scheduler assigns to
    the wrapped optimizer goes into a slot.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, optimizer: WrappedOptimizer | None, owner: type) -> Any:
        if optimizer is None:
            return self._function
        return optimizer._replaced_step or MethodType(self._function, optimizer)

    def __set__(self, optimizer: WrappedOptimizer, function: Callable[..., Any]) -> None:
        optimizer._replaced_step = function

    def __delete__(self, optimizer: WrappedOptimizer) -> None:
        optimizer._replaced_step = None


def _presented_as(function: Callable[..., Any], users: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``function`` the signature of the user's method: GradScaler and others inspect a method's parameters."""

    @functools.wraps(users)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return function(self, *arguments, **options)

    return call


def wrap(
    optimizer: torch.optim.Optimizer,
    mixin: type[_Wrapped],
    names: dict[torch.Tensor, str],
    arguments: dict[str, Any],
    **own: Any,
) -> _Wrapped:
    """Make an object of a class derived from ``mixin`` and the user's class, with the values ``own`` in its slots."""
    plain_class: Any = type(optimizer)
    step = _presented_as(mixin.step, plain_class.step)
    # torch wraps the step of each class without this mark. The user's class has been wrapped already; if
    # load_state_dict also wrapped the derived class, every hook of the step would run twice.
    cast(Any, step).hooked = True
    methods: dict[str, Any] = {"step": _Step(step)}
    if "zero_grad" in vars(mixin):
        methods["zero_grad"] = _presented_as(mixin.zero_grad, plain_class.zero_grad)
    distributed_class: Any = type(plain_class.__name__, (mixin, plain_class), methods)
    distributed = cast(_Wrapped, distributed_class.__new__(distributed_class))
    distributed.__dict__ = vars(optimizer)
    slots = {"_plain": optimizer, "_names": names, "_arguments": arguments, "_replaced_step": None, **own}
    for name, value in slots.items():
        setattr(distributed, name, value)
    return distributed
