"""Horovod's DistributedOptimizer, for optimizers of Keras 3 and of TensorFlow 1 (``tf.compat.v1.train``)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horocache.collectives.api import Average
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.data_parallel.bucketing import NumGroups

from .compression import Compression
from .sessions import distributed_v1


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
    num_groups: NumGroups = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer so that each step uses gradients reduced over all ranks.

    :func:`horocache.keras.DistributedOptimizer` has the same arguments in another order.

    Args:
        optimizer: an optimizer of Keras 3; or one of ``tf.compat.v1.train``, for graphs and sessions of TensorFlow 1.
        name: the name of the wrapped optimizer; by default unchanged, or for ``tf.compat.v1.train`` ``Distributed``
            followed by the name of the optimizer's class.
        use_locking: passed to ``tf.compat.v1.train.Optimizer``; ignored for Keras.
        device_dense: accepted because Horovod has it, and ignored.
        device_sparse: accepted because Horovod has it, and ignored.
        compression: a class of ``Compression``, or a custom compressor; the same on all ranks.
        sparse_as_dense: True makes ``tf.IndexedSlices`` dense before they are reduced; False gathers them.
        backward_passes_per_step: the number of steps whose gradients add up to one that is reduced and applied; 1 for
            optimizers of ``tf.compat.v1.train``.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: with Average, the gradients are divided by this factor before the sum, and by the
            number of ranks over this factor after it.
        average_aggregated_gradients: True averages the gradients of the steps instead of adding them up; ignored for
            optimizers of ``tf.compat.v1.train``.
        num_groups: the number of groups into which the gradients are split; each group is reduced as one operation. 0
            reduces every gradient by an operation of its own. "auto": one group for each 25 MiB, at most 10.
        groups: a number, with the meaning of ``num_groups``; or lists of variables, each list reduced as one operation.
        process_set: the ranks that take part.
        scale_local_gradients: True divides the gradients of local variables by the number of ranks; ignored for
            optimizers of ``tf.compat.v1.train``.

    Returns:
        An optimizer that derives from the class of ``optimizer``; or for ``tf.compat.v1.train`` one that wraps it.

    Raises:
        ValueError: the optimizer is distributed already, or an argument is invalid.
        UnsupportedError: ``backward_passes_per_step`` is not 1 for an optimizer of ``tf.compat.v1.train``.
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
