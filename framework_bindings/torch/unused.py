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

import torch
from horocache import _state
from horocache.handles import OP_ALLREDUCE
from horocache.ops import Min, full_name

from .buckets import Slot


class UnusedParameters:
    """Which parameters lack a gradient on this rank, and which of them on every rank.

    Role: owned by a reducer; used by the thread that runs backward and step.
    """

    def __init__(self, process_set: int, first_name: str) -> None:
        """Know of no parameters yet.

        Args:
            process_set: the number of the set.
            first_name: of the first parameter, by which the operation is called.
        """
        self._process_set = process_set
        self._name = full_name("allreduce", f"unused_parameters.{first_name}")
        self._lacks = torch.zeros(0, dtype=torch.uint8)  # zeros between steps
        self._lacking: list[Slot] = []  # on this rank, in this step
        self._handle: int | None = None
        self.started = False  # in this step

    def expect(self, count: int) -> None:
        """Take so many parameters more, between two steps.

        Frozen parameters count, too: they may be taken in a step whose bytes have their size already.
        """
        self._lacks = torch.zeros(len(self._lacks) + count, dtype=torch.uint8)

    def add(self, slot: Slot) -> None:
        """Note that this rank has no gradient for the parameter."""
        self._lacking.append(slot)

    def start(self) -> None:
        """Submit the bytes, once in a step.

        Raises:
            HorocacheError: they cannot be submitted.
        """
        if self.started or len(self._lacks) == 0:
            return
        if self._lacking:
            self._lacks[[slot.index for slot in self._lacking]] = 1
        self.started = True
        tensors, how = [self._lacks], (Min, 1.0, 1.0, -1, None, self._process_set, "", "")
        self._handle = _state.current().runtime.submit(OP_ALLREDUCE, tensors, tensors, self._name, None, *how, False)

    def finish(self) -> list[Slot]:
        """Wait for the bytes, and end the step; returns the parameters that no rank gave a gradient.

        Raises:
            HorocacheError: the bytes were not reduced. After an interrupt they can be waited for again.
        """
        try:
            unused = []
            if self._handle is not None:
                _state.current().runtime.wait(self._handle)
                unused = [slot for slot in self._lacking if self._lacks[slot.index]]
        except Exception:
            self._end_step()
            raise
        self._end_step()
        return unused

    def _end_step(self) -> None:
        if self._lacking:
            self._lacks.zero_()
        self._lacking = []
        self._handle, self.started = None, False
