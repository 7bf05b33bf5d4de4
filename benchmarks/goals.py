"""The project's goals for speed, compared with the figures of a run. A missed goal is printed; the run still passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.figures import Figure
from benchmarks.report import Table, number


@dataclass(frozen=True)
class Goal:
    """A limit, the figures that it applies to, and the value to compare."""

    text: str
    bench: str
    value: Callable[[Figure], float | None]  # None: the figure lacks the value
    limit: float
    at_least: bool = False
    case: str = ""  # prefix of the case
    impl: str = "horocache"
    unit: str = ""
    ranks: int = 0  # 0: any
    until: str = ""  # suffix of the case
    worst: bool = False  # True: shows only the worst of many cases
    best: bool = False  # True: shows only the best of many cases
    settings: bool = False  # True: also applies to "impl, some setting"

    def concerns(self, figure: Figure) -> bool:
        """True if the goal applies to the figure."""
        return (
            figure.bench == self.bench
            and figure.case.startswith(self.case)
            and figure.case.endswith(self.until)
            and (figure.impl == self.impl or (self.settings and figure.impl.startswith(f"{self.impl}, ")))
            and self.unit in ("", figure.unit)
            and self.ranks in (0, figure.ranks)
        )

    def met(self, value: float) -> bool:
        """True if the value is within the limit."""
        return value >= self.limit if self.at_least else value <= self.limit


def _median(figure: Figure) -> float:
    return figure.median


def _against(peer: str, from_bytes: int = 0) -> Callable[[Figure], float | None]:
    def ratio(figure: Figure) -> float | None:
        if figure.detail.get("bytes", from_bytes) < from_bytes:
            return None
        return min((value for name, value in figure.ratio.items() if name.startswith(peer)), default=None)

    return ratio


def _over(peer: str) -> Callable[[Figure], float | None]:
    """Return a function for the time above the peer's, in the figure's unit of time."""
    ratio = _against(peer)

    def over(figure: Figure) -> float | None:
        times_as_fast = ratio(figure)
        return None if times_as_fast is None else figure.median * (1.0 - times_as_fast)

    return over


def _by_size(
    value: Callable[[Figure], float | None], least: int, most: int = 1 << 62
) -> Callable[[Figure], float | None]:
    """Return ``value`` for figures whose size in bytes lies between the limits, and None for others."""
    return lambda figure: value(figure) if least <= figure.detail["bytes"] <= most else None


def _percent_over(peer: str, from_us: float) -> Callable[[Figure], float | None]:
    """Return a function for the time above the peer's in percent, where the peer takes at least ``from_us``."""
    ratio = _against(peer)

    def over(figure: Figure) -> float | None:
        times_as_fast = ratio(figure)
        if times_as_fast is None or figure.median * times_as_fast < from_us:
            return None
        return 100.0 * (1.0 / times_as_fast - 1.0)

    return over


def _against_slowest(suffix: str) -> Callable[[Figure], float | None]:
    """Return a function for the smallest ratio to peers whose names have this end."""
    return lambda figure: min((value for name, value in figure.ratio.items() if name.endswith(suffix)), default=None)


def _counter(name: str) -> Callable[[Figure], float | None]:
    return lambda figure: figure.counters.get(name)


def _daemon_us_per_tensor(figure: Figure) -> float | None:
    cpu = figure.counters.get("daemon_cpu_us")
    return None if cpu is None else cpu / _tensors(figure)


def _us_per_tensor(figure: Figure) -> float:
    return figure.median / _tensors(figure)


def _tensors(figure: Figure) -> float:
    return float(figure.case.split()[0].replace(",", ""))


