"""Activation checkpointing that repeats the deliveries of the first run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from horocache.errors import InvalidArgumentError
from torch.utils.checkpoint import checkpoint as torch_checkpoint

__all__ = ["checkpoint"]


@dataclass
class Delivery:
    """One call of a layer: which batches were delivered, by rank of its process set."""

    layer: str
    rows: list[int]
    delivered: list[bool]


@dataclass
class _Recording:
    """The deliveries within one checkpointed function. The first run records them, later runs repeat them."""

    deliveries: list[Delivery] = field(default_factory=list)
    recorded: bool = False
    position: int = 0

    def next(self, layer: str, rows: Sequence[int]) -> Delivery:
        if self.position == len(self.deliveries):
            raise InvalidArgumentError(
                f"layer {layer!r} ran in the repetition of a checkpointed function, but not in its first run; the "
                "function must do the same each time"
            )
        found = self.deliveries[self.position]
        if found.layer != layer or found.rows != list(rows):
            raise InvalidArgumentError(
                f"call {self.position} of a layer in a checkpointed function was {found.layer!r} with batches of "
                f"{found.rows} rows in the first run, and is {layer!r} with {list(rows)} rows in the repetition; the "
                "function must do the same each time"
            )
        return found


class _Active(threading.local):
    """The recordings of the functions that run in this thread, from the outermost to the innermost."""

    def __init__(self) -> None:
        self.recordings: list[_Recording] = []


_active = _Active()


def delivery_to_repeat(layer: str, rows: Sequence[int]) -> list[bool] | None:
    """Return which batches this call of a layer must deliver; None in a first run, and outside of checkpointing."""
    for recording in reversed(_active.recordings):
        if recording.recorded:
            return recording.next(layer, rows).delivered
    return None


def note_delivery(layer: str, rows: Sequence[int], delivered: Sequence[bool]) -> None:
    """Record the end of a call of a layer."""
    for recording in _active.recordings:
        if not recording.recorded:
            recording.deliveries.append(Delivery(layer, list(rows), list(delivered)))
        recording.position += 1


def checkpoint(function: Callable[..., Any], *args: Any, preserve_rng_state: bool = True) -> Any:
    """Run a function without storing its activations; the backward pass runs it again.

    Like ``torch.utils.checkpoint.checkpoint`` with ``use_reentrant=True``, which it uses. Layers of experts in the
    function deliver exactly the batches in the second run that they delivered in the first one, so that a rank that was
    late the first time contributes nothing the second time either, and the gradient is that of the output. Where no
    batch is lost, torch's function gives the same results.

    All ranks of the layers' process sets must run the function, and its backward pass, in the same order.

    Args:
        function: computes tensors from ``args``; the same each time it is called.
        args: its arguments. Gradients flow to tensors among them, not to tensors inside of other objects.
        preserve_rng_state: False: the second run may draw other random numbers.

    Returns:
        The function's result.

    Raises:
        InvalidArgumentError: in the backward pass, if the second run calls other layers or routes tokens differently.
    """
    recording = _Recording()

    def run(_: torch.Tensor, *inner: Any) -> Any:
        with _running(recording):
            return function(*inner)

    # The reentrant form has gradients only if an argument has one; the function may have parameters alone.
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
    return torch_checkpoint(run, anchor, *args, use_reentrant=True, preserve_rng_state=preserve_rng_state)


@contextmanager
def _running(recording: _Recording) -> Iterator[None]:
    recording.position = 0
    _active.recordings.append(recording)
    try:
        yield
    finally:
        _active.recordings.pop()
    recording.recorded = True
