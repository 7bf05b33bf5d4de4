"""Finds the parameters without a gradient on any rank in a step; their ``grad`` stays None, as in one process.

Note [Unused parameters]
A rank without a gradient sends zeros for it, because another rank may have one. The sum alone does not tell whether any
rank had a gradient, because gradients may be zeros, too. Each step therefore has one more operation: a byte for each
parameter, reduced by Min. The byte is 255 if the rank has no gradient, otherwise the number of the gradient's sparse
dimensions, which is 0 for a dense gradient. With three ranks whose bytes are (0, 255, 255), (0, 0, 255) and
(0, 255, 255), the result is (0, 0, 255): the third parameter is unused. The operation has the same name and size in
every step, so its response stays cached, and up to 64 parameters are reduced inline.

A rank submits its bytes with its last gradient instead of in ``synchronize``. Another rank's step can then end although
this rank, whose backward pass has computed all gradients, has not reached its own step.

Note [Kinds of missing gradients]
Zeros for a sparse gradient are sent as a sparse tensor. A rank that has never had a gradient of a parameter does not
know its kind, so it waits for the reduced bytes before it sends zeros for the first time. This wait ends: every rank
submits its bytes before it waits for them, and a rank with all gradients does not wait. With the bytes (255) and (1)
the result is 1, and both ranks send sparse tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from horocache.base.operation_codes import OP_ALLREDUCE
from horocache.base.request import Request
from horocache.collectives.api import Min, full_name
from horocache.core import context

from .bucket import Slot

_LACKS = 255  # the byte of a parameter without a gradient


class UnusedParameters:
    """Finds which parameters lack a gradient on this rank, and which of them lack it on every rank.

    Parameters that the reducer adds while a step ends have a separate operation in that step, because another rank may
    have submitted the bytes of the other parameters already.

    Role: owned by a reducer; used by the thread that runs backward and step.
    """

    def __init__(self, process_set: int) -> None:
        self._process_set = process_set
        self._expected = 0  # number of parameters when the step began
        self._begun = 0  # number of parameters whose bytes are submitted
        self._lacking: dict[int, Slot] = {}  # without a gradient on this rank in this step, by number
        self._sparse: list[Slot] = []  # parameters that have had a sparse gradient on this rank
        self._searches: list[tuple[int, torch.Tensor, int]] = []  # number of the first parameter, bytes, handle
        self._found: dict[int, int] = {}  # reduced byte of each parameter in _lacking, by number

    def expect(self, slots: Sequence[Slot]) -> None:
        """Begin the next step with these parameters."""
        self._expected = len(slots)
        present = set(slots)
        self._sparse = [slot for slot in self._sparse if slot in present]

    def add(self, slot: Slot) -> None:
        """Record that this rank has no gradient for the parameter."""
        self._lacking[slot.index] = slot

    def add_sparse(self, slot: Slot) -> None:
        """Record that the parameter's gradient is sparse."""
        if slot not in self._sparse:
            self._sparse.append(slot)

    def start(self, slots: Sequence[Slot]) -> None:
        """Submit the bytes of the parameters that the step began with; does nothing the second time.

        Args:
            slots: the slots of all parameters.

        Raises:
            HorocacheError: the operation cannot be submitted.
        """
        self._start(slots, self._expected)

    def start_all(self, slots: Sequence[Slot]) -> None:
        """Submit the bytes of the parameters that the step began with, and separately those of later parameters."""
        self._start(slots, self._expected)
        self._start(slots, len(slots))

    def _start(self, slots: Sequence[Slot], end: int) -> None:
        first = self._begun
        if first >= end:
            return
        kinds = torch.zeros(end - first, dtype=torch.uint8)
        for slot in self._sparse:
            if first <= slot.index < end:
                kinds[slot.index - first] = slot.sparse_dims or 0
        for index in self._lacking:
            if first <= index < end:
                kinds[index - first] = _LACKS
        name = full_name("allreduce", f"unused_parameters.{slots[first].name}")
        request = Request(OP_ALLREDUCE, [kinds], [kinds], name, reduce_op=Min, process_set=self._process_set)
        handle = context.current().runtime.submit(request)
        self._searches.append((first, kinds, handle))
        self._begun = end

    def learn_kinds(self) -> None:
        """Wait for the bytes, and record for each parameter without a gradient the kind that other ranks have.

        Raises:
            HorocacheError: the reduction failed. After an interrupt it can be waited for again.
        """
        failure: Exception | None = None
        while self._searches:
            first, kinds, handle = self._searches[0]
            try:
                context.current().runtime.wait(handle)
                mine = [index for index in self._lacking if first <= index < first + len(kinds)]
                self._found.update((index, int(kinds[index - first])) for index in mine)
            except Exception as error:
                failure = failure or error
            del self._searches[0]
        for index, kind in self._found.items():
            slot = self._lacking[index]
            if kind != _LACKS and slot.sparse_dims is None:
                slot.sparse_dims = kind
                if kind:
                    self.add_sparse(slot)
        if failure is not None:
            raise failure

    def finish(self) -> list[Slot]:
        """Wait for the bytes and end the step; return the parameters without a gradient on any rank.

        Raises:
            HorocacheError: the reduction failed. After an interrupt it can be waited for again.
        """
        try:
            self.learn_kinds()
        except Exception:
            self._end_step()
            raise
        unused = [slot for index, slot in self._lacking.items() if self._found.get(index) == _LACKS]
        self._end_step()
        return unused

    def _end_step(self) -> None:
        self._lacking, self._found, self._begun = {}, {}, 0
