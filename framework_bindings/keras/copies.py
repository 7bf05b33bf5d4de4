"""Copies of distributed optimizers, and of models with them, are distributed.

Keras copies, pickles and saves optimizers and models by a configuration. It names the class of the user's optimizer, so
that Keras reads it everywhere, without horocache too. The arguments of DistributedOptimizer stand beside that, under a
key that Keras ignores. What Keras makes of a configuration with that key, as for ``copy``, ``deepcopy``, ``pickle``,
``deserialize`` and ``compile_from_config``, is distributed.

A file may be read by one rank alone, or by all to go on training; only the program knows. So Keras's own ``load_model``
gives the user's optimizer and a warning, and :func:`horocache.keras.load_model` distributes it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

from horocache.keras import purposes
from horocache.keras.backends import backend
from horocache.keras.optimizer import DistributedMixin, distributed_again, sendable

import keras
from horocache.errors import UnsupportedError
from keras.src.legacy.saving import saving_utils
from keras.src.saving import saving_lib, serialization_lib

_KEY = "horocache"  # in the configuration of an optimizer
_LOCAL = "local_variables"  # their paths
_PLACES = "local_places"  # the places of these among the trainable variables of the model, where there is a model


def load_plain(filepath: Any, **options: Any) -> Any:
    """Keras's ``load_model``, for a caller that distributes the optimizer."""
    with purposes.wanted(purposes.CALLER):
        return keras.saving.load_model(filepath, **options)


def put_into(model: Any, optimizer: Any) -> None:
    """Let a compiled model go on with another optimizer."""
    model.optimizer = optimizer
    if model.jit_compile:
        # Asked again whether XLA can compile the model, Keras looks at the new optimizer. It ignores the assignment
        # of what is there.
        model.jit_compile = False
        model.jit_compile = True


def _noted(optimizer: DistributedMixin) -> dict[str, Any]:
    """How an optimizer is distributed, as JSON has it; or why that cannot be told, as ``problem``."""
    arguments = sendable(optimizer._hc_arguments)
    compression = arguments["compression"]
    name = compression.__name__ if isinstance(compression, type) else repr(compression)
    known = {key: each for key, each in vars(backend().Compression).items() if each is compression}
    if not known:
        return {"problem": f"its compression {name} is none of horocache's"}
    return {**arguments, "compression": next(iter(known)), _LOCAL: list(optimizer._hc_local.values())}


class _Copies:
    """What Keras takes for the class of the optimizer where a configuration has a note.

    Args:
        plain_class: the class of the user's optimizer.
        noted: how the optimizer was distributed.
    """

    def __init__(self, plain_class: Any, noted: Mapping[str, Any]) -> None:
        self._plain_class = plain_class
        self._noted = noted

    def from_config(self, config: Any) -> Any:
        """An optimizer that is distributed as the one that the note is of, unless it comes out of a file."""
        plain = self._plain_class.from_config(config)
        if purposes.purpose() == purposes.FILE:
            _warn_of_plain()
        return _distributed(plain, self._noted) if purposes.purpose() == purposes.COPY else plain


def _distributed(optimizer: Any, noted: Mapping[str, Any]) -> Any:
    if "problem" in noted:
        raise UnsupportedError(
            f"this is a copy of a distributed optimizer that cannot be copied: {noted['problem']}. Make a plain "
            "optimizer, and give it to hvd.DistributedOptimizer(...)."
        )
    if noted[_LOCAL] and _PLACES not in noted:
        raise UnsupportedError(
            f"an optimizer with local variables ({', '.join(noted[_LOCAL])}) cannot be copied without its model. Make "
            "a plain optimizer and give it to hvd.PartialDistributedOptimizer."
        )
    arguments = {key: value for key, value in noted.items() if key not in (_LOCAL, _PLACES)}
    arguments["compression"] = getattr(backend().Compression, noted["compression"])
    return distributed_again(optimizer, arguments)


def _warn_of_plain() -> None:
    warnings.warn(
        "the model was saved with a distributed optimizer, and its optimizer is not distributed now. To go on "
        "training on several ranks, load it with hvd.load_model().",
        stacklevel=3,
    )


def _register_local(model: Any, noted: Mapping[str, Any]) -> None:
    """Leave the gradients of the same variables on their ranks as in the model that this one is a copy of."""
    variables = model.trainable_variables
    for index in noted.get(_PLACES, ()):
        if index >= len(variables):
            raise UnsupportedError(
                "gradients of some variables stay on their ranks, and the copy of the model has no variables yet. "
                "Build it before compile_from_config(), or compile it with hvd.PartialDistributedOptimizer(...)."
            )
        model.optimizer.register_local_var(variables[index])


