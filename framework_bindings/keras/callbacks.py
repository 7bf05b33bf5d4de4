"""Callbacks for ``model.fit`` on several ranks, with Horovod's names."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from horocache.keras.variables import broadcast_variables

import horocache
import keras
from horocache.collectives.numpy import collectives
from horocache.collectives.object_collectives import allgather_object
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError

_SEED = "seed_generator_state"  # what Keras calls the variable of a keras.random.SeedGenerator


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives every rank the root's variables before the first batch: those of the model and those of its optimizer.

    Needed where ranks start from random weights, or where only the root has loaded a checkpoint. The states of random
    generators are left alone: ranks with seeds of their own drop out units of their own.

    Args:
        root_rank: whose values to take.
        device: accepted because Horovod has it.
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
        """Broadcast, if Keras has built the model, which it does before it begins."""
        if self.model.built:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch, which has built the model."""
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
    """Replaces the metrics at the end of an epoch by their means over the ranks.

    Put it before callbacks that read them, such as ReduceLROnPlateau, EarlyStopping or TensorBoard: then these do the
    same on all ranks. Ranks must have the same metrics.

    Args:
        device: accepted because Horovod has it.
        process_set: the ranks that take part.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average ``logs`` in place."""
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
        multiplier: a number, or a function from the epoch to a number. With ``staircase`` it is called with whole
            epochs, else with fractions of them.
        start_epoch: the first epoch in which the callback sets the rate.
        end_epoch: the first epoch in which it does not any more; None: never.
        staircase: set the rate at the beginning of epochs only. Constant multipliers always are.
        momentum_correction: when the rate changes, scale what SGD has accumulated with momentum, as Goyal et al. 2017,
            section 3, have it.
        steps_per_epoch: for fractions of epochs; by default what Keras knows.
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
        """Find out how many steps an epoch has."""
        if not self.staircase and self.steps_per_epoch is None:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise InvalidArgumentError(
                    f"{type(self).__name__} needs steps_per_epoch: Keras does not know it for this data."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the rate of the epoch."""
        self.current_epoch = epoch
        if self.staircase and self._is_on():
            self._set(self.multiplier(epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of the batch."""
        if not self.staircase and self._is_on():
            assert self.steps_per_epoch is not None
            self._set(self.multiplier(self.current_epoch + batch / self.steps_per_epoch))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Show the rate among the metrics."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _is_on(self) -> bool:
        return self.current_epoch >= self.start_epoch and (
            self.end_epoch is None or self.current_epoch < self.end_epoch
        )

    def _rate(self) -> float:
        sync = getattr(self.model, "jax_state_sync", None)
        if sync is not None:
            sync()  # on JAX, fit keeps variables elsewhere while it runs
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set(self, factor: float) -> None:
        old, new = self._rate(), self.initial_lr * factor
        if math.isclose(old, new, rel_tol=1e-7):
            return
        self.model.optimizer.learning_rate = new
        if self.momentum_correction and old != 0.0:
            self._correct(new / old)

    def _correct(self, ratio: float) -> None:
        # Keras's SGD keeps rates within what it accumulates. Others' sums are of gradients alone.
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(optimizer, keras.optimizers.SGD) and optimizer.momentum:
            for accumulated in getattr(optimizer, "momentums", ()):
                accumulated.assign(accumulated * ratio)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from that of one rank to that of all, batch by batch, as Goyal et al. 2017 have it.

    Args:
        initial_lr: the rate that is reached, which is that of one process times the number of ranks.
        warmup_epochs: how many epochs it takes.
        momentum_correction: as for :class:`LearningRateScheduleCallback`.
        steps_per_epoch: as there.
        verbose: 1 to print when the rate has been reached.
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
            # One step later, so that the last step of the last epoch has the full rate.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            ranks = horocache.size()
            return 1.0 / ranks * (epoch * (ranks - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Say that the rate has been reached."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            sys.stdout.write(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.\n")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keeps the best model; its ``filepath`` is set before training.

    Args:
        monitor: the metric that tells.
        verbose: as for ``keras.callbacks.ModelCheckpoint``.
        save_weights_only: as there.
        mode: as there.
        save_freq: as there.
        filepath: where to save; or set the attribute before ``fit``.
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
        """Refuse to train without a place for the model."""
        if not self._named and self.filepath == self._unset:
            raise InvalidArgumentError("BestModelCheckpoint: set filepath before training.")
        super().on_train_begin(logs)
