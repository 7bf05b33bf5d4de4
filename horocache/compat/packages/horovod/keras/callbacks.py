"""``horovod.keras.callbacks``: callbacks for ``fit``."""

from typing import Any

import horocache.keras.callbacks as _callbacks
from horocache.keras.callbacks import *  # noqa: F403


class BestModelCheckpoint(_callbacks.BestModelCheckpoint):  # type: ignore[misc]  # Keras has no types
    """:class:`horocache.keras.callbacks.BestModelCheckpoint`, with Horovod's order of arguments.

    Args:
        monitor: the metric that decides which model is best.
        verbose: 1 prints a line when a model is saved.
        mode: ``"min"`` or ``"max"`` if the best value of the metric is its lowest or highest one; ``"auto"`` decides by
            the metric's name.
        save_freq: ``"epoch"``, or the number of batches after which the model is saved if it is the best.
        more: ``filepath`` and ``save_weights_only``.
    """

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch", **more: Any
    ) -> None:
        super().__init__(monitor, verbose, mode=mode, save_freq=save_freq, **more)
