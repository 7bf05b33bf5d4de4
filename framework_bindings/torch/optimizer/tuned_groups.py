"""The number of groups of an optimizer, which autotune changes on all ranks at the same step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from horocache.collectives.arguments import set_id
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.data_parallel.bucketing import NumGroups
from horocache.errors import InternalError

if TYPE_CHECKING:
    from horocache.core.session import Session

_NOTE = re.compile(r"num_groups=(\d+) from_step=(\d+)")


class TunedGroups:
    """Counts the steps of an optimizer, and tells when its number of groups changes.

    See Note [The number of groups changes at one step] in ``horocache/autotune/tuner.py``.

    Role: owned by the reducer of a session's first optimizer with ``num_groups="auto"``; used by the thread that steps.
    """

    def __init__(self, session: Session, default: int) -> None:
        """Begin with step 0; ``default`` is the present number of groups."""
        self._session = session
        self._steps = 0
        self._seen = session.runtime.settings_changes
        self._next: tuple[int, int] | None = None  # the next number of groups, and at the end of which step it begins
        self._made: tuple[int, int] | None = None  # the last change
        if session.tuner is not None:
            session.tuner.offer_groups(default)

    def end_step(self) -> int | None:
        """Count a step; return the number of groups of the next step if it changes.

        Raises:
            InternalError: the note with the change came too late.
        """
        self._steps += 1
        if context.running() is not self._session:
            return None
        if self._session.tuner is not None:
            self._session.tuner.take_change(self._steps)
        runtime = self._session.runtime
        changes = runtime.settings_changes
        if changes != self._seen:
            self._seen = changes
            found = _NOTE.fullmatch(runtime.settings()[1])
            self._next = (int(found[1]), int(found[2])) if found else None
        if self._next is None or self._steps < self._next[1]:
            return None
        change, self._next = self._next, None
        if change == self._made:  # a change without a note leaves the last note
            return None
        self._made = number, step = change
        if self._steps > step:
            raise InternalError(
                f"rank {context.rank()}: num_groups={number} of step {step} came in step {self._steps}."
            )
        return number


def tune_groups(wanted: NumGroups, process_set: ProcessSet, default: int) -> TunedGroups | None:
    """Return the state of an optimizer whose number of groups autotune changes; None for other optimizers.

    Args:
        wanted: the optimizer's ``num_groups``.
        process_set: the ranks that reduce its gradients.
        default: the present number of groups.
    """
    session = context.current()
    knobs = session.runtime.knobs()
    tuned = knobs["autotune"][0] in ("1", "true") or knobs["autotune_load"][0]
    if not tuned or wanted != "auto" or set_id(process_set) != 0 or session.tunes_groups is not None:
        return None
    made = session.tunes_groups = TunedGroups(session, default)
    return made