def _follow_optimizers() -> None:
    """Let the configuration of an optimizer tell how it is distributed, and distribute what is made of it."""
    describe, class_of = serialization_lib.get_build_and_compile_config, serialization_lib._retrieve_class_or_fn
    make = serialization_lib.deserialize_keras_object

    @functools.wraps(describe)
    def get_build_and_compile_config(obj: Any, config: Any) -> None:
        describe(obj, config)
        if isinstance(obj, DistributedMixin):
            config[_KEY] = _noted(obj)

    @functools.wraps(class_of)
    def retrieve_class_or_fn(*args: Any, full_config: Any, **kwargs: Any) -> Any:
        known = class_of(*args, full_config=full_config, **kwargs)
        noted = full_config.get(_KEY) if isinstance(full_config, dict) else None
        if noted is None or not (isinstance(known, type) and issubclass(known, keras.optimizers.Optimizer)):
            return known
        return _Copies(known, noted)

    @functools.wraps(make)
    def deserialize_keras_object(config: Any, *args: Any, module_objects: Any = None, **kwargs: Any) -> Any:
        if isinstance(config, dict) and _KEY in config and config.get("class_name") in (module_objects or ()):
            # Keras's optimizers by their short names: Keras makes the configuration anew, without our key.
            public_class = module_objects[config["class_name"]]
            known = serialization_lib.serialize_with_public_class(public_class, config["config"])
            return make({**known, _KEY: config[_KEY]}, *args, **kwargs)
        return make(config, *args, module_objects=module_objects, **kwargs)

    serialization_lib.deserialize_keras_object = deserialize_keras_object
    serialization_lib.get_build_and_compile_config = get_build_and_compile_config
    serialization_lib._retrieve_class_or_fn = retrieve_class_or_fn


def _follow_models() -> None:
    """Let the configuration of a model have that of the optimizer that it has now."""
    get_config, from_config = keras.Model.get_compile_config, keras.Model.compile_from_config

    @functools.wraps(get_config)
    def get_compile_config(model: Any) -> Any:
        config = get_config(model)
        optimizer = getattr(model, "optimizer", None)
        if config and isinstance(optimizer, DistributedMixin):
            # Keras has noted the optimizer that the model was compiled with, which another one may have replaced.
            config["optimizer"] = serialization_lib.serialize_keras_object(optimizer)
            variables = enumerate(model.trainable_variables)
            config["optimizer"][_KEY][_PLACES] = [i for i, each in variables if id(each) in optimizer._hc_local]
        return config

    @functools.wraps(from_config)
    def compile_from_config(model: Any, config: Any) -> None:
        from_config(model, config)
        optimizer = config.get("optimizer")
        if isinstance(optimizer, dict) and isinstance(getattr(model, "optimizer", None), DistributedMixin):
            _register_local(model, optimizer.get(_KEY, {}))

    keras.Model.get_compile_config = get_compile_config
    keras.Model.compile_from_config = compile_from_config


def _follow_files() -> None:
    """Let the readers of files know that optimizers come out of a file."""
    load_model, describe = saving_lib.load_model, saving_utils.model_metadata
    arguments_of = saving_utils.compile_args_from_training_config

    @functools.wraps(load_model)
    def load_file(*args: Any, **kwargs: Any) -> Any:
        now = purposes.purpose()
        with purposes.wanted(purposes.FILE if now == purposes.COPY else now):
            return load_model(*args, **kwargs)

    # Files of HDF5 have a configuration that is made and read in a way of its own.
    @functools.wraps(describe)
    def model_metadata(model: Any, *args: Any, **kwargs: Any) -> Any:
        metadata = describe(model, *args, **kwargs)
        config = metadata.get("training_config", {}).get("optimizer_config")
        if config is not None and isinstance(model.optimizer, DistributedMixin):
            config[_KEY] = _noted(model.optimizer)
        return metadata

    @functools.wraps(arguments_of)
    def compile_args_from_training_config(training_config: Any, *args: Any, **kwargs: Any) -> Any:
        # Keras reads some of these configurations without their class.
        if _KEY in training_config["optimizer_config"] and purposes.purpose() != purposes.CALLER:
            _warn_of_plain()
        with purposes.wanted(purposes.CALLER):
            return arguments_of(training_config, *args, **kwargs)

    saving_lib.load_model = load_file
    saving_utils.model_metadata = model_metadata
    saving_utils.compile_args_from_training_config = compile_args_from_training_config


_follow_optimizers()
_follow_models()
_follow_files()
