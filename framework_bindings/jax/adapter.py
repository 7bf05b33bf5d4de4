"""JAX arrays as horocache's operations see them: in host memory, through NumPy views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import jax
import jax.numpy as jnp
from horocache.collectives.api import Collectives
from horocache.collectives.compression import Array
from horocache.collectives.numpy import DTYPES, NumpyAdapter
from horocache.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from horocache._core import Result

_BFLOAT16 = np.dtype(jnp.bfloat16)


class JaxAdapter(NumpyAdapter):
    """:class:`~horocache.collectives.tensor_adapter.TensorAdapter` for ``jax.Array``; results are NumPy arrays.

    JAX arrays are immutable, so no operation works in place: every operation reads a view and writes to a new array.
    """

    plain_type: type | None = None

    def check(self, value: Any) -> Array:
        """Return a view of the array's memory."""
        if not isinstance(value, (jax.Array, np.ndarray)):
            raise InvalidArgumentError(
                f"expected a jax.Array, got {type(value).__module__}.{type(value).__qualname__}."
            )
        if isinstance(value, jax.Array):
            _check_on_host(value)
        array = np.asarray(value)
        if array.dtype not in DTYPES and array.dtype != _BFLOAT16:
            raise UnsupportedError(f"arrays of dtype {array.dtype} cannot be sent.")
        return array

    def as_is(self, value: Any, writable: bool) -> bool:
        """Return False: an operation always needs a view."""
        return False

    def floating(self, tensor: Array) -> bool:
        """Return True if the elements are real floating-point numbers."""
        return tensor.dtype == _BFLOAT16 or super().floating(tensor)

    def from_result(self, result: Result) -> Array:
        """Return an array on the core's memory, through DLPack, because the buffer protocol lacks bfloat16."""
        return np.asarray(jax.dlpack.from_dlpack(result))


def _check_on_host(value: jax.Array) -> None:
    platforms = {device.platform for device in value.devices()}
    if platforms != {"cpu"} or len(value.devices()) != 1:
        raise UnsupportedError(
            f"the array is on {', '.join(str(device) for device in value.devices())}; horocache.jax works on arrays of "
            "one CPU device. Use jax.device_get, or call it inside of jax.jit."
        )


collectives: Collectives[Any] = Collectives(JaxAdapter())
