"""Keras optimizers that reduce their gradients over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import keras
from horocache.collectives.api import Average
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set, registered_set
from horocache.data_parallel.bucketing import NumGroups
from horocache.data_parallel.options import GradientOptions, gradient_options, members_of_lists, variables_of_layers
from horocache.errors import InvalidArgumentError, UnsupportedError
from keras.src import api_export
from keras.src.saving import object_registration

from . import purposes
from .backends import backend


class DebugState(NamedTuple):
    """How a distributed optimizer reduces its gradients."""

    options: GradientOptions
    local_variables: Mapping[int, str]
    """The paths of the variables whose gradients stay on this rank, by the variables' ``id()``."""


class DistributedMixin:
    """Reduces gradients; :func:`DistributedOptimizer` adds it to the class of the user's optimizer.

    The gradients that Keras passes to ``apply`` are reduced. If Keras accumulates gradients over several steps, the
    accumulated gradients are reduced instead, before they are clipped.

    Role: never used alone; the first base of a class that holds the arguments of DistributedOptimizer, so that
    ``type(optimizer).from_config()`` creates a distributed optimizer, too.
    """

    _hc_plain_class: ClassVar[Any]  # the class of the user's optimizer
    _hc_arguments: ClassVar[Mapping[str, Any]]  # the arguments of DistributedOptimizer, for copies
    _hc_options: GradientOptions
    _hc_local: Mapping[int, str] = {}  # ids and paths of the variables whose gradients stay on this rank
    _hc_scale_local: bool
    _hc_factor: float  # multiplies accumulated gradients, which Keras has averaged
    _hc_variables: Sequence[Any]  # the variables whose gradients Keras is applying
    gradient_accumulation_steps: int | None

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Reduce the gradients, and update the variables with the results."""
        known: Any = self
        if grads and not self.gradient_accumulation_steps:
            variables = known._trainable_variables if trainable_variables is None else trainable_variables
            grads = self._reduced(grads, list(variables))
        super().apply(grads, trainable_variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        # Not by setattr: Keras would track the list as variables of the optimizer itself.
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

    def debug_state(self) -> DebugState:
        """Return the options of the reduction and the local variables, to look at; changing them has no effect."""
        return DebugState(self._hc_options, dict(self._hc_local))

    def register_local_var(self, variable: Any) -> None:
        """Keep the gradient of a Keras or TensorFlow variable on this rank, instead of reducing it."""
        self.__dict__["_hc_local"] = {**self._hc_local, id(variable): getattr(variable, "path", variable.name)}

    def __reduce__(self) -> Any:
        """Support copy, deepcopy and pickle: copy the optimizer as Keras does, and distribute the copy in the same way.

        Raises:
            UnsupportedError: the optimizer has local variables.
        """
        if self._hc_local:
            raise UnsupportedError(
                f"an optimizer with local variables ({', '.join(self._hc_local.values())}) cannot be copied without "
                "its model. Make a plain optimizer and give it to PartialDistributedOptimizer."
            )
        of_keras: Any = super().__reduce__()
        (state,) = of_keras[1]
        return _copied, (self._hc_plain_class, state, sendable(self._hc_arguments))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute as Keras does; refuse the assignment by which a LossScaleOptimizer wraps this optimizer."""
        if name == "loss_scale_factor" and value is None and name in self.__dict__:
            raise UnsupportedError(
                "a LossScaleOptimizer around a DistributedOptimizer would skip steps on some ranks only. Wrap the "
                "other way round, DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), or compile the "
                "model with auto_scale_loss=False."
            )
        super().__setattr__(name, value)


