"""``--config-file``: the arguments of ``horocacherun`` in YAML, with Horovod's keys.

The file is converted to arguments, which are parsed before those of the command line. The command line therefore
prevails, and a bad value gets the same error from both.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from horocache.base.untrusted_text import read_bounded
from horocache.base.usage import UsageError

_MOST_BYTES = 1 << 20  # bytes; the largest configuration file
_MOST_VALUE = 4096  # characters; the longest value, such as a path
_MOST_SAID = 300  # characters of the file that an error quotes

# Section -> key -> argument. A switch has two arguments, one for true and one for false.
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


_NOTHING = (None, "", "~", "null")
_SWITCHES = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}


class _Loader(yaml.BaseLoader):  # type: ignore[misc]  # no types
    """Loads every scalar as a string and refuses aliases, with which a short file can expand without limit."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"an alias, '*{self.peek_event().anchor}', is not known here; write its value")
        return super().compose_node(parent, index)


def arguments_of(path: str) -> list[str]:
    """Return the command-line arguments that a configuration file stands for.

    Raises:
        UsageError: the file cannot be read, is not YAML, or has an unknown section, key or value; the error names it.
    """
    try:
        content = yaml.load(read_bounded(Path(path), _MOST_BYTES).decode(), _Loader)  # noqa: S506  (makes only strings)
    except OSError as error:
        raise UsageError(f"--config-file {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"--config-file {path} is not YAML: {' '.join(str(error).split())[:_MOST_SAID]}") from error
    if content in _NOTHING:
        return []
    if not isinstance(content, dict):
        raise UsageError(f"--config-file {path}: expected sections such as 'params:', not {reprlib.repr(content)}")
    arguments: list[str] = []
    for section, values in content.items():
        arguments += _of_section(path, _word(section), values)
    return arguments


def _of_section(path: str, section: str, values: Any) -> Iterator[str]:
    if section == "controller":
        yield from _of_controller(path, values)
        return
    keys = _SECTIONS.get(section)
    if keys is None:
        raise UsageError(f"--config-file {path} has no section '{section}'{_nearest(section, _SECTIONS)}")
    if not values or values in _NOTHING:  # a heading without entries
        return
    if not isinstance(values, dict):
        raise UsageError(f"--config-file {path}: section '{section}' has keys and values, not {reprlib.repr(values)}")
    if section == "autotune" and not _switch(values.get("enabled")):  # its other keys have no effect then
        values = {key: None if key in keys and key != "enabled" else value for key, value in values.items()}
    for key, value in values.items():
        argument = keys.get(_word(key))
        if argument is None:
            nearest = _nearest(_word(key), keys)
            raise UsageError(f"--config-file {path}: section '{section}' has no key '{_word(key)}'{nearest}")
        if value not in _NOTHING:
            yield _argument(path, f"{section}.{key}", argument, value)


def _argument(path: str, key: str, argument: str | tuple[str, str], value: Any) -> str:
    if isinstance(argument, str):
        return f"{argument}={_scalar(path, key, value)}"
    on = _switch(value)
    if on is None:
        raise UsageError(f"--config-file {path}: {key} is {reprlib.repr(value)}; it is true or false")
    return argument[0] if on else argument[1]


def _of_controller(path: str, value: Any) -> Iterator[str]:
    if value in _NOTHING:
        return
    if not isinstance(value, str) or value.lower() not in _CONTROLLERS:
        raise UsageError(
            f"--config-file {path}: controller is {reprlib.repr(value)}; it is one of {', '.join(_CONTROLLERS)}"
        )
    yield f"--{value.lower()}"


def _word(key: str) -> str:
    return key if len(key) <= _MOST_SAID else reprlib.repr(key)


def _scalar(path: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or len(value) > _MOST_VALUE:
        raise UsageError(f"--config-file {path}: {key} is {reprlib.repr(value)}; it is a number or a text")
    return value


def _switch(value: Any) -> bool | None:
    return _SWITCHES.get(value.lower()) if isinstance(value, str) else None


def _nearest(word: str, known: Any) -> str:
    nearest = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{nearest[0]}'?" if nearest else f"; there are {', '.join(known)}"
