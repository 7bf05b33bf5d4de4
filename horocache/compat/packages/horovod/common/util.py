"""``horovod.common.util``: helpers that programs use."""

import importlib.util
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, TypeVar

from horocache.core import build_info
from horocache.core.launcher_environment import environment_with

T = TypeVar("T")


def is_iterable(value: Any) -> bool:
    """Return True if ``value`` can be iterated over."""
    return isinstance(value, Iterable)


def split_list(values: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Split a list into ``num_parts`` consecutive parts; the first parts are longer by one if the split is uneven."""
    size, extra = divmod(len(values), num_parts)
    starts = [i * size + min(i, extra) for i in range(num_parts + 1)]
    return [values[start:stop] for start, stop in pairwise(starts)]


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Do nothing: horocache compiles nothing for a framework, so an extension cannot be missing."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return True if the framework ``ext_base_name`` (``torch`` or ``tensorflow``) is installed and has a binding."""
    return ext_base_name in ("tensorflow", "torch") and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return False: this version cannot send tensors on a GPU."""
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return True if ``num_rank`` is a power of two, as Adasum requires."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def env(**variables: str | None) -> AbstractContextManager[None]:
    """Return a context in which environment variables have these values; variables that are None do not change."""
    return environment_with(variables)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return True if the version ``ver`` is at least ``target``; both are numbers with dots, such as 2.4.1.

    A pre-release such as 2.4.1rc0 is less than its release. The part after a ``+`` does not count.

    Raises:
        ValueError: ``ver`` or ``target`` is not a string of this form.
    """
    return _order(ver) >= _order(target)


def _order(version: str) -> tuple[tuple[int, ...], bool]:
    found = re.match(r"v?(\d+(?:\.\d+)*)([^+]*)", version) if isinstance(version, str) else None
    if found is None:
        raise ValueError(f"a version is a string of numbers with dots, as in 2.4.1, not {version!r}.")
    numbers = [int(each) for each in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), re.match(r"[._-]?(a|b|c|rc|alpha|beta|pre|preview|dev)", found[2]) is None


def mpi_built(verbose: bool = False) -> bool:
    """Return True if ranks on several hosts can communicate over MPI."""
    return bool(build_info.mpi_built())


def gloo_built(verbose: bool = False) -> bool:
    """Return False: horocache does not use Gloo; ranks on one host communicate through shared memory."""
    return bool(build_info.gloo_built())


def nccl_built(verbose: bool = False) -> bool:
    """Return False: this version does not use NCCL."""
    return bool(build_info.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    """Return False: horocache does not use IBM's DDL."""
    return bool(build_info.ddl_built())


def ccl_built(verbose: bool = False) -> bool:
    """Return False: horocache does not use oneCCL."""
    return bool(build_info.ccl_built())


def cuda_built(verbose: bool = False) -> bool:
    """Return False: this version cannot send tensors on a GPU by CUDA."""
    return bool(build_info.cuda_built())


def rocm_built(verbose: bool = False) -> bool:
    """Return False: this version cannot send tensors on a GPU by ROCm."""
    return bool(build_info.rocm_built())
