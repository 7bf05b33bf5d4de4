"""``horovod.keras``: the functions of :mod:`horocache.keras`, with arguments in the order that they have here.

``horovod.tensorflow.keras``, whose order is that of :mod:`horocache.keras`, has another one.
"""

import importlib
from typing import Any, NoReturn

import horocache.keras as _keras
from horocache.keras import *  # noqa: F403
from horocache.keras import Average, global_process_set

from horocache.compat.missing import attribute_error

callbacks = importlib.import_module(".callbacks", __name__)  # or the name stays what horocache.keras has by it


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
    """:func:`horocache.keras.DistributedOptimizer`; what it has besides is given by name."""
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
    """:func:`horocache.keras.PartialDistributedOptimizer`; what it has besides is given by name."""
    front = (optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op)
    more |= {"groups": groups, "process_set": process_set, "scale_local_gradients": scale_local_gradients}
    return _keras.PartialDistributedOptimizer(*front, local_layers=local_layers, **more)


def __getattr__(name: str) -> NoReturn:
    raise attribute_error("horovod.keras", name)