class ScaledDistributedMixin(DistributedMixin):
    """For a LossScaleOptimizer: reduces gradients before the check whether they are finite, so that all ranks agree."""

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Reduce the scaled gradients, then continue as on one rank."""
        super().apply(grads, trainable_variables)

    def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        """Reduce the scaled gradients, then continue as on one rank; Keras on JAX calls this method."""
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
    num_groups: NumGroups = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap a Keras optimizer so that each step uses gradients reduced over all ranks.

    The wrapped optimizer takes over the state of ``optimizer``, which should not be used any more. It works with Keras
    on TensorFlow, torch and JAX, in ``model.fit`` and in custom training loops.

    Args:
        optimizer: any ``keras.optimizers.Optimizer`` of Keras 3.
        name: the name of the wrapped optimizer; by default unchanged.
        device_dense: accepted because Horovod has it, and ignored: results are where the backend uses them.
        device_sparse: accepted because Horovod has it, and ignored.
        compression: a class of ``Compression``, or a custom compressor, the same on all ranks; None for none.
        sparse_as_dense: with TensorFlow, True makes ``tf.IndexedSlices`` dense before they are reduced; False gathers
            them.
        gradient_predivide_factor: with Average, the gradients are divided by this factor before the sum, and by the
            number of ranks over this factor after it.
        op: Average, Sum, Min, Max or Product; with TensorFlow and torch also Adasum of the gradients.
        backward_passes_per_step: the number of steps whose gradients add up to one that is reduced and applied; Keras's
            ``gradient_accumulation_steps``.
        average_aggregated_gradients: True averages the gradients of these steps instead of adding them up.
        num_groups: the number of groups into which the gradients are split; each group is reduced as one operation. 0
            reduces every gradient by an operation of its own. "auto": one group for each 25 MiB, at most 10.
        groups: a number, with the meaning of ``num_groups``; or lists of Keras variables, each list reduced as one
            operation. The gradients of all other variables are reduced by operations of their own.
        process_set: the ranks that take part.
        scale_local_gradients: True divides the gradients of local variables by the number of ranks.

    Returns:
        An instance of a class that derives from the class of ``optimizer``. Its copies are distributed, too; groups
        that are lists of variables are not copied. Models are saved as with ``optimizer``, and can be loaded without
        horocache; :func:`load_model` wraps the optimizer again.

    Raises:
        ValueError: ``optimizer`` is not an optimizer of Keras 3, or is distributed already; ``op``, ``compression``,
            ``num_groups``, ``groups`` or the process set is invalid; ``gradient_predivide_factor`` is not positive, or
            is not 1 with another ``op`` than Average; ``backward_passes_per_step`` is below 1, contradicts the
            optimizer's ``gradient_accumulation_steps``, or is not 1 for an optimizer that has been used.
        NotInitializedError: called before ``init()``.
    """
    _check_optimizer(optimizer)
    reduction = {
        "compression": backend().Compression.none if compression is None else compression,
        "backward_passes_per_step": backward_passes_per_step,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "num_groups": num_groups,
        "groups": groups,
        "sparse_as_dense": sparse_as_dense,
        "process_set": process_set,
    }
    options = gradient_options(check_members=_check_lists_of_variables, **reduction)
    backend().prepare(DistributedMixin)
    scaled = _with_loss_scale(optimizer)
    _accumulate(scaled, backward_passes_per_step)
    if options.groups is not None:
        reduction["groups"] = None  # not for copies, which have other variables
    own = {
        "_hc_arguments": {
            **reduction,
            "average_aggregated_gradients": average_aggregated_gradients,
            "scale_local_gradients": scale_local_gradients,
        },
        "_hc_options": options._replace(groups=None),
        "_hc_scale_local": scale_local_gradients,
        "_hc_factor": 1.0 if average_aggregated_gradients else float(backward_passes_per_step),
    }
    distributed = cast(Any, object.__new__(_class_of(type(scaled), own)))
    distributed.__dict__.update(vars(scaled), _hc_options=options)
    if name is not None:
        distributed.name = name
    return distributed


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, DistributedMixin):
        raise InvalidArgumentError("the optimizer is distributed already; wrap the plain optimizer.")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            f"DistributedOptimizer takes a keras.optimizers.Optimizer of Keras 3, not {optimizer!r}. Optimizers of "
            "tf_keras are not supported; for one of tf.compat.v1.train, see horocache.tensorflow.DistributedOptimizer."
        )


