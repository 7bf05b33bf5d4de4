"""Keras optimizers whose gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import keras
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.layers import AnyCompressor
from horocache.ops import Average
from horocache.process_set import ProcessSet, global_process_set
from horocache.training import GradientOptions, gradient_options, members_of_lists, variables_of_layers

from .backends import backend


class DistributedMixin:
    """What :func:`DistributedOptimizer` adds to the class of the user's optimizer.

    Gradients are reduced as Keras hands them over; where it accumulates them over several steps, what it has
    accumulated is reduced, before it is clipped.

    Role: never used alone; the first base of a class made for each wrapped optimizer.
    """

    _hc_options: GradientOptions
    _hc_local: set[int]  # ids of the variables whose gradients stay on this rank
    _hc_scale_local: bool
    _hc_factor: float  # of accumulated gradients, which Keras averages
    _hc_variables: Sequence[Any]  # of the gradients that Keras is at
    gradient_accumulation_steps: int | None

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Reduce the gradients, and update the variables with the results."""
        known: Any = self
        if grads and not self.gradient_accumulation_steps:
            variables = known._trainable_variables if trainable_variables is None else trainable_variables
            grads = self._reduced(grads, list(variables))
        super().apply(grads, trainable_variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        # Keras would take an attribute for variables of the optimizer's own.
        self.__dict__["_hc_variables"] = list(trainable_variables)
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        if self.gradient_accumulation_steps:
            grads = [each if self._hc_factor == 1.0 else each * self._hc_factor for each in grads]
            grads = self._reduced(grads, self._hc_variables)
        clipped: list[Any] = super()._clip_gradients(grads)  # type: ignore[misc]
        return clipped

    def _reduced(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        result = list(grads)
        shared = [i for i, variable in enumerate(variables) if id(variable) not in self._hc_local]
        if self._hc_scale_local:
            ranks = self._hc_options.process_set.size()
            for index in set(range(len(result))).difference(shared):
                result[index] = None if result[index] is None else result[index] / ranks
        reduced = backend().reduce_gradients(
            [result[i] for i in shared], [variables[i] for i in shared], self._hc_options, "gradient"
        )
        for index, each in zip(shared, reduced, strict=True):
            result[index] = each
        return result

    def register_local_var(self, variable: Any) -> None:
        """Leave the gradient of a Keras variable on this rank."""
        self._hc_local.add(id(variable))

    def __setattr__(self, name: str, value: Any) -> None:
        """Keras's, which tracks variables; but a LossScaleOptimizer that takes the optimizer over shows itself here."""
        if name == "loss_scale_factor" and value is None:
            raise UnsupportedError(
                "a LossScaleOptimizer around a DistributedOptimizer would skip steps on some ranks only. Wrap the "
                "other way round, DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), or compile the "
                "model with auto_scale_loss=False."
            )
        super().__setattr__(name, value)


class ScaledDistributedMixin(DistributedMixin):
    """For a LossScaleOptimizer: gradients are reduced before it looks whether they are finite, so that ranks agree."""

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Reduce the scaled gradients, then go on as on one rank."""
        super().apply(grads, trainable_variables)

    def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        """The same where Keras is on JAX."""
        known: Any = self
        grads = self._reduced(grads, known._trainable_variables)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor | None = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap a Keras optimizer so that each step uses gradients reduced over all ranks.

    The wrapped optimizer has all state of ``optimizer``, which should not be used any more. With Keras on TensorFlow,
    torch or JAX, in ``model.fit`` and in loops of one's own.

    Args:
        optimizer: any ``keras.optimizers.Optimizer``.
        name: what the optimizer is to be called; by default as it is.
        device_dense: accepted because Horovod has it; results are where the backend uses them.
        device_sparse: the same.
        compression: of ``Compression``, or one's own compressor; None is none.
        sparse_as_dense: with TensorFlow, make ``tf.IndexedSlices`` dense before they are reduced.
        gradient_predivide_factor: with Average, divides before the sum by this factor and after it by the rest of the
            number of ranks.
        op: Average, Sum, Min, Max or Product; with TensorFlow and torch also Adasum of the gradients.
        backward_passes_per_step: how many steps' gradients add up to one that is reduced and applied; Keras's
            ``gradient_accumulation_steps``.
        average_aggregated_gradients: average these instead of adding them up.
        num_groups: how many groups the gradients are reduced in, each as one operation; 0 reduces each by itself.
        groups: a number, as ``num_groups``, or lists of Keras variables that are reduced together.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local variables by the number of ranks.

    Returns:
        An instance of a class that derives from the class of ``optimizer``. Models are saved as with that, and can be
        loaded without horocache; :func:`load_model` wraps the optimizer again.

    Raises:
        ValueError: see :func:`horocache.torch.DistributedOptimizer`; or it is no Keras 3 optimizer, or wrapped already.
    """
    _check_optimizer(optimizer)
    compressor = backend().Compression.none if compression is None else compression
    options = gradient_options(
        compression=compressor,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        check_members=_check_lists_of_variables,
    )
    backend().prepare()
    scaled = _with_loss_scale(optimizer)
    _accumulate(scaled, backward_passes_per_step)
    mixin = ScaledDistributedMixin if isinstance(scaled, keras.optimizers.LossScaleOptimizer) else DistributedMixin
    distributed = _shared(scaled, mixin)
    if name is not None:
        distributed.name = name
    distributed.__dict__.update(
        _hc_options=options,
        _hc_local=set(),
        _hc_scale_local=scale_local_gradients,
        _hc_factor=1.0 if average_aggregated_gradients else float(backward_passes_per_step),
    )
    return distributed


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, DistributedMixin):
        raise InvalidArgumentError("the optimizer is distributed already; wrap the plain optimizer.")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            f"DistributedOptimizer takes a keras.optimizers.Optimizer of Keras 3, not {optimizer!r}. Optimizers of "
            "tf_keras and tf.compat.v1 are not supported."
        )