# Kind of tensors, ranks, size, least share of the yard-stick.
_MEMORY = (
    ("shared", 2, "4 MiB", 0.8),
    ("shared", 2, "16 MiB", 0.9),
    ("shared", 2, "64 MiB", 0.9),
    ("shared", 4, "4 MiB", 0.5),
    ("shared", 4, "16 MiB", 0.5),
    ("shared", 4, "64 MiB", 1.0),
    ("private", 2, "1 MiB", 0.2),
    ("private", 2, "4 MiB", 0.33),
    ("private", 2, "16 MiB", 0.6),
    ("private", 2, "64 MiB", 0.6),
    ("private", 4, "16 MiB", 0.3),
    ("private", 4, "64 MiB", 0.6),
)
_MIB, _MIB16 = 1 << 20, 16 << 20
_TWO_LEVELS = "horocache, two levels"
GOALS = (
    Goal("small blocking, together, 2 ranks: us", "stages", _median, 15.0, until="whole call"),
    Goal("small blocking, 8 ranks: x gloo", "latency", _against("gloo"), 5.0, True, ranks=8),
    *(
        Goal(
            f"programs, {ranks} ranks, {size}: x {peer}",
            "programs",
            _against(peer),
            limit,
            True,
            case=size,
            ranks=ranks,
            until=size,  # excludes cases with a suffix after the size
            best=True,
            settings=True,
        )
        for size, peer, limit, of in (
            ("8 B", "built-in", 1 / 3, (2, 8)),
            ("1 KiB", "built-in", 1 / 3, (2, 4, 8)),
            ("16 MiB", "built-in", 1 / 1.3, (2, 4)),
            ("64 MiB", "built-in", 1 / 1.3, (2, 4)),
            ("16 MiB", "mpi4py", 1.0, (2, 4)),
            ("64 MiB", "mpi4py", 1.0, (2, 4)),
            *((f"{size} MiB shared", "built-in", 0.5, (2,)) for size in (4, 16, 64)),
        )
        for ranks in of
    ),
    *(
        Goal(f"compile and prove, {case}: s", "compile", _median, limit, case=case)
        for case, limit in (("ring of 64", 2.0), ("all pairs of 32", 10.0), ("hierarchical 8 x 8", 20.0))
    ),
    Goal("161 x 1 KiB: us", "burst", _median, 322.0, case="161 x 1 KiB", unit="us"),
    Goal(
        "161 x 1 KiB, not alternated: us", "burst", _median, 322.0, case="161 x 1 KiB", impl="horocache, not alternated"
    ),
    Goal("cached, daemon CPU us per tensor", "burst", _daemon_us_per_tensor, 1.0, case="1,000", until="cache on"),
    Goal("10 groups, daemon CPU us per tensor", "burst", _daemon_us_per_tensor, 0.3, impl="horocache, 10 groups"),
    Goal(
        "10 groups, submission: us per tensor",
        "burst",
        _us_per_tensor,
        1.5,
        impl="horocache, 10 groups, submission alone",
    ),
    *(
        Goal(
            f"{impl}, {ranks} ranks, {case}: x yard-stick",
            "zero_copy",
            _against("yard-stick"),
            limit,
            True,
            case=case,
            impl=f"horocache, {impl}",
            ranks=ranks,
        )
        for impl, ranks, case, limit in _MEMORY
    ),
    Goal("shared, 2 ranks: x mpi4py", "zero_copy", _against("mpi4py"), 1.0, True, impl="horocache, shared", ranks=2),
    *(
        Goal(
            f"private, 2 ranks, {case}: x mpi4py",
            "zero_copy",
            _against("mpi4py"),
            limit,
            True,
            case=case,
            impl="horocache, private",
            ranks=2,
        )
        for case, limit in (("1 MiB", 0.8), ("4 MiB", 0.9), ("64 MiB", 2.0))
    ),
    Goal("private, 2 ranks: x gloo", "zero_copy", _against("gloo"), 3.0, True, impl="horocache, private", ranks=2),
    Goal("allreduce, any size: x gloo", "bandwidth", _against("gloo"), 1.0, True, worst=True),
    Goal("allreduce from 16 MiB: x mpi4py", "bandwidth", _against("mpi4py", _MIB16), 1.0, True, worst=True),
    Goal("gradients: x gloo in 25-MiB buckets", "gradients", _against("gloo"), 2.0, True),
    Goal("ResNet-50's gradients: x mpi4py", "gradients", _against("mpi4py"), 1.0, True, case="ResNet-50"),
    Goal("the same, shared", "gradients", _against("mpi4py"), 3.0, True, case="ResNet-50", impl="horocache, shared"),
    Goal("training: x DDP", "training", _against("gloo, DDP"), 1.0, True),
    Goal(
        "training, best num_groups: x DDP",
        "training",
        _against("gloo, DDP"),
        1.25,
        True,
        case="MLP",
        best=True,
        settings=True,
    ),
    Goal(
        "training, best num_groups: x ranks that only wait for each other",
        "training",
        _against("barrier only"),
        0.95,
        True,
        case="CNN",
        best=True,
        settings=True,
    ),
    Goal(
        "memory above the model, less than one and a half copies of the gradients: MiB",
        "memory",
        _median,
        1.5 * 128,
        impl="horocache, gradients in shared memory",
        case="all",
    ),
    Goal("hooks and submission: CPU us per parameter", "hooks", _median, 5.0, unit="us", case="CPU"),
    Goal("timeline on: x off", "timeline", _against("timeline off"), 1 / 1.03, True, impl="horocache, timeline on"),
    Goal(
        "100 gradients in a tf.function, each over the identity: us",
        "functions",
        _median,
        15.0,
        unit="us per gradient over the identity",
    ),
    Goal("100 gradients in a tf.function: x tf.py_function", "functions", _against("tf.py_function"), 2.0, True),
    Goal(
        "Keras: x MultiWorkerMirroredStrategy",
        "keras_fit",
        _against("MultiWorkerMirroredStrategy"),
        1.0,
        True,
    ),
    Goal("import horocache: s", "startup", _median, 0.15, case="import horocache", until="import horocache"),
    Goal("init, 2 ranks: s", "startup", _median, 0.1, case="init", ranks=2),
    Goal("init, 8 ranks: s", "startup", _median, 0.5, case="init", ranks=8),
    Goal("idle: rounds", "idle", _median, 0.0, unit="rounds"),
    Goal("idle: % of a core", "idle", _median, 1.0, unit="% of a core", ranks=2),
    Goal("idle over MPI: % of a core", "idle", _median, 2.0, unit="% of a core", ranks=4),
    Goal("mpi backend, 4 B: us over mpi4py", "mpi", _over("mpi4py"), 60.0, case="4 B"),
    Goal("mpi backend, from 16 MiB: x mpi4py", "mpi", _against("mpi4py", _MIB16), 1 / 1.1, True),
    Goal("2 x 2 hosts, from 1 MiB: two levels x flat", "hosts", _against("flat", _MIB), 1.0, True, impl=_TWO_LEVELS),
)

