"""``horovod.keras.callbacks``: callbacks for ``fit``."""

from typing import Any

import horocache.keras.callbacks as _callbacks
from horocache.keras.callbacks import *  # noqa: F403


class BestModelCheckpoint(_callbacks.BestModelCheckpoint):  # type: ignore[misc]  # Keras has no types
    """:class:`horocache.keras.callbacks.BestModelCheckpoint`; what that one has besides is given by name."""

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch", **more: Any
    ) -> None:
        super().__init__(monitor, verbose, mode=mode, save_freq=save_freq, **more)
