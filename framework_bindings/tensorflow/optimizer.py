"""Horovod's function for optimizers, which Keras 3's are since TensorFlow 2.16."""

from __future__ import annotations

from typing import Any, NoReturn

from horocache.errors import UnsupportedError
from horocache.layers import AnyCompressor
from horocache.ops import Average
from horocache.process_set import ProcessSet, global_process_set

from .compression import Compression


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
    """Wrap an optimizer of Keras 3 so that each step uses gradients reduced over all ranks.

    See :func:`horocache.keras.DistributedOptimizer`, whose arguments have another order.

    Args:
        optimizer: as there, and so are the others but for one.
        name: as there.
        use_locking: accepted because Horovod has it.
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


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Horovod's function for TensorFlow 1: raises UnsupportedError."""
    raise UnsupportedError(
        "broadcast_global_variables() is for graphs of TensorFlow 1; use broadcast_variables(variables, "
        f"root_rank={root_rank})."
    )
