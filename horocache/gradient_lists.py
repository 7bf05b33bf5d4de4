"""The gradients of one step as a list: submitted one by one, the last layer's first, and waited for together."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from horocache.ops import Collectives, synchronize
from horocache.training import GradientOptions, buckets

T = TypeVar("T")


def gradient_names(kinds: Sequence[str], variables: Sequence[Any], prefix: str) -> list[str]:
    """A name for each gradient that is the same on all ranks.

    Frameworks number layers through all models of a process, which need not be the same everywhere. So names have a
    gradient's place in the list, the last part of its variable's name, and what tells the list from other models'.

    Args:
        kinds: element type and shape of each.
        variables: what each is the gradient of.
        prefix: the beginning of all names.
    """
    model = f"{zlib.crc32(';'.join(kinds).encode()):08x}"
    return [f"{prefix}.{model}.{number}.{leaf}" for number, leaf in enumerate(map(_leaf, variables))]


def _leaf(variable: Any) -> str:
    name = str(getattr(variable, "name", "variable")).rsplit("/", maxsplit=1)[-1]
    return re.sub(r"(_\d+)?(:\d+)?$", "", name)


def reduce_list(
    collectives: Collectives[T],
    gradients: Sequence[T | None],
    names: Sequence[str],
    options: GradientOptions,
    number_of: Callable[[Any], int | None],
) -> list[T | None]:
    """The gradients, reduced over the ranks.

    Args:
        collectives: of the tensors' framework.
        gradients: with None for what has none, on all ranks alike.
        names: of all of them; see :func:`gradient_names`.
        options: how to reduce.
        number_of: the number of a parameter of the user's groups; None if it has no gradient.

    Returns:
        New tensors, and None where there was None.
    """
    reduced = list(gradients)
    if not options.takes_part:
        return reduced
    # Backward passes compute the gradient of the last variable first.
    order = [number for number in reversed(range(len(reduced))) if reduced[number] is not None]
    known: list[Any] = list(gradients)
    sizes = [0 if each is None else int(each.nbytes) for each in known]
    dtypes = [None if each is None else each.dtype for each in known]
    started = []
    for bucket in buckets(order, sizes, dtypes, options, number_of):
        _, name = bucket.name(names)
        tensors = [known[number] for number in bucket.members]
        started.append((bucket, collectives.start_gradients(tensors, name, options, bucket.group)))
    for bucket, handle in started:
        results = synchronize(handle)
        for number, each in zip(bucket.members, results if bucket.group else [results], strict=True):
            reduced[number] = each
    return reduced
