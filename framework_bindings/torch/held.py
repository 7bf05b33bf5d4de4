"""Small gradients between their hook and their submission.

They are sent together, each under its own name: one by one, each would find cold caches, and wake the coordinator
thread, which takes a core away from the backward pass. None is held longer than the backward pass that computed it:
another rank may wait for it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch

from .buckets import Slot
from .tracing import outside

_ENOUGH_BYTES = 1 << 18
_NO_PASS = -1
pass_under_way: Callable[[], int] = cast(Any, torch._C)._current_graph_task_id


class HeldGradients:
    """What is complete and not submitted yet, and the backward pass at whose end it will be.

    Role: owned by the reducer; used by the thread that runs backward and step.
    """

    def __init__(self, send: Callable[[], None]) -> None:
        """``send``: the owner's method that takes everything, kept weakly."""
        self._owners_send = weakref.WeakMethod(send)
        self._slots: list[Slot] = []
        self._bytes = 0
        self._pass = _NO_PASS

    def __bool__(self) -> bool:
        return bool(self._slots)

    def add(self, slot: Slot) -> None:
        """Hold a gradient, or send it with all others that are held."""
        grad = slot.grad = slot.param.grad  # departs() without a call
        if grad is not None:  # no other hook has taken it away
            slot.version = grad._version
        self._slots.append(slot)
        self._bytes += slot.bytes
        if self._bytes >= _ENOUGH_BYTES:
            self._send()
        elif self._pass != pass_under_way():
            self._send_at_end()

    def take(self) -> list[Slot]:
        """All that were held."""
        slots, self._slots, self._bytes = self._slots, [], 0
        return slots

    def forget(self) -> None:
        """Hold nothing; also after a backward pass that failed, whose end nobody tells."""
        self.take()
        self._pass = _NO_PASS

    def _send_at_end(self) -> None:
        if _in_compiled_pass():
            self._send()
            return
        try:
            cast(Any, torch.autograd.Variable)._execution_engine.queue_callback(self._pass_ended)
            self._pass = pass_under_way()
        except RuntimeError:  # the hook was not called by a backward pass
            self._send()

    @outside
    def _pass_ended(self) -> None:
        self._pass = _NO_PASS
        if self._slots:
            self._send()

    def _send(self) -> None:
        send = self._owners_send()
        if send is not None:
            send()


def _in_compiled_pass() -> bool:
    """Whether a backward pass that torch compiled is under way, which takes callbacks and never calls them."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiled, "in_compiled_autograd_region", False))
