"""Callbacks for ``model.fit`` on several ranks, with Horovod's names."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import horocache
import keras
from horocache.collectives.numpy import collectives
from horocache.collectives.object_collectives import allgather_object
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError

from .variables import broadcast_variables

_SEED = "seed_generator_state"  # Keras's name for the variable of a keras.random.SeedGenerator


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Overwrites every rank's variables of the model and its optimizer with the root's values when training begins.

    A model that is not built until the first batch is overwritten after that batch. Needed if ranks start from random
    weights, or if only the root has loaded a checkpoint. The states of random generators are not overwritten, so that
    ranks with different seeds drop out different units.

    Args:
        root_rank: the rank that sends its values; a global rank in the set.
        device: accepted because Horovod has it, and ignored.
        local_variables: variables that keep each rank's own values.
        process_set: the ranks that take part.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._local = {variable.path for variable in local_variables or ()}
        self._process_set = process_set
        self._done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast, if the model is built."""
        if self.model.built:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch, if the model was not built when training began."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self._done:
            return
        self._done = True
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables = [*self.model.variables, *(optimizer.variables if optimizer is not None else ())]
        shared = [each for each in variables if each.path not in self._local and each.name != _SEED]
        broadcast_variables(shared, self._root_rank, self._process_set)


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces the metrics at the end of each epoch by their means over the ranks.

    All ranks must have the same metrics. Put this callback before callbacks that read metrics, such as
    ReduceLROnPlateau, EarlyStopping or TensorBoard, so that these do the same on all ranks.

    Args:
        device: accepted because Horovod has it, and ignored.
        process_set: the ranks that take part.

    Raises:
        InvalidArgumentError: at the end of an epoch, if ranks have different metrics or a metric is a string.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the scalars in ``logs`` by their means over the ranks."""
        if not logs:
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        everybodys = allgather_object(names, "metric_average.names", self._process_set)
        for rank, other in zip(self._process_set.ranks, everybodys, strict=False):
            if other != names:
                raise InvalidArgumentError(
                    f"MetricAverageCallback: this rank has the metrics {names}, rank {rank} has {other}. Use the same "
                    "metrics, and validation data on all ranks or on none."
                )
        for name in names:
            if isinstance(logs[name], (str, bytes)):
                raise InvalidArgumentError(
                    f"MetricAverageCallback: the metric {name!r} is the string {logs[name]!r}, which has no mean. "
                    "Put the callback that adds it to the logs behind this one."
                )
        own = np.array([float(logs[name]) for name in names])
        averages = collectives.allreduce(own, name="metric_average", process_set=self._process_set)
        logs.update(zip(names, averages.tolist(), strict=True))


def _constant(value: float) -> Callable[[float], float]:
    return lambda _: value


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies the initial learning rate by a factor that depends on the epoch.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a number, or a function from the epoch to a number. With ``staircase`` the function is called with
            whole epochs, else with fractions of epochs.
        start_epoch: the first epoch in which the callback sets the rate.
        end_epoch: the first epoch in which it no longer sets the rate; None for no end.
        staircase: True sets the rate at the beginning of each epoch only, as always with a number as ``multiplier``;
            False sets it before each batch.
        momentum_correction: True scales the momentum that SGD has accumulated when the rate changes (Goyal et al. 2017,
            section 3).
        steps_per_epoch: the number of batches in an epoch, to compute fractions of epochs; by default Keras's number.

    Raises:
        InvalidArgumentError: ``initial_lr`` is None; or, when training begins, ``steps_per_epoch`` is needed and
            neither given nor known to Keras.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise InvalidArgumentError("Parameter `initial_lr` is required.")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else _constant(multiplier)

    def on_train_begin(self, logs: Any = None) -> None:
        """Determine the number of batches in an epoch, if it is needed and not given."""
        if not self.staircase and self.steps_per_epoch is None:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise InvalidArgumentError(
                    f"{type(self).__name__} needs steps_per_epoch: Keras does not know it for this data."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the rate of the epoch, with ``staircase``."""
        self.current_epoch = epoch
        if self.staircase and self._is_on():
            self._set(self.multiplier(epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of the batch, without ``staircase``."""
        if not self.staircase and self._is_on():
            assert self.steps_per_epoch is not None
            self._set(self.multiplier(self.current_epoch + batch / self.steps_per_epoch))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the rate to the metrics, as ``lr``."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _is_on(self) -> bool:
        return self.current_epoch >= self.start_epoch and (
            self.end_epoch is None or self.current_epoch < self.end_epoch
        )

    def _rate(self) -> float:
        sync = getattr(self.model, "jax_state_sync", None)
        if sync is not None:
            sync()  # on JAX, fit() keeps the current values outside of the variables while it runs
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set(self, factor: float) -> None:
        old, new = self._rate(), self.initial_lr * factor
        if math.isclose(old, new, rel_tol=1e-7):
            return
        self.model.optimizer.learning_rate = new
        if self.momentum_correction and old != 0.0:
            self._correct(new / old)

    def _correct(self, ratio: float) -> None:
        # Keras's SGD accumulates gradients multiplied by the rate. Other optimizers accumulate plain gradients.
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(optimizer, keras.optimizers.SGD) and optimizer.momentum:
            for accumulated in getattr(optimizer, "momentums", ()):
                accumulated.assign(accumulated * ratio)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate batch by batch, from ``initial_lr`` over the number of ranks to ``initial_lr``.

    Source: Goyal et al. 2017, section 2.2.

    Args:
        initial_lr: the rate at the end of the warm-up: the rate for one process times the number of ranks.
        warmup_epochs: the number of epochs of the warm-up.
        momentum_correction: True scales the momentum that SGD has accumulated when the rate changes.
        steps_per_epoch: the number of batches in an epoch; by default Keras's number.
        verbose: 1 prints a line at the end of the warm-up.

    Raises:
        InvalidArgumentError: ``initial_lr`` is None; or, when training begins, ``steps_per_epoch`` is neither given nor
            known to Keras.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # Counts the batch that begins now, so that the last batch of the warm-up has the full rate.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            ranks = horocache.size()
            return 1.0 / ranks * (epoch * (ranks - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the rate to the metrics, as ``lr``; at the end of the warm-up, print it if ``verbose`` is set."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            sys.stdout.write(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.\n")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """A ``keras.callbacks.ModelCheckpoint`` that saves the best model only.

    Args:
        monitor: the metric that decides which model is best.
        verbose: 1 prints a line when a model is saved.
        save_weights_only: True saves the weights only; False saves the whole model.
        mode: ``"min"`` or ``"max"`` if the best value of the metric is its lowest or highest one; ``"auto"`` decides by
            the metric's name.
        save_freq: ``"epoch"``, or the number of batches after which the model is saved if it is the best.
        filepath: the file to save to; or set the attribute of this name before ``fit``.

    Raises:
        InvalidArgumentError: when training begins, if ``filepath`` has not been set.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
    ) -> None:
        self._named = filepath is not None
        place = filepath if self._named else ("unset.weights.h5" if save_weights_only else "unset.keras")
        super().__init__(
            place,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self._unset = self.filepath

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise InvalidArgumentError if ``filepath`` has not been set."""
        if not self._named and self.filepath == self._unset:
            raise InvalidArgumentError("BestModelCheckpoint: set filepath before training.")
        super().on_train_begin(logs)
