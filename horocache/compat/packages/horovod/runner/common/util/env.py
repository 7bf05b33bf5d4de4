"""``horovod.runner.common.util.env``: questions about this process's environment variables."""

import re

from horocache.core.launcher_environment import own_environment

IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*SECRET.*"}
_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def is_exportable(variable: str) -> bool:
    """Return True if a variable may be passed to processes on other hosts."""
    return not any(re.match(expression, variable) for expression in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return the rank and the number of ranks that a launcher has set; 0 and 1 without a launcher.

    Raises:
        RuntimeError: a launcher has set only one of the two.
    """
    environment = own_environment()
    for rank_variable, size_variable in _LAUNCHERS:
        rank, size = environment.get(rank_variable), environment.get(size_variable)
        if rank is not None and size is not None:
            return int(rank), int(size)
        if rank is not None or size is not None:
            there, missing = (rank_variable, size_variable) if size is None else (size_variable, rank_variable)
            raise RuntimeError(
                f"Could not determine process rank and size: {there} is in the environment, and {missing} is not."
            )
    return 0, 1
