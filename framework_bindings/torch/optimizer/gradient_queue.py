"""The gradient queue: complete gradients without a group, between their hook and their submission.

Queued gradients are submitted together, each under its own name. If each were submitted by itself, it would find cold
caches and wake the progress thread, which takes a core away from the backward pass. The queue is submitted no later
than at the end of the backward pass that computed its gradients, because another rank may wait for them.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from horocache import _core

from ..compile.dynamo import outside
from .bucket import Bucket, Slot

_ENOUGH_BYTES = 1 << 20  # the queue is submitted when it has this many bytes
_NO_PASS = -1
# Returns the number of the backward pass that calls it; -1 outside of a backward pass.
pass_under_way: Callable[[], int] = cast(Any, torch._C)._current_graph_task_id


def users_counter(tensor_type: type) -> Callable[[int], int] | None:
    """Return the function that returns the number of tensors on the storage at an address.

    None if bucket views are not possible, because torch does not count, or does not describe tensors to the core.
    """
    described = hasattr(tensor_type, "__dlpack_c_exchange_api__")
    return getattr(torch._C, "_storage_Use_Count", None) if described else None


count_users = users_counter(torch.Tensor)


@functools.cache
def references_to_own() -> int:
    """Return the reference count that the core reads for a gradient that only its parameter has.

    The count includes the core's own reference and depends on torch's version.
    """
    param = torch.nn.Parameter(torch.empty(1))
    param.grad = torch.empty(1)
    return _core.grad_references(param)


class GradientQueue(_core.GradientQueue):
    """Complete gradients that are not submitted yet, and the backward pass at whose end they are submitted.

    Role: owned by the reducer; used by the thread that runs backward and step. Slots reference the queue and live as
    long as their parameters, so the queue references its owner's methods weakly.
    """

    def __init__(
        self,
        plain: bool,
        submit: Callable[[], None],
        complete: Callable[[Bucket], None],
        allocate_view: Callable[[Slot], None],
    ) -> None:
        """Make an empty queue.

        Args:
            plain: True if gradients are sent uncompressed; only then those without a group are queued.
            submit: the owner's method that submits the queue.
            complete: the owner's method for a complete bucket whose gradients are not queued.
            allocate_view: the owner's method that gives a slot a new bucket view.
        """
        self.plain = plain
        self.slots = []
        self.unmoved = []
        self.limit = _ENOUGH_BYTES
        self.pass_ = _NO_PASS
        self.note = None
        self.submit = _weakly(submit)
        self.complete = _weakly(complete)
        self.allocate_view = _weakly(allocate_view)
        self.begin_pass = self._begin_pass()
        self.pass_under_way = pass_under_way
        self.users = count_users
        self.references = references_to_own()

    def __bool__(self) -> bool:
        return bool(self.slots)

    def take(self) -> list[Slot]:
        """Remove and return all queued gradients."""
        slots: list[Slot] = self.slots
        self.slots, self.bytes = [], 0
        return slots

    def forget(self) -> None:
        """Clear the queue, including the state of a failed backward pass, for whose end torch calls no callback."""
        self.take()
        self.pass_ = _NO_PASS

    def _begin_pass(self) -> Callable[[], None]:
        queue = weakref.ref(self)

        @outside
        def begin() -> None:
            alive = queue()
            if alive is not None:
                alive._submit_at_end()

        return begin

    def _submit_at_end(self) -> None:
        if in_compiled_pass():
            self.submit()
            return
        try:
            cast(Any, torch.autograd.Variable)._execution_engine.queue_callback(self._pass_ended)
            self.pass_ = pass_under_way()
        except RuntimeError:  # the hook was not called by a backward pass
            self.submit()

    @outside
    def _pass_ended(self) -> None:
        self.pass_ = _NO_PASS
        if self.slots:
            self.submit()


def _weakly(method: Callable[..., Any]) -> Callable[..., None]:
    """Wrap a method without keeping its object alive; the wrapper does nothing once the object is gone."""
    weak = weakref.WeakMethod(method)

    @outside
    def call(*arguments: Any) -> None:
        alive = weak()
        if alive is not None:
            alive(*arguments)

    return call


def in_compiled_pass() -> bool:
    """Return True during a backward pass that torch compiled, which accepts callbacks and never calls them."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiled, "in_compiled_autograd_region", False))
