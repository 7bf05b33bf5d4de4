"""Reduces the gradients of one step, given as a list: submits them, the last layer's first, then waits for all."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.collectives.api import Collectives, synchronize
from horocache.core import context
from horocache.data_parallel.options import GradientOptions, buckets

T = TypeVar("T")


def gradient_names(variables: Sequence[Any], prefix: str) -> list[str]:
    """Return a name for each gradient, which is the same on all ranks.

    Frameworks number layers across all models of a process, which may differ from rank to rank. So the name of a
    gradient does not use these numbers: it has the gradient's position in the list, the last part of its variable's
    name, and a checksum that distinguishes models of different structure. The checksum does not depend on sizes, so
    that ranks whose sizes differ get an error that says so. For example: ``grads.14236546.0.kernel``.

    Args:
        variables: the variable of each gradient, whose ``name`` and ``shape`` are used if it has them.
        prefix: the beginning of all names.
    """
    leaves = [_leaf(variable) for variable in variables]
    kinds = [f"{leaf}:{_dimensions(variable)}" for leaf, variable in zip(leaves, variables, strict=True)]
    model = f"{zlib.crc32(';'.join(kinds).encode()):08x}"
    return [f"{prefix}.{model}.{number}.{leaf}" for number, leaf in enumerate(leaves)]


def _leaf(variable: Any) -> str:
    name = str(getattr(variable, "name", "variable")).rsplit("/", maxsplit=1)[-1]
    return re.sub(r"(_\d+)?(:\d+)?$", "", name)


def _dimensions(variable: Any) -> int:
    shape = getattr(variable, "shape", ())
    return -1 if getattr(shape, "rank", 0) is None else len(shape)  # unknown in TensorFlow before a graph runs


def reduce_list(
    collectives: Collectives[T],
    gradients: Sequence[T | None],
    variables: Sequence[Any],
    options: GradientOptions,
    prefix: str,
) -> list[T | None]:
    """Reduce the gradients over the ranks.

    Args:
        collectives: the collectives of the tensors' framework.
        gradients: the gradients; None for a variable without a gradient, the same on all ranks.
        variables: the variable of each gradient, for names and the user's groups.
        options: the options for the reduction.
        prefix: the beginning of the operations' names.

    Returns:
        New tensors, and None where ``gradients`` has None.
    """
    reduced = list(gradients)
    context.count_step()
    if not options.takes_part:
        return reduced
    names = gradient_names(variables, prefix)
    number_of = {id(variable): number for number, variable in enumerate(variables)}
    # Backward passes compute the gradient of the last variable first.
    order = [number for number in reversed(range(len(reduced))) if reduced[number] is not None]
    known: list[Any] = list(gradients)
    sizes = [0 if each is None else int(each.nbytes) for each in known]
    dtypes = [None if each is None else each.dtype for each in known]
    scales = (options.prescale, options.postscale)
    call = (options.op, scales, options.process_set, options.compression)
    started = []
    for bucket in buckets(order, sizes, dtypes, options, lambda variable: number_of.get(id(variable))):
        _, name = bucket.name(names)
        tensors = [known[number] for number in bucket.members]
        started.append((bucket, collectives.start_gradients(tensors, name, *call, group=bucket.group)))
    for bucket, handle in started:
        results = synchronize(handle)
        for number, each in zip(bucket.members, results if bucket.group else [results], strict=True):
            reduced[number] = each
    return reduced
