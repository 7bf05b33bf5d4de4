"""The drawing of a sharding: groups, their devices and experts, and the links that matter."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import numpy as np

from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.moe.placement.model import Group, spanning_tree
from horocache.moe.placement.sharding import Sharding
from horocache.moe.placement.topology import Floats, Topology, ranges

_MESSAGE_BYTES = 1 << 20  # links are coloured by the time of a message of this size
_ALL_LINKS = 8  # devices of a group up to which all its links are drawn; of a larger one, a tree of its fastest links
_LABEL_EXPERTS = 24  # letters of a device's list of experts
_INCHES_PER_DEVICE = 1.15  # along the circle of a group
_MARGIN_INCHES = 0.9


class _Circle(NamedTuple):
    """Where a group's devices lie."""

    centre: tuple[float, float]
    radius: float  # of the circle on which the devices are; inches
    places: dict[int, tuple[float, float]]


def draw(sharding: Sharding, topology: Topology, path: str | os.PathLike[str]) -> None:
    """Draw a sharding into an SVG file.

    Each ring of devices is a group, with its cost. Each box is a device, with the experts that it holds; a device
    without experts is grey. The colour of a link is the time of a message of 1 MiB. The dashed line is the slowest
    link between groups. Equal arguments and an equal matplotlib give equal bytes.

    Args:
        sharding: a result of :func:`shard`.
        topology: the topology of that call.
        path: of the file to write.

    Raises:
        InvalidArgumentError: the topology has another number of devices than the sharding.
        UnsupportedError: matplotlib is not installed. OSError: the file cannot be written.
    """
    if topology.devices != len(sharding.experts):
        raise InvalidArgumentError(
            f"the topology has {topology.devices} devices, the sharding {len(sharding.experts)}; draw the "
            "sharding with the topology that it was made of."
        )
    try:
        import matplotlib as mpl  # noqa: PLC0415  (an optional library)
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as missing:
        raise UnsupportedError("drawing needs matplotlib: pip install 'horocache[moe]'.") from missing
    circles, size = _layout(sharding)
    one_way = np.asarray(topology.alpha_s) + np.asarray(topology.beta_s_per_byte) * _MESSAGE_BYTES
    seconds: Floats = np.maximum(one_way, one_way.T)
    figure = Figure(figsize=(size[0], size[1] + 1.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(0.0, size[0])
    axes.set_ylim(0.0, size[1])
    axes.set_aspect("equal")
    _draw_links(mpl, figure, axes, sharding, circles, seconds)
    for number, circle in enumerate(circles):
        _draw_group(axes, sharding, number, circle)
    axes.set_title(_title(sharding), fontsize=9, parse_math=False)
    # Without these two, the file would have the time and random names in it.
    with mpl.rc_context({"svg.hashsalt": "horocache", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _layout(sharding: Sharding) -> tuple[list[_Circle], tuple[float, float]]:
    """The groups on a grid of equal cells, and the size of the grid in inches."""
    columns = math.ceil(math.sqrt(len(sharding.groups)))
    largest = max(map(len, sharding.groups))
    cell = 2 * (_radius(largest) + _MARGIN_INCHES)
    rows = math.ceil(len(sharding.groups) / columns)
    circles = []
    for number, group in enumerate(sharding.groups):
        row, column = divmod(number, columns)
        x, y = (column + 0.5) * cell, (rows - row - 0.5) * cell
        radius = _radius(len(group))
        angles = [math.pi / 2 - 2 * math.pi * i / len(group) for i in range(len(group))]
        points = [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]
        circles.append(_Circle((x, y), radius, dict(zip(group, points, strict=True))))
    return circles, (columns * cell, rows * cell)


def _radius(devices: int) -> float:
    return 0.0 if devices == 1 else max(0.7, devices * _INCHES_PER_DEVICE / (2 * math.pi))


def _links_of(group: Group, seconds: Floats) -> list[tuple[int, int]]:
    if len(group) <= _ALL_LINKS:
        return [(i, j) for i in group for j in group if i < j]
    edges = spanning_tree(seconds[list(group)][:, list(group)])
    return [(group[u], group[v]) for u, v in edges]


def _slowest_between(sharding: Sharding, seconds: Floats) -> tuple[int, int]:
    label = np.empty(len(seconds), np.int64)
    for number, group in enumerate(sharding.groups):
        label[list(group)] = number
    between = np.where(label[:, None] != label[None, :], seconds, -1.0)
    i, j = np.unravel_index(int(np.argmax(between)), between.shape)
    return int(i), int(j)


def _draw_links(mpl: Any, figure: Any, axes: Any, sharding: Sharding, circles: list[_Circle], seconds: Floats) -> None:
    """The links of each group, the slowest link between groups, and the scale of their colours."""
    drawn = [(i, j, "-") for group in sharding.groups for i, j in _links_of(group, seconds)]
    if len(sharding.groups) > 1:
        drawn.append((*_slowest_between(sharding, seconds), "--"))
    if not drawn:
        return
    places = {device: place for circle in circles for device, place in circle.places.items()}
    times = [1e3 * float(seconds[i, j]) for i, j, _ in drawn]
    low, high = min(times), max(*times, min(times) + 1e-3)
    logarithmic = low > 0 and high > 10 * low
    norm = (mpl.colors.LogNorm if logarithmic else mpl.colors.Normalize)(low, high)
    colours = mpl.colormaps["viridis_r"]
    for (i, j, style), time in zip(drawn, times, strict=True):
        (x0, y0), (x1, y1) = places[i], places[j]
        axes.plot([x0, x1], [y0, y1], style, color=colours(norm(time)), linewidth=1.4, zorder=1)
    scale = mpl.cm.ScalarMappable(norm, colours)
    ticks = [low, math.sqrt(low * high) if logarithmic else (low + high) / 2, high]
    bar = figure.colorbar(scale, ax=axes, location="bottom", shrink=0.5, pad=0.02)
    bar.ax.minorticks_off()
    bar.set_ticks(ticks, labels=[f"{each:.3g}" for each in ticks])
    bar.set_label("time of 1 MiB, ms; dashed: the slowest link between groups", fontsize=7)


def _draw_group(axes: Any, sharding: Sharding, number: int, circle: _Circle) -> None:
    x, y = circle.centre
    cost = sharding.costs[number]
    worst = number == sharding.bottleneck and len(sharding.groups) > 1
    axes.text(
        x,
        y + circle.radius + 0.45,
        f"group {number}: {_milliseconds(cost.seconds)}" + (", the most expensive" if worst else ""),
        ha="center",
        fontsize=8,
        fontweight="bold" if worst else "normal",
    )
    for device, place in circle.places.items():
        experts = sharding.experts[device]
        shown = ranges(experts)
        if len(shown) > _LABEL_EXPERTS:
            shown = f"{shown[: _LABEL_EXPERTS - 3]}..."
        what = f"{'experts' if len(experts) > 1 else 'expert'} {shown}" if experts else "no expert"
        colour = "#dce6f2" if experts else "#e0e0e0"
        box = {"boxstyle": "round", "facecolor": colour, "edgecolor": "#506080"}
        axes.text(*place, f"device {device}\n{what}", ha="center", va="center", fontsize=7, bbox=box, zorder=2)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


def _title(sharding: Sharding) -> str:
    parts = (
        f"computation {_milliseconds(sharding.computation)}, communication {_milliseconds(sharding.communication)}, "
        f"allreduce {_milliseconds(sharding.allreduce)}"
    )
    proved = "optimal" if sharding.optimal else "not proved to be optimal"
    return f"{_milliseconds(sharding.objective)} per step, {sharding.solver} ({proved})\n{parts}"
