"""The parts of ``horocache.keras`` that depend on Keras's backend: collectives, compression, the gradients of a step.

All other code uses Keras's own operations.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import keras
from horocache.data_parallel.options import GradientOptions
from horocache.errors import UnsupportedError

if int(keras.__version__.partition(".")[0]) < 3:
    raise UnsupportedError(
        f"horocache.keras needs Keras 3; this is Keras {keras.__version__}. Install keras>=3, or use the tapes of "
        "horocache.tensorflow."
    )


class Backend(Protocol):
    """The interface of a framework's binding for DistributedOptimizer and the callbacks.

    Role: stateless; each implementation is a module.
    """

    Compression: Any
    functions: Any  # a module with the binding's collectives

    def reduce_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], options: GradientOptions, prefix: str
    ) -> list[Any]:
        """Return the gradients of Keras variables, reduced over the ranks; None stays None."""

    def prepare(self, distributed: type) -> None:
        """Prepare Keras for models that are compiled with a distributed optimizer.

        Args:
            distributed: the base class of distributed optimizers.
        """


@functools.cache
def backend() -> Backend:
    """Return the binding for the backend that Keras uses in this process.

    Raises:
        UnsupportedError: horocache has no binding for this backend.
    """
    name = keras.config.backend()
    if name == "tensorflow":
        from . import on_tensorflow  # noqa: PLC0415  (a backend's framework is imported where it is used)

        return on_tensorflow
    if name == "torch":
        from . import on_torch  # noqa: PLC0415

        return on_torch
    if name == "jax":
        from . import on_jax  # noqa: PLC0415

        return on_jax
    raise UnsupportedError(
        f"horocache.keras works with Keras on TensorFlow, torch or JAX; this one is on {name}. Set KERAS_BACKEND."
    )
