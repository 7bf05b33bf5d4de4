"""Orders the streams of a device with the operations of a group."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from types import TracebackType
from typing import Any

import torch

NO_ORDER = nullcontext()  # for an operation on the CPU


class StreamOrder:
    """Makes every stream that uses an operation's result wait for it. As a context: what finishes the operation.

    The operation is finished on the stream that was current when it was started. So its result comes behind earlier
    work on the result's memory, and before the allocator gives memory of that stream to others.

    Role: owned by the operation's work object, or by the orphaned operation.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._stream = self._module.current_stream(device)
        self._context = ExitStack()
        self._done: Any = None  # an event: the result is there

    def __enter__(self) -> None:
        # A helper thread's current device is 0. To make it current again when the stream's context ends would make a
        # context of CUDA there, which takes memory.
        self._context.enter_context(self._module.device(self._device))
        self._context.enter_context(self._module.stream(self._stream))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._context:
            if kind is None:
                self._done = self._stream.record_event()

    def wait(self) -> None:
        """Let the current stream wait for the result, if the operation is finished."""
        if self._done is not None:
            self._module.current_stream(self._device).wait_event(self._done)


def order_for(*lists: Sequence[torch.Tensor]) -> StreamOrder | None:
    """Return the order for an operation on these tensors; None for tensors on the CPU. The first tensor decides."""
    for tensors in lists:
        if tensors:
            return None if tensors[0].is_cpu else StreamOrder(tensors[0].device)
    return None
