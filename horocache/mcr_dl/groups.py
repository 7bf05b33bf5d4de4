"""Groups of ranks: new_group and their end."""

from __future__ import annotations

from collections.abc import Iterable

from horocache.collectives.dynamic_process_sets import add_process_set, remove_process_set
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError
from horocache.mcr_dl import lifecycle
from horocache.mcr_dl.session import Group, current, state

# The process sets that new_group has added, by their ranks. They outlive finalize() if horocache does.
_sets: dict[tuple[int, ...], ProcessSet] = {}


def new_group(ranks: Iterable[int] | None = None) -> Group:
    """Make a group of ranks. All ranks of the job call it with the same ranks, in the same order of calls.

    Groups may overlap. Operations on a group involve only its members; on other ranks they raise InvalidArgumentError.
    Two groups of the same ranks share a process set of horocache, and count their calls separately.

    Args:
        ranks: global ranks, in any order; the r-th rank of the group is the r-th lowest of them. None: all ranks.

    Returns:
        The group, for the argument ``group`` of all operations. A :class:`horocache.ProcessSet` may be given there,
        too.

    Raises:
        NotInitializedError: mcr_dl does not run. InvalidArgumentError: a rank is repeated or does not exist, or
            horocache has a process set of these ranks that mcr_dl has not made: give that as the group. MismatchError:
            the ranks name different groups. StartupError: a member could not join the group.
    """
    session = current()
    process_set = _process_set(ranks)
    session.made_groups += 1
    return session.add_group(Group(process_set, f"g{session.made_groups}")).group


def _process_set(ranks: Iterable[int] | None) -> ProcessSet:
    if ranks is None:
        return global_process_set
    wanted = ProcessSet(ranks)
    if wanted.ranks == global_process_set.ranks:
        return global_process_set
    known = _sets.get(tuple(wanted.ranks))
    if known is None or known.process_set_id is None:  # the session that had it has ended
        known = _sets[tuple(wanted.ranks)] = add_process_set(wanted)
    return known


def destroy_process_group(group: Group | None = None) -> None:
    """End a group, on all ranks of the job in the same order of calls; or, with None, end mcr_dl as ``finalize`` does.

    Args:
        group: from :func:`new_group`.

    Raises:
        InvalidArgumentError: ``group`` is not a group. StallError: a member did not leave the group in time.
    """
    if group is None:
        lifecycle.finalize()
        return
    if not isinstance(group, Group):
        raise InvalidArgumentError(f"group must come from new_group(), not {group!r}.")
    session = current()
    if group not in session.groups or group is session.world.group:
        return
    del session.groups[group]
    process_set = group.process_set
    is_own = _sets.get(tuple(process_set.ranks)) is process_set
    if is_own and all(each.process_set is not process_set for each in session.groups):
        del _sets[tuple(process_set.ranks)]
        state.mailboxes.pop(group.number, None)
        remove_process_set(process_set)
