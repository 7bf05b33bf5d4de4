"""The results of dependency graphs: tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.cases.dag_network import FRONT_FIRST, SYNCHRONIZED
from benchmarks.cases.dag_store import DAEMON, OURS
from benchmarks.dag_model import DESIGNS
from benchmarks.figures import Figure
from benchmarks.mixed_plots import bars, pyplot_to_files, save_drawing
from benchmarks.mixed_report import by_case, spread_of
from benchmarks.report import Table, number

FUNNEL, DEPCHA = "Funnel, ascending", "DepCha, ascending"
PRIORITY = "negotiated, front layers first"
NEAR = 0.15  # of the model's duration
LEAST_GAIN = 1.6  # of DepCha over Funnel where copies cost as much as the wire
LEAST_NETWORK_GAIN = 1.1  # of a real network
MOST_US = 3.0  # of a store over the daemon, for a key
MOST_ENGINE_US = 1.0  # of an empty operation


def tables(figures: Mapping[str, Sequence[Figure]]) -> list[Table]:
    """Return the tables of the parts that have results."""
    found = []
    if steps := figures.get("model"):
        found += [_steps(steps), _designs(steps), _overlap(steps)]
    one_of_each = {
        "scaling": _scaling,
        "network": _network,
        "store": _store,
        "engine": _engine,
        "control": _control,
    }
    found += [table(figures[part]) for part, table in one_of_each.items() if part in figures]
    return found


def _steps(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        for name, one in of_case.items():
            expected = one.detail["expected_s"] * 1e3
            off = one.median / expected - 1
            cells = [number(expected), number(one.median), spread_of(one), f"{100 * off:+.1f} %"]
            rows.append([case, name, *cells, verdict(abs(off) <= NEAR)])
    columns = ["case", "design", "model, ms", "measured, ms", "quartiles", "difference", f"within {100 * NEAR:.0f} %"]
    note = "c is the time of a sum on the wire, d of a copy; a layer's passes take 4 and 8 ms, 20 layers."
    return Table("A step in each design, and by the model", columns, rows, note)


def _designs(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        static = [of_case[each.name] for each in DESIGNS if each.lanes and each.name in of_case]
        best = min(static, key=lambda one: one.median)
        gain = of_case[FUNNEL].median / of_case[DEPCHA].median
        ours = of_case[PRIORITY].median / best.median
        rows.append([case, f"{gain:.2f}", best.impl, f"{ours:.3f}"])
    columns = ["case", "Funnel / DepCha", "best static design", f"{PRIORITY} / it"]
    return Table("The designs against each other", columns, rows, f"The goal of the first is {LEAST_GAIN} where d = c.")


def _overlap(figures: Sequence[Figure]) -> Table:
    """Of the shorter of computation and communication, the part that runs beside the other."""
    rows = []
    for case, of_case in by_case(figures).items():
        cells = []
        for one in of_case.values():
            computing, wires = one.detail["computing_s"] * 1e3, one.detail["layers"] * one.detail["wire_s"] * 1e3
            cells.append(f"{(computing + wires - one.median) / min(computing, wires):.2f}")
        rows.append([case, *cells])
    names = list(next(iter(by_case(figures).values())))
    return Table("Overlap of computation and wire", ["case", *names], rows, "1: the shorter one is hidden.")


def _store(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        ours, daemon = of_case[OURS], of_case[DAEMON]
        over = ours.median * (1 - ours.ratio[DAEMON])
        rows.append([case, number(ours.median), number(daemon.median), number(over), verdict(over <= MOST_US)])
    columns = ["case", f"{OURS}, us per key", f"{DAEMON}, us", "over it, us", f"at most {MOST_US:g}"]
    return Table("The cost of a store", columns, rows, "A step pushes all keys and then waits for them.")


def verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def _scaling(figures: Sequence[Figure]) -> Table:
    """Of a step, the part in which the device computes."""
    rows = []
    for case, of_case in by_case(figures).items():
        cells = [
            f"{number(one.median)} ({100 * one.detail['computing_s'] * 1e3 / one.median:.0f} %)"
            for one in of_case.values()
        ]
        rows.append([case, *cells])
    columns = ["case", *next(iter(by_case(figures).values()))]
    return Table("More ranks", columns, rows, "ms per step, and how much of it the device computes.")


def _network(figures: Sequence[Figure]) -> Table:
    rows = []
    names = list(dict.fromkeys(figure.impl for figure in figures))
    for case, of_case in by_case(figures).items():
        ours = of_case[FRONT_FIRST]
        gain = ours.ratio[SYNCHRONIZED]
        judged = verdict(gain >= LEAST_NETWORK_GAIN) if ours.detail["wire"] else ""
        times = [number(of_case[name].median) if name in of_case else "" for name in names]
        rows.append([case, number(ours.detail["computing_s"] * 1e3), *times, f"{gain:.2f}", judged])
    columns = ["case", "computation", *names, "gain", f"at least {LEAST_NETWORK_GAIN}"]
    note = f"ms per step. Gain: of {FRONT_FIRST} over {SYNCHRONIZED}. Sums in shared memory take the cores themselves."
    return Table("Training of real networks", columns, rows, note)


def _engine(figures: Sequence[Figure]) -> Table:
    rows = []
    for one in figures:
        of_model = "lock_ns" in one.detail
        facts = ", ".join(f"{key} {value:g}" for key, value in one.detail.items() if key != "operations")
        judged = "" if of_model else verdict(one.median <= MOST_ENGINE_US)
        rows.append([one.impl, f"{one.median:.3f}", spread_of(one), f"{1 / one.median:.2f}", facts, judged])
    columns = ["way", "us", "quartiles", "million per second", "details", f"at most {MOST_ENGINE_US:g} us"]
    note = (
        "An operation writes a variable and reads another; all threads share one core. The model: what MXNet's engine "
        "does for such an operation, counted, times what each such thing takes here, without the change of threads."
    )
    return Table("Empty operations of the engine", columns, rows, note)


def _control(figures: Sequence[Figure]) -> Table:
    rows = [[one.case, one.impl, one.unit, number(one.value)] for one in figures]
    note = (
        "Two tensors become ready in opposite orders on two ranks. blocked: 1 if the ranks waited for each other until "
        "their main threads made the missing calls."
    )
    return Table("Collectives in the order of readiness", ["case", "way", "of the worse rank", "value"], rows, note)


def _plot_scaling(figures: Sequence[Figure], path: Path) -> None:
    """The time of a step by the number of ranks, a line for each design."""
    pyplot = pyplot_to_files()
    drawing, axis = pyplot.subplots(figsize=(7, 4))
    for name in dict.fromkeys(figure.impl for figure in figures):
        own = [figure for figure in figures if figure.impl == name]
        axis.plot([figure.ranks for figure in own], [figure.median for figure in own], marker="o", label=name)
    axis.set(xlabel="ranks", ylabel="milliseconds per step")
    axis.set_xticks(sorted({figure.ranks for figure in figures}))
    axis.legend(fontsize=7)
    save_drawing(pyplot, drawing, path)


def _plot_network(figures: Sequence[Figure], path: Path) -> None:
    """Bars of the times of a step, one chart for each network and wire."""
    bars(figures, path, "milliseconds per step")


def _plot_model(figures: Sequence[Figure], path: Path) -> None:
    """Bars of each design's step, with the model's durations as marks."""
    cases = by_case(figures)
    pyplot = pyplot_to_files()
    drawing, axes = pyplot.subplots(1, len(cases), figsize=(4.2 * len(cases), 3.2), sharey=True, squeeze=False)
    for axis, (case, of_case) in zip(axes[0], cases.items(), strict=True):
        names = list(of_case)
        axis.barh(names, [one.median for one in of_case.values()], color="C0", alpha=0.8)
        axis.plot([one.detail["expected_s"] * 1e3 for one in of_case.values()], names, "k|", markersize=12)
        axis.set_title(case, fontsize=9)
        axis.set_xlabel("ms per step (mark: model)", fontsize=8)
        axis.tick_params(labelsize=7)
    axes[0][0].invert_yaxis()
    save_drawing(pyplot, drawing, path)


PLOTS: dict[str, Callable[[Sequence[Figure], Path], None]] = {
    "model": _plot_model,
    "scaling": _plot_scaling,
    "network": _plot_network,
}