def _with_loss_scale(optimizer: Any) -> Any:
    """Wrap the optimizer in a LossScaleOptimizer if the default policy is mixed_float16.

    Keras would otherwise put a LossScaleOptimizer around the distributed optimizer.
    """
    if keras.config.dtype_policy().name != "mixed_float16":
        return optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer)


def _accumulate(optimizer: Any, passes: int) -> None:
    target = optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer
    if passes in (1, target.gradient_accumulation_steps):
        return
    if target.built:
        raise InvalidArgumentError(
            f"backward_passes_per_step={passes} needs an optimizer that has not been used yet, to make room for sums."
        )
    if target.gradient_accumulation_steps is not None:
        raise InvalidArgumentError(
            f"backward_passes_per_step={passes}, but the optimizer has gradient_accumulation_steps="
            f"{target.gradient_accumulation_steps}. Give one of them."
        )
    target.gradient_accumulation_steps = passes


_classes: dict[Any, type] = {}


def _class_of(plain_class: type, own: dict[str, Any]) -> type:
    """Return a class that derives from a mixin and the user's class, with the attributes ``own``.

    Equal arguments give the same class.
    """
    scaled = issubclass(plain_class, keras.optimizers.LossScaleOptimizer)
    key = (plain_class, *(tuple(each.items()) if isinstance(each, dict) else each for each in own.values()))
    made = _classes.get(key)
    if made is None:
        bases = (ScaledDistributedMixin if scaled else DistributedMixin, plain_class)
        place = {"__module__": plain_class.__module__, "__qualname__": plain_class.__qualname__}
        made = _classes[key] = type(plain_class.__name__, bases, {**place, **own, "_hc_plain_class": plain_class})
        # Keras saves an optimizer under the registered name of its class. The new class gets the name of the user's.
        for names in (api_export.REGISTERED_OBJS_TO_NAMES, object_registration.GLOBAL_CUSTOM_NAMES):
            if plain_class in names:
                names[made] = names[plain_class]
    return made


def sendable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of DistributedOptimizer in a form that another process can read."""
    return {**arguments, "process_set": arguments["process_set"].process_set_id}


def distributed_again(optimizer: Any, arguments: Mapping[str, Any]) -> Any:
    """Distribute an optimizer; ``arguments`` come from :func:`sendable`."""
    return DistributedOptimizer(optimizer, **{**arguments, "process_set": registered_set(arguments["process_set"])})


def _copied(plain_class: Any, state: Any, arguments: Mapping[str, Any]) -> Any:
    with purposes.wanted(purposes.CALLER):
        plain = plain_class._unpickle_model(state)
    return distributed_again(plain, arguments)


def _check_lists_of_variables(groups: list[Any]) -> None:
    """Raise InvalidArgumentError unless ``groups`` are lists of Keras variables, each variable in at most one list."""
    for _ in members_of_lists(groups, "Keras variables", lambda each: hasattr(each, "path"), id):
        pass


def PartialDistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: Any, *arguments: Any, local_layers: Any = None, **more: Any
) -> Any:
    """Wrap an optimizer as :func:`DistributedOptimizer` does, but keep gradients of ``local_layers`` on their ranks.

    Args:
        optimizer: any ``keras.optimizers.Optimizer`` of Keras 3.
        arguments: more positional arguments of :func:`DistributedOptimizer`, from ``name`` on.
        local_layers: a built Keras layer, or several, whose gradients stay on their ranks.
        more: keyword arguments of :func:`DistributedOptimizer`.

    Returns:
        An instance of a class that derives from the class of ``optimizer``. It can be copied only with its model.

    Raises:
        ValueError: ``local_layers`` are not Keras layers; or one of the cases of :func:`DistributedOptimizer`.
        NotInitializedError: called before ``init()``.
    """
    distributed = DistributedOptimizer(optimizer, *arguments, **more)
    for variable in variables_of_layers(local_layers):
        distributed.register_local_var(variable)
    return distributed
