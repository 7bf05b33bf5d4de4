"""Several distributed optimizers in one process: their default names, and those that get into each other's way."""

from __future__ import annotations

import itertools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from horocache.collectives.arguments import set_id
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import DuplicateNameError

if TYPE_CHECKING:
    from horocache.torch.optimizer.reducer import GradientReducer


class Owner(Protocol):
    """An optimizer that has a reducer, or none where there is nothing to reduce."""

    _reducer: GradientReducer | None

    def _follow_groups(self) -> None:
        """Take the hooks from parameters that have left the optimizer."""


_living: weakref.WeakSet[Any] = weakref.WeakSet()  # of Owner
_numbers = itertools.count(1)


def default_prefix(process_set: ProcessSet) -> str:
    """What the names of an optimizer's parameters begin with if its user gives none.

    All ranks of a process set make their optimizers in one order, so that they count them alike. The first one's names
    are Horovod's.
    """
    counts, number = context.current().unnamed_optimizers, set_id(process_set)
    counts[number] += 1
    return f"optimizer_{counts[number]}." if counts[number] > 1 else ""


def describe(optimizer: Any) -> str:
    """For errors: the optimizer, how many were wrapped before it, and the line of the program that wraps it now."""
    frame = sys._getframe(1)
    inner = __name__.rpartition(".")[0] + ".", "copy"
    while frame.f_back is not None and (frame.f_globals.get("__name__") or "").startswith(inner):
        frame = frame.f_back
    kind, count = type(optimizer).__name__, sum(len(group["params"]) for group in optimizer.param_groups)
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return f"DistributedOptimizer {next(_numbers)} ({kind} of {count} parameters, wrapped at {place})"


def enter(owner: Owner) -> None:
    """Count ``owner`` among the living; others let go of parameters that have left them, and may be its own now."""
    for other in list(_living):
        other._follow_groups()
    _living.add(owner)


def check_apart(reducer: GradientReducer) -> None:
    """Raise if ``reducer`` cannot submit gradients now, because another one's that are in flight are in its way.

    Raises:
        DuplicateNameError: both have a parameter in common, whose gradient each would reduce; or a name.
    """
    if len(_living) < 2:
        return
    for owner in list(_living):
        other = owner._reducer
        if other is None or other is reducer or not other.busy:
            continue
        changes = reducer.changes, other.changes
        if reducer.apart_from.get(other) != changes:
            _check_pair(reducer, other)
            reducer.apart_from[other] = changes


def _check_pair(one: GradientReducer, other: GradientReducer) -> None:
    mine, theirs = one.parameters(), other.parameters()
    shared = [name for param, name in mine.items() if param in theirs]
    both = f"rank {context.rank()}: {one.label} and {other.label}"
    if shared:
        which = f"these very parameters ({len(shared)}, the first is {shared[0]!r})"
        raise DuplicateNameError(
            f"{both} both have {which}, so each gradient would be reduced twice. Wrap parameters once; or delete the "
            "optimizer that is not used any more, and whatever still holds it, before the next backward pass."
        )
    taken = set(theirs.values()) if one.set == other.set else set()
    equal = next((name for name in mine.values() if name in taken), None)
    if equal is not None:
        raise DuplicateNameError(
            f"{both} both have a parameter of the name {equal!r}, and gradients of both are on their way, so ranks "
            "could mix them up. Give the parameters of each optimizer names of their own, for example with "
            "named_parameters=encoder.named_parameters(prefix='encoder'); or let one of them step first."
        )
