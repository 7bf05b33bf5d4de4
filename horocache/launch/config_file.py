"""``--config-file``: the arguments of ``horocacherun`` in YAML, with the keys that Horovod gives them.

The file is turned into arguments, which are read before those of the command line; so the command line prevails, and a
bad value gets the same error from both.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from horocache.launch.usage import UsageError

# Of each section: key -> argument, or for a switch the arguments for true and false.
_SECTIONS: dict[str, dict[str, str | tuple[str, str]]] = {
    "params": {
        "fusion_threshold_mb": "--fusion-threshold-mb",
        "cycle_time_ms": "--cycle-time-ms",
        "cache_capacity": "--cache-capacity",
        "hierarchical_allreduce": ("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
        "hierarchical_allgather": ("--hierarchical-allgather", "--no-hierarchical-allgather"),
        "torus_allreduce": ("--torus-allreduce", "--no-torus-allreduce"),
    },
    "autotune": {
        "enabled": ("--autotune", "--no-autotune"),
        "log_file": "--autotune-log-file",
        "warmup_samples": "--autotune-warmup-samples",
        "steps_per_sample": "--autotune-steps-per-sample",
        "bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
        "gaussian_process_noise": "--autotune-gaussian-process-noise",
    },
    "timeline": {
        "filename": "--timeline-filename",
        "mark_cycles": ("--timeline-mark-cycles", "--no-timeline-mark-cycles"),
    },
    "stall_check": {
        "enabled": ("--stall-check", "--no-stall-check"),
        "warning_time_seconds": "--stall-check-warning-time-seconds",
        "shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    },
    "library_options": {
        "mpi_threads_disable": ("--mpi-threads-disable", "--no-mpi-threads-disable"),
        "num_nccl_streams": "--num-nccl-streams",
        "thread_affinity": "--thread-affinity",
        "gloo_timeout_seconds": "--gloo-timeout-seconds",
    },
    "logging": {
        "level": "--log-level",
        "with_timestamp": ("--log-with-timestamp", "--log-without-timestamp"),
    },
}
_CONTROLLERS = ("gloo", "mpi", "jsrun")


def arguments_of(path: str) -> list[str]:
    """The command-line arguments that a configuration file stands for.

    Raises:
        UsageError: it cannot be read, is no YAML, or has a section, key or value that is not known; names it.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config-file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config-file {path} is no YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return []
    if not isinstance(content, dict):
        raise UsageError(f"--config-file {path}: expected sections such as 'params:', not {content!r}")
    arguments: list[str] = []
    for section, values in content.items():
        arguments += _of_section(path, str(section), values)
    return arguments


def _of_section(path: str, section: str, values: Any) -> Iterator[str]:
    if section == "controller":
        yield from _of_controller(path, values)
        return
    keys = _SECTIONS.get(section)
    if keys is None:
        raise UsageError(f"--config-file {path} has no section '{section}'{_nearest(section, _SECTIONS)}")
    if not values:  # a heading with nothing below it
        return
    if not isinstance(values, dict):
        raise UsageError(f"--config-file {path}: section '{section}' has keys and values, not {values!r}")
    for key, value in values.items():
        argument = keys.get(str(key))
        if argument is None:
            raise UsageError(f"--config-file {path}: section '{section}' has no key '{key}'{_nearest(str(key), keys)}")
        if value is None or (section == "autotune" and key != "enabled" and not values.get("enabled")):
            continue  # not set, or about what is switched off
        if isinstance(argument, str):
            yield f"{argument}={value}"
        elif isinstance(value, bool):
            yield argument[0] if value else argument[1]
        else:
            raise UsageError(f"--config-file {path}: {section}.{key} is {value!r}; it is true or false")


def _of_controller(path: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if str(value).lower() not in _CONTROLLERS:
        raise UsageError(f"--config-file {path}: controller is {value!r}; it is one of {', '.join(_CONTROLLERS)}")
    yield f"--{str(value).lower()}"


def _nearest(word: str, known: Any) -> str:
    nearest = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{nearest[0]}'?" if nearest else f"; there are {', '.join(known)}"