_MCR_DL, _AUTO = "horocache.mcr_dl", "horocache, auto"
MIXED = (
    Goal(
        "mcr_dl, up to 4 KiB: us over the daemon's own call",
        "mixed_overhead",
        _by_size(_over("daemon"), 0, 4 << 10),
        1.5,
        impl=_MCR_DL,
    ),
    Goal(
        "mcr_dl, from 1 MiB: % over the daemon's own call",
        "mixed_overhead",
        _by_size(_percent_over("daemon", 0.0), _MIB),
        1.0,
        impl=_MCR_DL,
    ),
    *(
        Goal(
            f"mcr_dl: % over {peer}, where that takes 20 us or more",
            "mixed_overhead",
            _percent_over(peer, 20.0),
            5.0,
            impl=_MCR_DL,
        )
        for peer in ("mpi4py", "torch.distributed")
    ),
    Goal("auto: x the best fixed backend", "mixed_auto", _against_slowest(""), 1 / 1.1, True, impl=_AUTO),
    Goal(
        "auto over a workload: x the best single backend",
        "mixed_workloads",
        _against_slowest(" alone"),
        1.0,
        True,
        until="2 x 2 hosts",
        impl=_AUTO,
    ),
    Goal(
        "autotune: x the best point of the grid",
        "mixed_autotune",
        _against("best of the grid"),
        1 / 1.03,
        True,
        impl="horocache, autotuned",
    ),
)


def judge(figures: Sequence[Figure], of: Sequence[Goal] = GOALS) -> Table:
    """Return one row per goal and figure that it applies to, or per goal and its worst or best figure."""
    rows = [row for goal in of for row in _rows(goal, figures)]
    return Table("Goals", ["goal", "case", "limit", "value", "verdict"], rows)


def _rows(goal: Goal, figures: Sequence[Figure]) -> Iterator[list[str]]:
    sign = ">=" if goal.at_least else "<="
    found = []
    for figure in figures:
        value = goal.value(figure) if goal.concerns(figure) else None
        if value is not None:
            found.append((value, f"{figure.case}, {figure.impl}" if goal.settings else figure.case))
    if (goal.worst or goal.best) and found:
        found = [min(found) if goal.at_least == goal.worst else max(found)]
    for value, case in found:
        verdict = "met" if goal.met(value) else "MISSED"
        yield [goal.text, case, f"{sign} {goal.limit:g}", number(value), verdict]
