"""``horovod.common.util``: the helpers that programs use."""

import importlib.util
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")


def is_iterable(value: Any) -> bool:
    """Whether one can iterate over it."""
    return isinstance(value, Iterable)


def split_list(values: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Cut a list into ``num_parts`` runs, of which the first ones are longer by one if it does not go even."""
    size, extra = divmod(len(values), num_parts)
    starts = [i * size + min(i, extra) for i in range(num_parts + 1)]
    return [values[start:stop] for start, stop in pairwise(starts)]


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Do nothing: there are no extensions that could be missing, as nothing is compiled for a framework."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is a binding for a framework, such as ``torch``."""
    return ext_base_name in ("tensorflow", "torch") and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether tensors on a GPU can be sent: not in this version."""
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether Adasum can run on so many ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0
