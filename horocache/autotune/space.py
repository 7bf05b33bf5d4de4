"""The settings that autotune tries: ordered lists of values, and the text that sets a point on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Value = int | float
Point = Mapping[str, Value]

_MIB = 1 << 20
FUSION_THRESHOLDS = (0, *(size * _MIB for size in (1, 2, 4, 8, 16, 32, 64, 128)))  # bytes
CYCLE_TIMES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # milliseconds
# 0 reduces each gradient by itself, which is the limit of many groups, so it comes last.
NUM_GROUPS = (1, 2, 3, 5, 10, 20, 0)
# Setting -> the selector rule that it switches on.
HIERARCHICAL = {
    "hierarchical_allreduce": "allreduce=mpi/twolevel",
    "hierarchical_allgather": "allgather=mpi/twolevel",
}


class Parameter(NamedTuple):
    """A setting to tune.

    Attributes:
        name: a key of points.
        values: the values to try, in an order in which neighbours have similar effects.
        default: the value that the job has without autotune; one of ``values``.
    """

    name: str
    values: tuple[Value, ...]
    default: Value


def parameter(name: str, values: tuple[Value, ...], default: Value) -> Parameter:
    """Return a parameter; a default that the values lack is put before the first larger one, or at the end."""
    if default not in values:
        place = next((i for i, value in enumerate(values) if value > default), len(values))
        values = (*values[:place], default, *values[place:])
    return Parameter(name, values, default)


def default_point(space: tuple[Parameter, ...]) -> dict[str, Value]:
    """Return the point of all defaults."""
    return {each.name: each.default for each in space}


def table_of(point: Point, rules: str) -> str:
    """Return the selector rules of a point.

    Args:
        point: values of ``table`` (1: take ``rules``) and of the hierarchical settings, if they are tuned.
        rules: those of the job's tuning table.
    """
    chosen = [rule for name, rule in HIERARCHICAL.items() if point.get(name)]
    return ";".join([*chosen, *([rules] if rules and point.get("table", 1) else [])])


def settings_text(point: Point, rules: str, last_table: str) -> str:
    """Return the lines for ``runtime.configure``.

    Args:
        point: the values to set; ``num_groups`` is not among the lines, because it travels in the note.
        rules: those of the job's tuning table.
        last_table: the rules that are in force. Equal ones are left out, because a new table empties the cache.
    """
    lines = [f"{name}={point[name]:g}" for name in ("cycle_time",) if name in point]
    lines += [f"{name}={point[name]}" for name in ("fusion_threshold", "cache") if name in point]
    table = table_of(point, rules)
    if table != last_table:
        lines.append(f"table={table}")
    return "\n".join(lines)
