"""Broadcasts Keras variables, with every backend of Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import keras
from horocache.collectives.api import synchronize
from horocache.collectives.numpy import collectives
from horocache.collectives.object_collectives import allgather_object
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import MismatchError

# NumPy lacks bfloat16 and float8. They are sent as integers with the same bits: item size in bytes -> integer type.
_MOVED_AS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite every rank's Keras variables with the root's.

    Args:
        variables: Keras variables, such as ``model.variables``; the same shapes and types in the same order on all
            ranks.
        root_rank: the rank that sends its values; a global rank in the set.
        process_set: the ranks that take part.

    Raises:
        MismatchError: number, shapes or types of the variables differ between ranks; names the first variable that
            differs.
        InvalidArgumentError: ``root_rank`` is not in the process set.
    """
    _check_alike(variables, process_set)
    values = [np.asarray(keras.ops.convert_to_numpy(variable), order="C") for variable in variables]
    by_dtype: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        by_dtype.setdefault(value.dtype, []).append(index)
    started = []
    for dtype, members in by_dtype.items():
        arrays = [_movable(values[index]) for index in members]
        name = f"variables.{dtype.name}"
        started.append((members, collectives.grouped_broadcast_async(arrays, root_rank, name, process_set)))
    for members, handle in started:
        for index, moved in zip(members, synchronize(handle), strict=True):
            variables[index].assign(moved.view(values[index].dtype).reshape(values[index].shape))


def _movable(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return value.reshape(-1).view(_MOVED_AS[value.dtype.itemsize]) if value.dtype.kind == "V" else value


def _check_alike(variables: Sequence[Any], process_set: ProcessSet) -> None:
    own = [f"{variable.dtype}{list(variable.shape)}" for variable in variables]
    everybodys = allgather_object(own, "variables.kinds", process_set)
    for rank, other in zip(process_set.ranks, everybodys, strict=False):
        if other == own:
            continue
        if len(other) != len(own):
            raise MismatchError(
                f"broadcast_variables: this rank has {len(own)} variables, rank {rank} has {len(other)}."
            )
        index = next(i for i, kind in enumerate(own) if other[i] != kind)
        raise MismatchError(
            f"broadcast_variables: {variables[index].path} is {own[index]} on this rank, and {other[index]} on rank "
            f"{rank}. Build the same model everywhere."
        )
