"""Updaters: an optimizer, or a function of the program, that applies the sum of a key's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horocache.errors import InvalidArgumentError
from horocache.kvstore.arrays import is_torch

Updater = Callable[[Any, Any, Any], object]  # (key, sum, stored)


def updater_of(optimizer: Any) -> Updater:
    """Return the updater that applies an optimizer.

    Args:
        optimizer: a function that makes a torch optimizer for a list of parameters, such as
            ``lambda parameters: torch.optim.SGD(parameters, lr=0.1)``; or an object with MXNet's
            ``create_state(key, weight)`` and ``update(key, weight, gradient, state)``.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if callable(getattr(optimizer, "update", None)) and callable(getattr(optimizer, "create_state", None)):
        return _WithStates(optimizer)
    if callable(optimizer):
        return _OfTorch(optimizer)
    raise InvalidArgumentError(
        "set_optimizer() takes a function that makes a torch optimizer for a list of parameters, or an object with "
        f"create_state() and update(), not {type(optimizer).__name__}."
    )


class _WithStates:
    """An optimizer that keeps a state for each key outside of itself."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._states: dict[Any, Any] = {}

    def __call__(self, key: Any, gradient: Any, weight: Any) -> None:
        if key not in self._states:
            self._states[key] = self._optimizer.create_state(key, weight)
        self._optimizer.update(key, weight, gradient, self._states[key])


class _OfTorch:
    """A torch optimizer for each key."""

    def __init__(self, make: Callable[[list[Any]], Any]) -> None:
        self._make = make
        self._optimizers: dict[Any, Any] = {}

    def __call__(self, key: Any, gradient: Any, weight: Any) -> None:
        weight, gradient = _torch(weight), _torch(gradient)
        if key not in self._optimizers:
            self._optimizers[key] = weight, self._make([weight])
        kept, optimizer = self._optimizers[key]
        kept.grad = gradient
        optimizer.step()
        kept.grad = None


def _torch(value: Any) -> Any:
    """The tensor, or a torch tensor of a NumPy array's memory."""
    if is_torch(value):
        return value
    import torch  # noqa: PLC0415  (only programs with torch optimizers need it)

    return torch.from_numpy(value)
