"""Horovod's function for optimizers: those of Keras 3, and those of TensorFlow 1 in ``tf.compat.v1.train``."""

from __future__ import annotations

from typing import Any

from horocache.tensorflow.compression import Compression
from horocache.tensorflow.sessions import distributed_v1

import tensorflow as tf
from horocache.collectives.api import Average
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer so that each step uses gradients reduced over all ranks.

    See :func:`horocache.keras.DistributedOptimizer`, whose arguments have another order.

    Args:
        optimizer: of Keras 3, or of ``tf.compat.v1.train``, for graphs and sessions of TensorFlow 1. The other
            arguments are as there but for one.
        name: as there.
        use_locking: as for ``tf.compat.v1.train.Optimizer``; not used for Keras.
        device_dense: as there.
        device_sparse: as there.
        compression: as there.
        sparse_as_dense: as there.
        backward_passes_per_step: as there.
        op: as there.
        gradient_predivide_factor: as there.
        average_aggregated_gradients: as there.
        num_groups: as there.
        groups: as there.
        process_set: as there.
        scale_local_gradients: as there.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return distributed_v1(
            optimizer,
            name,
            use_locking,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
        )
    from horocache import keras  # noqa: PLC0415  (Keras takes seconds, and is not needed with tapes)

    return keras.DistributedOptimizer(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
