"""The results of mixtures of experts: tables with the goals, and plots."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases.moe_layer import CONTROL, FORWARD
from benchmarks.cases.moe_straggler import ONE_SIDED, early
from benchmarks.figures import OURS, Figure
from benchmarks.mixed_plots import bars, pyplot_to_files, save_drawing
from benchmarks.mixed_report import by_case, spread_of
from benchmarks.moe_setup import GLOO, SKEWED
from benchmarks.report import Table, number

LEAST_SKEWED = 1.2  # of the best synchronous exchange's time over the one-sided one's, with skewed routing
LEAST_BALANCED = 0.95  # the same with balanced routing
LEAST_GLOO = 5.0  # of torch.distributed's time
JUDGED_RANKS = (2, 4)  # with more, cores are few
MOST_LATE = 1.3  # of the 95th percentile with a late rank over that without, with epsilon = n - 2
LEAST_YARDSTICK = 0.5  # of a memory's bandwidth, for JUDGED_BYTES to each rank
JUDGED_BYTES = 64 << 10
_SMOOTH = 20  # steps of training for one point


def verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def percentiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Return p50, p95, p99, the longest time and all times, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 99
    shown = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "longest": max(seconds)}
    in_ms: dict[str, Any] = {name: 1e3 * value for name, value in shown.items()}
    return {**in_ms, "all_ms": [round(1e3 * each, 3) for each in seconds]}


def tables(figures: Mapping[str, Sequence[Figure]]) -> list[Table]:
    """Return the tables of the parts that have results."""
    of_part: dict[str, tuple[Callable[[Sequence[Figure]], Table], ...]] = {
        "layer": (_goals, _times, _sent),
        "overlap": (_overlap,),
        "straggler": (_straggler, _late_goals),
        "dispatch": (_dispatch,),
        "training": (_training,),
    }
    return [table(figures[part]) for part, tables in of_part.items() if part in figures for table in tables]


def best_synchronous(of_case: Mapping[str, Figure]) -> Figure:
    """Return the fastest exchange that waits for all ranks."""
    return min(
        (one for name, one in of_case.items() if name.startswith(OURS) and name != ONE_SIDED),
        key=lambda one: one.median,
    )


def _goals(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        ours, best = of_case[ONE_SIDED], best_synchronous(of_case)
        gain, over_gloo = ours.ratio[best.impl], ours.ratio.get(GLOO)
        least = LEAST_SKEWED if SKEWED in case else LEAST_BALANCED
        judged = ours.ranks in JUDGED_RANKS
        cells = [best.impl, f"{gain:.2f}", f"{verdict(gain >= least)} ({least:g})" if judged else ""]
        if over_gloo is not None:
            cells += [f"{over_gloo:.2f}", f"{verdict(over_gloo >= LEAST_GLOO)} ({LEAST_GLOO:g})" if judged else ""]
        rows.append([case, *cells, *[""] * (5 - len(cells))])
    columns = ["case", "best synchronous", "one_sided x it", "goal", f"one_sided x {GLOO}", "goal"]
    note = "How many times as fast the one-sided exchange is: the median over the pairs of the same repetition."
    return Table("A layer: the one-sided exchange against the others", columns, rows, note)


def _times(figures: Sequence[Figure]) -> Table:
    rows = [
        [one.case, one.impl, number(one.median), spread_of(one), number(one.cpu_us or 0.0), str(one.repetitions)]
        for one in figures
    ]
    columns = ["case", "implementation", "ms", "quartiles", "CPU us", "repetitions"]
    return Table("A layer by every exchange", columns, rows, "CPU: of one rank's process. The slowest rank counts.")


def _sent(figures: Sequence[Figure]) -> Table:
    rows = []
    for one in figures:
        if one.detail["pass"] != FORWARD or one.impl == GLOO:
            continue
        counters = one.counters
        control = sum(counters[name] for name in CONTROL)
        news = 2 * (one.ranks - 1)
        windows = [number(counters["moe_bytes_written"]), f"{counters['moe_sleeps']:.1f}", str(news)]
        judged = verdict(control == 0)
        if one.impl != ONE_SIDED:
            windows, judged = ["", "", ""], ""
        bytes_ = [number(counters["model_bytes"]), number(counters["model_bytes_by_slot"])]
        rows.append([one.case, one.impl, *bytes_, *windows, number(control), judged])
    columns = ["case", "implementation", "bytes by the model", "with a row for each slot", "bytes written", "sleeps"]
    note = (
        "Of a forward call of the rank with most. News: batches and results that a rank waits for; it may sleep for "
        "each. Control: rounds, frames, bytes, messages and operations of the control plane, added up."
    )
    return Table("What a layer sends", [*columns, "news", "control", "none"], rows, note)


def _overlap(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        ours, best = of_case[ONE_SIDED], best_synchronous(of_case)
        for name, one in of_case.items():
            expected = 1e3 * one.detail["expected_s"]
            gain = f"{ours.ratio[best.impl]:.2f}" if name == ONE_SIDED else ""
            rows.append([case, name, number(expected), number(one.median), spread_of(one), gain])
    columns = ["case", "implementation", "model, ms", "measured, ms", "quartiles", "x best synchronous"]
    note = "From the start of rank 0 to the end of the slowest rank. Experts sleep; the busiest host has most rows."
    return Table("Ranks that come one after the other", columns, rows, note)


def _straggler(figures: Sequence[Figure]) -> Table:
    rows = []
    for one in figures:
        times = [number(one.detail[name]) for name in ("p50", "p95", "p99", "longest")]
        dropped = 100 * one.counters["dropped"] / one.counters["slots"]
        rows.append([one.case, one.impl, *times, f"{dropped:.2f} %"])
    columns = ["case", "implementation", "p50, ms", "p95", "p99", "longest", "dropped"]
    return Table("Late ranks: times of all ranks in a call", columns, rows, "Dropped: of the slots of all ranks.")


def _late_goals(figures: Sequence[Figure]) -> Table:
    """The early exit with a late rank against the same without, and against the exchanges that wait."""
    rows = []
    for ranks in dict.fromkeys(one.ranks for one in figures):
        own = [one for one in figures if one.ranks == ranks and one.impl == early(ranks - 2)]
        by_late = {one.detail["late"]: one.detail["p95"] for one in own}
        synchronous = [
            one.detail["p95"]
            for one in figures
            if one.ranks == ranks and one.detail["late"] == 1 and "epsilon" not in one.impl and one.impl != ONE_SIDED
        ]
        if 0 not in by_late or 1 not in by_late:
            continue  # a part that was run with other loads
        ratio = by_late[1] / by_late[0]
        row = [f"{ranks} ranks", number(by_late[0]), number(by_late[1]), f"{ratio:.2f}", verdict(ratio <= MOST_LATE)]
        rows.append([*row, number(min(synchronous))])
    columns = [
        "case",
        "p95, none late",
        "p95, one late",
        "ratio",
        f"at most {MOST_LATE:g}",
        "p95, best synchronous, one late",
    ]
    return Table("Late ranks: epsilon = n - 2", columns, rows, "Milliseconds.")


def _dispatch(figures: Sequence[Figure]) -> Table:
    rows = []
    for one in figures:
        if one.impl != OURS:
            continue
        [(_, ratio)] = one.ratio.items()
        judged = verdict(ratio >= LEAST_YARDSTICK) if one.detail["bytes"] == JUDGED_BYTES else ""
        rows.append([f"{one.ranks} ranks, {one.case}", number(one.median), spread_of(one), f"{ratio:.2f}", judged])
    columns = ["case", "GB/s", "quartiles", "x yard-stick", f"{LEAST_YARDSTICK:g} at {JUDGED_BYTES >> 10} KiB"]
    return Table("Tokens dispatched through windows", columns, rows, "Of one rank, to all others together.")


def _training(figures: Sequence[Figure]) -> Table:
    rows = []
    for one in figures:
        training = one.detail["training"]
        dropped = 100 * one.detail["dropped"] / one.detail["sent"]
        last = statistics.fmean(training[-_SMOOTH:])
        cells = [f"{training[0]:.3f}", f"{last:.3f}", f"{one.median:.3f}", f"{dropped:.1f} %"]
        waited = f"{100 * one.counters['waited_share']:.0f} %"
        rows.append([one.impl, *cells, number(one.counters["ms_per_step"]), waited])
    columns = ["way", "first loss", "last losses", "held out", "dropped", "ms per step", "waited"]
    note = (
        f"Nats per byte; last losses: the mean of {_SMOOTH} steps. Waited: of the time, in forward calls of the layers."
    )
    return Table("Training of a language model", columns, rows, note)


def _plot_layer(figures: Sequence[Figure], path: Path) -> None:
    """Bars of the times of a call, one chart for each case."""
    bars(figures, path, "milliseconds per call")


def _plot_straggler(figures: Sequence[Figure], path: Path) -> None:
    """For each load, the part of calls that take longer than a time, a line for each way; and what is dropped."""
    cases = by_case(figures)
    pyplot = pyplot_to_files()
    drawing, axes = pyplot.subplots(2, len(cases), figsize=(4.2 * len(cases), 6.5), squeeze=False)
    for (upper, lower), (case, of_case) in zip(axes.T, cases.items(), strict=True):
        for name, one in of_case.items():
            times = sorted(one.detail["all_ms"])
            upper.step(times, [1 - place / len(times) for place in range(len(times))], where="post", label=name)
        upper.set(xscale="log", yscale="log", title=case, xlabel="ms in a call")
        names = [name.removeprefix(f"{OURS}, ") for name in of_case]
        lower.barh(names, [100 * one.counters["dropped"] / one.counters["slots"] for one in of_case.values()])
        lower.set_xlabel("% of slots dropped")
        lower.invert_yaxis()
        lower.tick_params(labelsize=7)
    axes[0][0].set_ylabel("part of calls that take longer")
    axes[0][0].legend(fontsize=6)
    save_drawing(pyplot, drawing, path)


def _plot_training(figures: Sequence[Figure], path: Path) -> None:
    """The loss by the step, a line for each way."""
    pyplot = pyplot_to_files()
    drawing, axis = pyplot.subplots(figsize=(7, 4))
    for one in figures:
        losses = one.detail["training"]
        points = range(0, len(losses), max(1, _SMOOTH // 4))
        means = [statistics.fmean(losses[max(0, point - _SMOOTH) : point + 1]) for point in points]
        dropped = 100 * one.detail["dropped"] / one.detail["sent"]
        axis.plot(points, means, label=f"{one.impl} ({dropped:.1f} % dropped)", linewidth=1)
    axis.set(xlabel="step", ylabel="nats per byte")
    axis.legend(fontsize=7)
    save_drawing(pyplot, drawing, path)


PLOTS: dict[str, Callable[[Sequence[Figure], Path], None]] = {
    "layer": _plot_layer,
    "overlap": _plot_layer,
    "straggler": _plot_straggler,
    "training": _plot_training,
}
