"""The input of a sharding: devices with their links, and the work of a training step."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from horocache.errors import InvalidArgumentError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def _array(name: str, values: object, kind: type) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
        if array.dtype.kind not in ("iu" if kind is np.int64 else "iuf"):
            raise TypeError(f"its element type is {array.dtype}")
        return array.astype(kind)
    except (TypeError, ValueError, OverflowError) as error:
        wanted = "whole numbers" if kind is np.int64 else "numbers"
        raise InvalidArgumentError(f"{name} must be an array of {wanted}: {error}.") from error


def _refuse(name: str, array: npt.NDArray[Any], bad: npt.NDArray[np.bool_], wanted: str) -> None:
    if bad.any():
        place = [int(each) for each in np.argwhere(bad)[0]]
        raise InvalidArgumentError(f"{name}{place} is {array[tuple(place)]}; it must be {wanted}.")


def check_shape(name: str, array: npt.NDArray[Any], shape: tuple[int, ...], meaning: str) -> None:
    """Raise InvalidArgumentError if an array has another shape than ``shape``, which ``meaning`` explains."""
    if array.shape != shape:
        raise InvalidArgumentError(f"{name} has shape {array.shape}; it must be {shape}: {meaning}.")


def quantities(name: str, values: object, *, positive: bool = False) -> Floats:
    """Return finite numbers of at least 0, or above 0, as a new read-only array of float64.

    Raises:
        InvalidArgumentError: an element is something else; the message names its place and value.
    """
    array: Floats = _array(name, values, np.float64)
    too_small = array <= 0 if positive else array < 0
    _refuse(name, array, ~np.isfinite(array) | too_small, f"finite and {'above' if positive else 'at least'} 0")
    array.flags.writeable = False
    return array


def whole_numbers(name: str, values: object) -> Integers:
    """Return whole numbers of at least 0 as a new read-only array of int64.

    Raises:
        InvalidArgumentError: an element is something else; the message names its place and value.
    """
    array: Integers = _array(name, values, np.int64)
    _refuse(name, array, array < 0, "at least 0")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Topology:
    """Devices, numbered from 0 to n-1, and the links between them.

    ``Topology`` copies its arguments; the attributes are read-only NumPy arrays.

    Attributes:
        alpha_s: float64, shape (n, n). ``alpha_s[i, j]`` is the latency of a message from device i to device j, in
            seconds. The diagonal is not used, and 0 in the attribute.
        beta_s_per_byte: float64, shape (n, n). The time that each byte of such a message adds, in seconds.
        rates: float64, shape (n,). Experts that each device computes in a second, forward and backward, with the tokens
            that an expert gets in one call of the layer.
        memory: int64, shape (n,). Experts that each device can hold.

    Raises:
        InvalidArgumentError: shapes do not fit together, there is no device, a time is NaN, infinite or negative, a
            rate is not above 0, or a memory is negative or not a whole number. The message names place and value.
    """

    alpha_s: npt.ArrayLike
    beta_s_per_byte: npt.ArrayLike
    rates: npt.ArrayLike
    memory: npt.ArrayLike

    def __post_init__(self) -> None:
        rates = quantities("rates", self.rates, positive=True)
        if rates.ndim != 1 or not rates.size:
            raise InvalidArgumentError(f"rates has shape {rates.shape}; it must be (n,), with n of at least 1 device.")
        n = rates.size
        object.__setattr__(self, "rates", rates)
        memory = whole_numbers("memory", self.memory)
        check_shape("memory", memory, (n,), "one number of experts for each of the devices of rates")
        object.__setattr__(self, "memory", memory)
        for name in ("alpha_s", "beta_s_per_byte"):
            matrix = _array(name, getattr(self, name), np.float64)
            check_shape(name, matrix, (n, n), "a row and a column for each of the devices of rates")
            np.fill_diagonal(matrix, 0.0)
            object.__setattr__(self, name, quantities(name, matrix))

    @property
    def devices(self) -> int:
        """The number n of devices."""
        return len(np.asarray(self.rates))


@dataclass(frozen=True)
class Workload:
    """The work of the mixture-of-experts layers in one training step.

    Attributes:
        experts: experts of a layer; every group holds all of them.
        exchanged_bytes: bytes of tokens that a device sends in one transfer, spread evenly over its group.
        layers: calls of such layers in a step (kappa of equation 1).
        gradient_bytes: bytes of the gradients of all experts of these layers, which groups add up in each step.
        transfers: transfers of a layer call: dispatch and combine, forward and backward.

    Raises:
        InvalidArgumentError: a count is not a whole number of at least 1, or a number of bytes is NaN, infinite or
            negative.
    """

    experts: int
    exchanged_bytes: float
    layers: int
    gradient_bytes: float
    transfers: int = 4

    def __post_init__(self) -> None:
        for name in ("experts", "layers", "transfers"):
            value = getattr(self, name)
            try:
                count = operator.index(value)
            except TypeError:
                count = 0
            if isinstance(value, bool) or count < 1:
                raise InvalidArgumentError(f"{name} is {value!r}; it must be a whole number of at least 1.")
            object.__setattr__(self, name, count)
        for name in ("exchanged_bytes", "gradient_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
                raise InvalidArgumentError(f"{name} is {value!r}; it must be a number of bytes.")
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgumentError(f"{name} is {value}; it must be finite and at least 0.")
            object.__setattr__(self, name, float(value))


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, such as ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
