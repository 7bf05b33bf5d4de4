"""Several distributed optimizers in one process: default names, and the detection of contending optimizers."""

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
    from .expert_reducer import ReducerWithExperts
    from .reducer import GradientReducer


class Owner(Protocol):
    """A distributed optimizer. Its reducer is None if this rank reduces no gradients."""

    _reducer: GradientReducer | ReducerWithExperts | None

    def _follow_groups(self) -> None:
        """Hook parameters that were added to the groups, and unhook those that were removed."""


_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # Owners
_numbers = itertools.count(1)


def default_prefix(process_set: ProcessSet) -> str:
    """Return the prefix of an optimizer's parameter names if the user gives none.

    All ranks of a process set must wrap their optimizers in the same order, so that they count alike. The first
    optimizer has no prefix: its names are Horovod's.
    """
    counts, number = context.current().unnamed_optimizers, set_id(process_set)
    counts[number] += 1
    return f"optimizer_{counts[number]}." if counts[number] > 1 else ""


def describe(optimizer: Any) -> str:
    """Describe an optimizer in errors: its number in this process, its class, and the program line that wraps it."""
    frame = sys._getframe(1)
    inner = __name__.rpartition(".")[0] + ".", "copy"
    while frame.f_back is not None and (frame.f_globals.get("__name__") or "").startswith(inner):
        frame = frame.f_back
    kind, count = type(optimizer).__name__, sum(len(group["params"]) for group in optimizer.param_groups)
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return f"DistributedOptimizer {next(_numbers)} ({kind} of {count} parameters, wrapped at {place})"


def register(owner: Owner) -> None:
    """Register ``owner``. Other optimizers first unhook parameters that have left them, perhaps for ``owner``."""
    for other in list(_optimizers):
        other._follow_groups()
    _optimizers.add(owner)


def distributed_optimizers() -> list[Any]:
    """Return the distributed optimizers of this process that reduce gradients."""
    return list(_optimizers)


def check_no_conflict(reducer: GradientReducer) -> None:
    """Raise if ``reducer`` contends with another optimizer that has gradients in flight.

    Raises:
        DuplicateNameError: both optimizers have a parameter in common, so each would reduce its gradient; or they have
            a parameter name in common on the same process set.
    """
    if len(_optimizers) < 2:
        return
    for owner in list(_optimizers):
        parts = () if owner._reducer is None else owner._reducer.parts
        if reducer in parts:
            continue
        for other in parts:
            changes = reducer.changes, other.changes
            if other.busy and reducer.checked_against.get(other) != changes:
                _check_pair(reducer, other)
                reducer.checked_against[other] = changes


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
    taken = set(theirs.values()) if one.process_set == other.process_set else set()
    equal = next((name for name in mine.values() if name in taken), None)
    if equal is not None:
        raise DuplicateNameError(
            f"{both} both have a parameter of the name {equal!r}, and gradients of both are on their way, so ranks "
            "could mix them up. Give the parameters of each optimizer names of their own, for example with "
            "named_parameters=encoder.named_parameters(prefix='encoder'); or let one of them step first."
        )