def _with_loss_scale(optimizer: Any) -> Any:
    """What Keras does itself where the default policy is mixed_float16, from the outside."""
    if keras.config.dtype_policy().name != "mixed_float16":
        return optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer)


def _accumulate(optimizer: Any, passes: int) -> None:
    target = optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer
    if passes == 1:
        return
    if target.built:
        raise InvalidArgumentError(
            f"backward_passes_per_step={passes} needs an optimizer that has not been used yet, to make room for sums."
        )
    if target.gradient_accumulation_steps not in (None, passes):
        raise InvalidArgumentError(
            f"backward_passes_per_step={passes}, but the optimizer has gradient_accumulation_steps="
            f"{target.gradient_accumulation_steps}. Give one of them."
        )
    target.gradient_accumulation_steps = passes


def _shared(optimizer: Any, mixin: type[DistributedMixin]) -> Any:
    """An object of the user's class with ``mixin`` in front, which has all that ``optimizer`` has."""
    plain_class = type(optimizer)
    # Named as the user's class, so that Keras saves it as that.
    made = type(plain_class.__name__, (mixin, plain_class), {"__module__": plain_class.__module__})
    distributed = cast(Any, object.__new__(made))
    distributed.__dict__.update(vars(optimizer))
    return distributed


def _check_lists_of_variables(groups: list[Any]) -> None:
    """InvalidArgumentError unless these are lists of Keras variables, each in one list at most."""
    for _ in members_of_lists(groups, "Keras variables", lambda each: hasattr(each, "path"), id):
        pass


def PartialDistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: Any, *arguments: Any, local_layers: Any = None, **more: Any
) -> Any:
    """:func:`DistributedOptimizer` that leaves the gradients of ``local_layers`` on their ranks.

    Args:
        optimizer: as there.
        arguments: as there.
        local_layers: a Keras layer, or several, whose variables have been made.
        more: as there.
    """
    distributed = DistributedOptimizer(optimizer, *arguments, **more)
    for variable in variables_of_layers(local_layers):
        distributed.register_local_var(variable)
    return distributed
