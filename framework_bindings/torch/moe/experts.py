"""The experts of one rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from horocache.core.process_set import ProcessSet
from horocache.errors import InvalidArgumentError

from .expert_parameters import mark_expert

__all__ = ["ExpertBank"]


class _Factory:
    """The function of the program that makes experts.

    A deep copy of a bank has the same one. A pickle has none, because functions of programs often cannot be pickled.
    """

    def __init__(self, function: Callable[..., torch.nn.Module] | None) -> None:
        self.function = function
        self._takes_number = function is not None and _takes_number(function)

    def make(self, expert: int) -> torch.nn.Module:
        """Return a new expert.

        Raises:
            InvalidArgumentError: the function returned something else than a module, or is not there.
        """
        if self.function is None:
            raise InvalidArgumentError(
                "a layer that was pickled has no expert_factory, so that it cannot take experts of other ranks; make "
                "the layer anew and load its state_dict"
            )
        made = self.function(expert) if self._takes_number else self.function()
        if not isinstance(made, torch.nn.Module):
            raise InvalidArgumentError(f"the expert factory returned {made!r} for expert {expert}, not a module")
        return made

    def __deepcopy__(self, _: Any) -> _Factory:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Factory, (None,)


class ExpertBank(torch.nn.ModuleDict):
    """The experts that this rank hosts, by their number among the experts of all ranks.

    The keys of ``state_dict`` have these numbers, so that a checkpoint does not depend on the map from experts to
    ranks: the union of all ranks' state is that of one rank with all experts. ``load_state_dict`` ignores the experts
    of other ranks.

    Each expert is made with a seed of its own, which follows from torch's generator and the expert's number. With equal
    seeds on all ranks an expert's initial weights do not depend on the map, and the generator is equal afterwards.

    Args:
        factory: makes one expert, a module that maps tokens of shape ``(n, hidden)`` to the same shape. It gets the
            number of the expert if it has a positional argument without a default.
        expert_ranks: the rank of each expert.
        rank: this rank; both count within the process set of the layer.
        holders: the ranks with a copy of the same experts; None: this rank alone.

    Raises:
        InvalidArgumentError: the factory needs more than one argument, or returned something else than a module.
    """

    def __init__(
        self,
        factory: Callable[..., torch.nn.Module],
        expert_ranks: Sequence[int],
        rank: int,
        holders: ProcessSet | None,
    ) -> None:
        super().__init__()
        self.num_experts = len(expert_ranks)
        self.holders = holders
        self._factory = _Factory(factory)
        base = int(torch.randint(0, 2**62, (), device="cpu"))
        for expert, host in enumerate(expert_ranks):
            if host != rank:
                continue
            with _seeded(base + expert):
                made = self._factory.make(expert)
            self[str(expert)] = made
        self.mark()

    def made(self, expert: int) -> torch.nn.Module:
        """Return a new expert that is not in the bank; torch's generator stays as it is.

        Raises:
            InvalidArgumentError: the factory returned something else than a module, or the bank comes from a pickle.
        """
        with _seeded(0):
            return self._factory.make(expert)

    def replace(self, gone: Sequence[int], new: dict[int, torch.nn.Module]) -> None:
        """Remove experts and add others; the order is that of their numbers."""
        kept = {int(name): expert for name, expert in self.items() if int(name) not in set(gone)}
        self.clear()
        for number, expert in sorted((kept | new).items()):
            self[str(number)] = expert
        self.mark()

    def mark(self) -> None:
        """Mark the parameters as those of experts: attributes ``allreduce`` and ``expert_holders``.

        Gradients of marked parameters are not part of the data-parallel allreduce. ``copy.deepcopy`` of this bank marks
        the copies; parameters that a program replaces need another call.
        """
        for parameter in self.parameters():
            mark_expert(parameter, self.holders)

    def extra_repr(self) -> str:
        """Return the numbers that torch prints with the module."""
        return f"num_local_experts={len(self)}, num_experts={self.num_experts}"

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.mark()  # copies of parameters have lost their attributes

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        _, prefix, _, _, _, unexpected, _ = arguments
        others = {str(expert) for expert in range(self.num_experts)} - set(self)
        unexpected[:] = [
            key for key in unexpected if not (key.startswith(prefix) and key[len(prefix) :].split(".")[0] in others)
        ]


def _takes_number(factory: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # functions of C have no signature
        return False
    needed = [
        each
        for each in parameters
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 1:
        raise InvalidArgumentError(
            f"the expert factory needs the arguments {[each.name for each in needed]}, but it is called with the "
            "number of the expert alone, or without arguments"
        )
    return bool(needed)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Run a block with another seed of the CPU's generator."""
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
