"""``horovod.keras``: the functions of :mod:`horocache.keras`, with the argument order of Horovod's ``horovod.keras``.

Horovod's ``horovod.tensorflow.keras`` has another order, which is that of :mod:`horocache.keras`.
"""

import importlib
from typing import Any, NoReturn

import horocache.keras as _keras
from horocache.keras import *  # noqa: F403
from horocache.keras import Average, global_process_set

from horocache.compat.missing import attribute_error

callbacks = importlib.import_module(".callbacks", __name__)  # replaces horocache.keras.callbacks, imported by *


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
    **more: Any,
) -> Any:
    """Wrap a Keras optimizer so that each step uses gradients reduced over all ranks.

    Args:
        optimizer: any ``keras.optimizers.Optimizer`` of Keras 3.
        name: the name of the wrapped optimizer; by default unchanged.
        device_dense: accepted because Horovod has it, and ignored.
        device_sparse: accepted because Horovod has it, and ignored.
        compression: a class of ``Compression``, or a custom compressor, the same on all ranks; None for none.
        sparse_as_dense: with TensorFlow, True makes ``tf.IndexedSlices`` dense before they are reduced; False gathers
            them.
        gradient_predivide_factor: with Average, the gradients are divided by this factor before the sum, and by the
            number of ranks over this factor after it.
        op: Average, Sum, Min, Max or Product; with TensorFlow and torch also Adasum.
        num_groups: the number of groups into which the gradients are split; each group is reduced as one operation. 0
            reduces every gradient by an operation of its own.
        groups: a number, with the meaning of ``num_groups``; or lists of Keras variables, each list reduced as one
            operation.
        more: ``backward_passes_per_step``, ``average_aggregated_gradients``, ``process_set`` and
            ``scale_local_gradients`` of :func:`horocache.keras.DistributedOptimizer`.

    Returns:
        An instance of a class that derives from the class of ``optimizer``.

    Raises:
        ValueError: an argument is invalid, or ``optimizer`` is distributed already. NotInitializedError: called before
            ``init()``.
    """
    front = (optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op)
    return _keras.DistributedOptimizer(*front, num_groups=num_groups, groups=groups, **more)


def PartialDistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    groups: Any = None,
    process_set: Any = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    **more: Any,
) -> Any:
    """Wrap a Keras optimizer so that each step uses reduced gradients, except for those of ``local_layers``.

    Args:
        optimizer: any ``keras.optimizers.Optimizer`` of Keras 3.
        name: the name of the wrapped optimizer; by default unchanged.
        device_dense: accepted because Horovod has it, and ignored.
        device_sparse: accepted because Horovod has it, and ignored.
        compression: a class of ``Compression``, or a custom compressor, the same on all ranks; None for none.
        sparse_as_dense: with TensorFlow, True makes ``tf.IndexedSlices`` dense before they are reduced; False gathers
            them.
        gradient_predivide_factor: with Average, the gradients are divided by this factor before the sum, and by the
            number of ranks over this factor after it.
        op: Average, Sum, Min, Max or Product; with TensorFlow and torch also Adasum.
        groups: a number of groups into which the gradients are split, each reduced as one operation; or lists of Keras
            variables, each list reduced as one operation.
        process_set: the ranks that take part.
        local_layers: a built Keras layer, or several, whose gradients stay on their ranks.
        scale_local_gradients: True divides the gradients of the local layers by the number of ranks.
        more: ``backward_passes_per_step``, ``average_aggregated_gradients`` and ``num_groups`` of
            :func:`horocache.keras.DistributedOptimizer`.

    Returns:
        An instance of a class that derives from the class of ``optimizer``.

    Raises:
        ValueError: an argument is invalid, or ``optimizer`` is distributed already. NotInitializedError: called before
            ``init()``.
    """
    front = (optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op)
    more |= {"groups": groups, "process_set": process_set, "scale_local_gradients": scale_local_gradients}
    return _keras.PartialDistributedOptimizer(*front, local_layers=local_layers, **more)


def __getattr__(name: str) -> NoReturn:
    raise attribute_error("horovod.keras", name)
