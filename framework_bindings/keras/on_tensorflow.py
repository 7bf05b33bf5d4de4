"""Keras on TensorFlow."""

from __future__ import annotations

import warnings
from typing import Any

from horocache.tensorflow import functions
from horocache.tensorflow.compression import Compression
from horocache.tensorflow.reduction import reduce_gradients

__all__ = ["Compression", "functions", "prepare", "reduce_gradients"]


def prepare(distributed: type) -> None:
    """Make Keras treat models with a distributed optimizer as models that XLA cannot compile.

    Keras asks the layers of a model whether XLA can compile the model, but not its optimizer. If XLA compiles the model
    nevertheless, the operations raise an error.

    Args:
        distributed: the base class of distributed optimizers.
    """
    from keras.src.trainers import trainer  # noqa: PLC0415

    supports = trainer.model_supports_jit
    if getattr(supports, "asks_the_optimizer", False):
        return

    def model_supports_jit(model: Any) -> bool:
        if not isinstance(getattr(model, "optimizer", None), distributed):
            return bool(supports(model))
        if supports(model):
            warnings.warn(
                "XLA cannot compile horocache's operations: this model is trained without jit_compile.", stacklevel=3
            )
        return False

    model_supports_jit.asks_the_optimizer = True  # type: ignore[attr-defined]
    trainer.model_supports_jit = model_supports_jit
