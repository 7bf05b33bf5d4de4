"""Small gradients between their hook and their submission.

They are sent together, each under its own name: one by one, each would find cold caches, and wake the coordinator
thread, which takes a core away from the backward pass. None is held longer than the backward pass that computed it:
another rank may wait for it.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, cast

from horocache.torch.compile.dynamo import outside
from horocache.torch.optimizer.bucket import Bucket, Slot

import torch
from horocache import _core

_ENOUGH_BYTES = 1 << 20
_NO_PASS = -1
pass_under_way: Callable[[], int] = cast(Any, torch._C)._current_graph_task_id
# How many tensors are on a storage, by its address; torch has it since 2.1.
count_users: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


@functools.cache
def references_to_own() -> int:
    """References to a gradient that only its parameter has, while it is looked at; torch's own differ by version."""
    param = torch.nn.Parameter(torch.empty(1))
    param.grad = torch.empty(1)
    return _core.grad_references(param)


class HeldGradients(_core.GradientQueue):
    """What is complete and not submitted yet, and the backward pass at whose end it will be.

    Role: owned by the reducer; used by the thread that runs backward and step. Slots, which live as long as their
    parameters, have it, too: it keeps the owner's methods weakly.
    """

    def __init__(
        self,
        plain: bool,
        send: Callable[[], None],
        complete: Callable[[Bucket], None],
        adopt: Callable[[Slot], None],
    ) -> None:
        """Nothing is held.

        Args:
            plain: gradients that travel alone do so as they are, so they are held.
            send: the owner's method that takes all that is held.
            complete: the owner's method for a bucket that is not held.
            adopt: the owner's method that puts a gradient into shared memory.
        """
        self.plain = plain
        self.slots = []
        self.unplaced = []
        self.limit = _ENOUGH_BYTES
        self.pass_ = _NO_PASS
        self.note = None
        self.send = _weakly(send)
        self.complete = _weakly(complete)
        self.adopt = _weakly(adopt)
        self.begin_pass = self._begin_pass()
        self.pass_under_way = pass_under_way
        self.users = count_users
        self.references = references_to_own()

    def __bool__(self) -> bool:
        return bool(self.slots)

    def take(self) -> list[Slot]:
        """All that were held."""
        slots: list[Slot] = self.slots
        self.slots, self.bytes = [], 0
        return slots

    def forget(self) -> None:
        """Hold nothing; also after a backward pass that failed, whose end nobody tells."""
        self.take()
        self.pass_ = _NO_PASS

    def _begin_pass(self) -> Callable[[], None]:
        queue = weakref.ref(self)

        @outside
        def begin() -> None:
            held = queue()
            if held is not None:
                held._send_at_end()

        return begin

    def _send_at_end(self) -> None:
        if _in_compiled_pass():
            self.send()
            return
        try:
            cast(Any, torch.autograd.Variable)._execution_engine.queue_callback(self._pass_ended)
            self.pass_ = pass_under_way()
        except RuntimeError:  # the hook was not called by a backward pass
            self.send()

    @outside
    def _pass_ended(self) -> None:
        self.pass_ = _NO_PASS
        if self.slots:
            self.send()


def _weakly(method: Callable[..., Any]) -> Callable[..., None]:
    """The method of an object that is not kept alive; nothing once that is gone."""
    weak = weakref.WeakMethod(method)

    @outside
    def call(*arguments: Any) -> None:
        alive = weak()
        if alive is not None:
            alive(*arguments)

    return call


def _in_compiled_pass() -> bool:
    """Whether a backward pass that torch compiled is under way, which takes callbacks and never calls them."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiled, "in_compiled_autograd_region", False))
