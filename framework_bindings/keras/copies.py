"""Makes copies of distributed optimizers, and of models with such optimizers, distributed.

Keras copies, pickles and saves optimizers and models through a configuration. The configuration names the class of the
user's optimizer, so that Keras can read it without horocache. horocache adds the arguments of DistributedOptimizer
under a key that Keras ignores. If Keras creates an optimizer from a configuration with that key (in ``copy``,
``deepcopy``, ``pickle``, ``deserialize`` and ``compile_from_config``), the optimizer is distributed.

Files are different: one rank may read a file for itself, or all ranks may read it to continue training, and only the
program knows which. So Keras's own ``load_model`` returns the user's plain optimizer with a warning, and
:func:`horocache.keras.load_model` distributes it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import keras
from horocache.errors import UnsupportedError
from keras.src.legacy.saving import saving_utils
from keras.src.saving import saving_lib, serialization_lib

from . import purposes
from .backends import backend
from .optimizer import DistributedMixin, distributed_again, sendable

_KEY = "horocache"  # horocache's key in the configuration of an optimizer
_LOCAL = "local_variables"  # below it: the paths of the local variables
_PLACES = "local_places"  # below it: their positions among the model's trainable variables, if there is a model


def load_plain(filepath: Any, **options: Any) -> Any:
    """Call Keras's ``load_model`` for a caller that distributes the optimizer itself."""
    with purposes.wanted(purposes.CALLER):
        return keras.saving.load_model(filepath, **options)


def put_into(model: Any, optimizer: Any) -> None:
    """Replace the optimizer of a compiled model."""
    model.optimizer = optimizer
    if model.jit_compile:
        # Makes Keras check again, for the new optimizer, whether XLA can compile the model. Keras ignores an assignment
        # of the current value, so False comes first.
        model.jit_compile = False
        model.jit_compile = True


def _noted(optimizer: DistributedMixin) -> dict[str, Any]:
    """Return how an optimizer is distributed, as JSON values; if that is impossible, why, under ``problem``."""
    arguments = sendable(optimizer._hc_arguments)
    compression = arguments["compression"]
    name = compression.__name__ if isinstance(compression, type) else repr(compression)
    known = {key: each for key, each in vars(backend().Compression).items() if each is compression}
    if not known:
        return {"problem": f"its compression {name} is none of horocache's"}
    return {**arguments, "compression": next(iter(known)), _LOCAL: list(optimizer._hc_local.values())}


class _Copies:
    """Replaces the optimizer's class when Keras reads a configuration with horocache's key.

    Args:
        plain_class: the class of the user's optimizer.
        noted: how the optimizer was distributed, from the configuration.
    """

    def __init__(self, plain_class: Any, noted: Mapping[str, Any]) -> None:
        self._plain_class = plain_class
        self._noted = noted

    def from_config(self, config: Any) -> Any:
        """Create the optimizer: a copy is distributed like the original; otherwise plain, for a file with a warning."""
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
    """Register the same local variables as in the model that ``model`` is a copy of."""
    variables = model.trainable_variables
    for index in noted.get(_PLACES, ()):
        if index >= len(variables):
            raise UnsupportedError(
                "gradients of some variables stay on their ranks, and the copy of the model has no variables yet. "
                "Build it before compile_from_config(), or compile it with hvd.PartialDistributedOptimizer(...)."
            )
        model.optimizer.register_local_var(variables[index])


def _follow_optimizers() -> None:
    """Make Keras write how an optimizer is distributed into its configuration, and distribute what it reads."""
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
            # For a short class name Keras would create a new configuration, without horocache's key.
            public_class = module_objects[config["class_name"]]
            known = serialization_lib.serialize_with_public_class(public_class, config["config"])
            return make({**known, _KEY: config[_KEY]}, *args, **kwargs)
        return make(config, *args, module_objects=module_objects, **kwargs)

    serialization_lib.deserialize_keras_object = deserialize_keras_object
    serialization_lib.get_build_and_compile_config = get_build_and_compile_config
    serialization_lib._retrieve_class_or_fn = retrieve_class_or_fn


def _follow_models() -> None:
    """Make the configuration of a model contain that of its current optimizer and the positions of local variables."""
    get_config, from_config = keras.Model.get_compile_config, keras.Model.compile_from_config

    @functools.wraps(get_config)
    def get_compile_config(model: Any) -> Any:
        config = get_config(model)
        optimizer = getattr(model, "optimizer", None)
        if config and isinstance(optimizer, DistributedMixin):
            # Keras has recorded the optimizer that the model was compiled with. Another one may have replaced it.
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
    """Make Keras's file readers create plain optimizers, and HDF5 files record how an optimizer was distributed."""
    load_model, describe = saving_lib.load_model, saving_utils.model_metadata
    arguments_of = saving_utils.compile_args_from_training_config

    @functools.wraps(load_model)
    def load_file(*args: Any, **kwargs: Any) -> Any:
        now = purposes.purpose()
        with purposes.wanted(purposes.FILE if now == purposes.COPY else now):
            return load_model(*args, **kwargs)

    # HDF5 files have another form of the configuration, with separate functions that write and read it.
    @functools.wraps(describe)
    def model_metadata(model: Any, *args: Any, **kwargs: Any) -> Any:
        metadata = describe(model, *args, **kwargs)
        config = metadata.get("training_config", {}).get("optimizer_config")
        if config is not None and isinstance(model.optimizer, DistributedMixin):
            config[_KEY] = _noted(model.optimizer)
        return metadata

    @functools.wraps(arguments_of)
    def compile_args_from_training_config(training_config: Any, *args: Any, **kwargs: Any) -> Any:
        # Keras reads some of these configurations without retrieve_class_or_fn(), so the warning is given here.
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
