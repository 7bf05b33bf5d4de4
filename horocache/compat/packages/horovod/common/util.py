"""``horovod.common.util``: the helpers that programs use."""

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


def env(**variables: str | None) -> AbstractContextManager[None]:
    """Set variables of the environment for a while; those that are None stay as they are."""
    return environment_with(variables)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is at least ``target``: both are numbers with dots, as in 2.4.1.

    A version that comes before a release, such as 2.4.1rc0, is less than it; what follows a ``+`` does not count.

    Raises:
        ValueError: one of them is no such string.
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
    """Whether ranks on several hosts can talk over MPI."""
    return bool(build_info.mpi_built())


def gloo_built(verbose: bool = False) -> bool:
    """Whether Gloo is used: never, as ranks on one host talk in shared memory."""
    return bool(build_info.gloo_built())


def nccl_built(verbose: bool = False) -> bool:
    """Whether NCCL is used: not in this version."""
    return bool(build_info.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    """Whether IBM's DDL is used: never."""
    return bool(build_info.ddl_built())


def ccl_built(verbose: bool = False) -> bool:
    """Whether oneCCL is used: never."""
    return bool(build_info.ccl_built())


def cuda_built(verbose: bool = False) -> bool:
    """Whether tensors on a GPU can be sent by CUDA: not in this version."""
    return bool(build_info.cuda_built())


def rocm_built(verbose: bool = False) -> bool:
    """Whether tensors on a GPU can be sent by ROCm: not in this version."""
    return bool(build_info.rocm_built())
