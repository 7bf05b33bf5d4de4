"""Finds the parameters that no rank gave a gradient in a step; their ``grad`` stays None, as in one process.

Note [Unused parameters]
A rank without a gradient sends zeros for it, because another rank may have one. The sum alone does not tell whether any
rank had one: gradients may be zeros, too. So one more operation travels with each step: a byte for each parameter,
which is 1 where the rank has no gradient, reduced by Min. With three ranks whose bytes are (0, 1, 1), (0, 0, 1) and
(0, 1, 1) the result is (0, 0, 1): the third parameter is unused. The operation has the same name and size in every
step, so its response stays cached, and up to 64 parameters ride on the round.

A rank submits its bytes with its last gradient, and not only in ``synchronize``: a rank whose backward pass has given
all gradients need not reach its step for another rank's step to end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from horocache import _state
from horocache.handles import OP_ALLREDUCE
from horocache.ops import Min, full_name

from .buckets import Slot


class UnusedParameters:
    """Which parameters lack a gradient on this rank, and which of them on every rank.

    Parameters that the reducer takes while a step ends have an operation of their own in that step: another rank may
    have submitted the bytes of the others already.

    Role: owned by a reducer; used by the thread that runs backward and step.
    """

    def __init__(self, process_set: int) -> None:
        self._process_set = process_set
        self._expected = 0  # parameters, when the step began
        self._begun = 0  # parameters whose bytes are submitted
        self._lacking: list[Slot] = []  # on this rank, in this step
        self._searches: list[tuple[int, torch.Tensor, int]] = []  # number of the first parameter, bytes, handle
        self._nowhere: set[int] = set()  # numbers of parameters that no rank gave a gradient

    def expect(self, count: int) -> None:
        """Begin the next step with so many parameters."""
        self._expected = count

    def add(self, slot: Slot) -> None:
        """Note that this rank has no gradient for the parameter."""
        self._lacking.append(slot)

    def start(self, slots: Sequence[Slot]) -> None:
        """Submit the bytes of the parameters that the step began with, once.

        Args:
            slots: those of all parameters.

        Raises:
            HorocacheError: they cannot be submitted.
        """
        self._start(slots, self._expected)

    def start_all(self, slots: Sequence[Slot]) -> None:
        """As :meth:`start`; then submit the bytes of the parameters that have come since."""
        self._start(slots, self._expected)
        self._start(slots, len(slots))

    def _start(self, slots: Sequence[Slot], end: int) -> None:
        first = self._begun
        if first >= end:
            return
        lacks = torch.zeros(end - first, dtype=torch.uint8)
        for slot in self._lacking:
            if first <= slot.index < end:
                lacks[slot.index - first] = 1
        name = full_name("allreduce", f"unused_parameters.{slots[first].name}")
        how = (Min, 1.0, 1.0, -1, None, self._process_set, "", "", False)
        handle = _state.current().runtime.submit(OP_ALLREDUCE, [lacks], [lacks], name, None, *how)
        self._searches.append((first, lacks, handle))
        self._begun = end

    def finish(self) -> list[Slot]:
        """Wait for the bytes, and end the step; returns the parameters that no rank gave a gradient.

        Raises:
            HorocacheError: bytes were not reduced. After an interrupt they can be waited for again.
        """
        failure: Exception | None = None
        while self._searches:
            first, lacks, handle = self._searches[0]
            try:
                _state.current().runtime.wait(handle)
                self._nowhere.update(first + number for number in lacks.nonzero().flatten().tolist())
            except Exception as error:
                failure = failure or error
            del self._searches[0]
        unused = [slot for slot in self._lacking if slot.index in self._nowhere]
        self._lacking, self._nowhere, self._begun = [], set(), 0
        if failure is not None:
            raise failure
        return unused
