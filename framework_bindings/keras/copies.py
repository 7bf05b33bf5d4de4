"""Copies of models with distributed optimizers have distributed optimizers.

Keras copies, pickles and saves a model by a configuration. It names the class of the user's optimizer, so that Keras
reads it everywhere, without horocache too. The arguments of DistributedOptimizer stand beside that, under a key that
Keras ignores. ``copy``, ``deepcopy``, ``pickle`` and ``compile_from_config`` use them to distribute the optimizer of
the copy.

A file may be read by one rank alone, or by all to go on training; only the program knows. So Keras's own ``load_model``
gives the user's optimizer and a warning, and :func:`horocache.keras.load_model` distributes it.
"""

from __future__ import annotations

import contextvars
import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from horocache.errors import UnsupportedError
from keras.src.saving import saving_lib

from .backends import backend
from .optimizer import DistributedMixin, distributed_again, sendable

_KEY = "horocache"  # in the configuration of an optimizer
_LOCAL = "local_variables"  # their places among the trainable ones
# What becomes of the optimizer of a model that is made from a configuration.
_COPY, _FILE, _FILE_FOR_US = "distributed", "plain", "distributed by the caller"
_purpose = contextvars.ContextVar("horocache_purpose", default=_COPY)


@contextmanager
def _for_purpose(purpose: str) -> Iterator[None]:
    before = _purpose.set(purpose)
    try:
        yield
    finally:
        _purpose.reset(before)


def load_plain(filepath: Any, **options: Any) -> Any:
    """Keras's ``load_model``, for a caller that distributes the optimizer."""
    with _for_purpose(_FILE_FOR_US):
        return keras.saving.load_model(filepath, **options)


def put_into(model: Any, optimizer: Any) -> None:
    """Let a compiled model go on with another optimizer."""
    model.optimizer = optimizer
    if model.jit_compile:
        # Asked again whether XLA can compile the model, Keras looks at the new optimizer. It ignores the assignment
        # of what is there.
        model.jit_compile = False
        model.jit_compile = True


def _noted(model: Any, optimizer: DistributedMixin) -> dict[str, Any]:
    """How a model's optimizer is distributed, as JSON has it; or why that cannot be told, as ``problem``."""
    arguments = sendable(optimizer._hc_arguments)
    compression = arguments["compression"]
    name = compression.__name__ if isinstance(compression, type) else repr(compression)
    known = {key: each for key, each in vars(backend().Compression).items() if each is compression}
    if not known:
        return {"problem": f"its compression {name} is none of horocache's"}
    local = [i for i, variable in enumerate(model.trainable_variables) if id(variable) in optimizer._hc_local]
    return {**arguments, "compression": next(iter(known)), _LOCAL: local}


def _distribute(model: Any, noted: dict[str, Any]) -> None:
    if "problem" in noted:
        raise UnsupportedError(
            f"this model is a copy of one with a distributed optimizer that cannot be copied: {noted['problem']}. "
            "Compile the copy with hvd.DistributedOptimizer(...)."
        )
    arguments = {key: value for key, value in noted.items() if key != _LOCAL}
    arguments["compression"] = getattr(backend().Compression, noted["compression"])
    distributed = distributed_again(model.optimizer, arguments)
    variables = model.trainable_variables
    for index in noted[_LOCAL]:
        if index >= len(variables):
            raise UnsupportedError(
                "gradients of some variables stay on their ranks, and the copy of the model has no variables yet. "
                "Build it before compile_from_config(), or compile it with hvd.PartialDistributedOptimizer(...)."
            )
        distributed.register_local_var(variables[index])
    put_into(model, distributed)


def _follow_copies() -> None:
    get_config, from_config, load_model = (
        keras.Model.get_compile_config,
        keras.Model.compile_from_config,
        saving_lib.load_model,
    )

    @functools.wraps(get_config)
    def get_compile_config(model: Any) -> Any:
        config = get_config(model)
        optimizer = getattr(model, "optimizer", None)
        if isinstance(optimizer, DistributedMixin) and isinstance(config.get("optimizer"), dict):
            config["optimizer"][_KEY] = _noted(model, optimizer)
        return config

    @functools.wraps(from_config)
    def compile_from_config(model: Any, config: Any) -> None:
        from_config(model, config)
        optimizer = config.get("optimizer")
        noted = optimizer.get(_KEY) if isinstance(optimizer, dict) else None
        if noted is None or getattr(model, "optimizer", None) is None:
            return
        if _purpose.get() == _COPY:
            _distribute(model, noted)
        elif _purpose.get() == _FILE:
            warnings.warn(
                "the model was saved with a distributed optimizer, and its optimizer is not distributed now. To go on "
                "training on several ranks, load it with hvd.load_model().",
                stacklevel=2,
            )

    @functools.wraps(load_model)
    def load_file(*args: Any, **kwargs: Any) -> Any:
        with _for_purpose(_FILE if _purpose.get() == _COPY else _purpose.get()):
            return load_model(*args, **kwargs)

    keras.Model.get_compile_config = get_compile_config
    keras.Model.compile_from_config = compile_from_config
    saving_lib.load_model = load_file


_follow_copies()
