"""For programs with graphs and sessions of TensorFlow 1 (``tf.compat.v1``): broadcasts, a hook and an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horocache.data_parallel.options import GradientOptions, gradient_options
from horocache.errors import InvalidArgumentError, UnsupportedError

from .parameters import broadcast_variables
from .reduction import check_lists_of_variables, reduce_gradients

_v1 = tf.compat.v1


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that overwrites all global variables of the default graph with the root's values.

    The variables are overwritten when a session runs the operation.

    Args:
        root_rank: the rank that sends its values.

    Raises:
        UnsupportedError: TensorFlow is in eager mode, which has no global variables.
    """
    if tf.executing_eagerly():
        raise UnsupportedError(
            "broadcast_global_variables() is for graphs of TensorFlow 1, and eager mode has no global variables; use "
            f"broadcast_variables(variables, root_rank={root_rank})."
        )
    return broadcast_variables(_v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Overwrites all global variables with the root's values after a session has been created.

    Needed if ranks start from random weights, or if only the root has loaded a checkpoint. A MonitoredTrainingSession
    takes it among its hooks.

    Args:
        root_rank: the rank that sends its values.
        device: the device of the broadcast operation.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        self._root_rank = root_rank
        self._device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the broadcast to the graph, before the session makes the graph final."""
        if self.bcast_op is None or self.bcast_op.graph is not _v1.get_default_graph():
            with tf.device(self._device):
                self.bcast_op = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast."""
        session.run(self.bcast_op)


class SessionOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer of ``tf.compat.v1.train`` whose ``compute_gradients()`` reduces the gradients over the ranks.

    All other methods delegate to the wrapped optimizer.

    Args:
        optimizer: the wrapped optimizer.
        name: the name of this optimizer; by default ``Distributed`` followed by the name of the wrapped one's class.
        use_locking: passed to ``tf.compat.v1.train.Optimizer``.
        options: how gradients are reduced.
    """

    def __init__(self, optimizer: Any, name: str | None, use_locking: bool, options: GradientOptions) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._options = options

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the wrapped optimizer's pairs of gradient and variable, with reduced gradients; None stays None."""
        pairs: Sequence[tuple[Any, Any]] = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        reduced = reduce_gradients(gradients, variables, self._options, "gradient")
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``apply_gradients`` of the wrapped optimizer."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``get_slot`` of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``get_slot_names`` of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``variables`` of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def distributed_v1(optimizer: Any, name: str | None, use_locking: bool, **options: Any) -> SessionOptimizer:
    """Wrap an optimizer of ``tf.compat.v1.train``; ``options`` are those of DistributedOptimizer.

    Raises:
        ValueError: the optimizer is wrapped already, or an option is invalid.
        UnsupportedError: ``backward_passes_per_step`` is not 1.
    """
    if isinstance(optimizer, SessionOptimizer):
        raise InvalidArgumentError("the optimizer is distributed already; wrap the plain optimizer.")
    if options["backward_passes_per_step"] != 1:
        raise UnsupportedError(
            "backward_passes_per_step is not supported for optimizers of tf.compat.v1.train; use an optimizer of Keras."
        )
    checked = gradient_options(check_members=check_lists_of_variables, **options)
    return SessionOptimizer(optimizer, name, use_locking, checked)
