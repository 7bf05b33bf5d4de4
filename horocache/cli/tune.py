"""``horocache tune``: measure backends and algorithms, write a tuning table, show it and draw it."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from horocache.base.paths import why_not_writable
from horocache.base.untrusted_text import printable
from horocache.base.usage import UsageError, complain

if TYPE_CHECKING:
    from horocache.tuning.fingerprint import Fingerprint
    from horocache.tuning.lookup import World
    from horocache.tuning.plan import Wish
    from horocache.tuning.run import Collected
    from horocache.tuning.table import Table

_DEFAULT_SIZES = "64:4M:x4"
_TABLE_WIDTH = 100  # columns, which the table has at least
_DEFAULT_BUDGET = 300.0  # seconds
_MOST_SECONDS = 7 * 86400.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _EndedError(BaseException):
    """A signal asks the command to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.code = 128 + signum


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Time sets of overlapped operations by every backend and algorithm, in jobs of its own, and write a table by "
        "which jobs choose (HOROCACHE_TUNING_TABLE)."
    )
    parser.add_argument("--ops", metavar="NAME,NAME", help="operations, such as all_reduce,all_gather (all)")
    parser.add_argument(
        "--sizes",
        default=_DEFAULT_SIZES,
        metavar="SIZES",
        help=f"list and ranges, such as 1K,8K:1M:x2 ({_DEFAULT_SIZES})",
    )
    parser.add_argument("--worlds", metavar="N,N", help="numbers of ranks on one host (2, and this machine's cores)")
    parser.add_argument(
        "--layouts",
        default="1",
        metavar="LAYOUTS",
        help="1: one host with each of --worlds; 2x2: two simulated hosts with two ranks each, by mpiexec (1)",
    )
    parser.add_argument(
        "--backends", default="", metavar="NAMES", help="such as shm,mpi/fold (all that a job has; mpi needs mpiexec)"
    )
    parser.add_argument("--repeat", type=_number(1, 100_000), default=20, metavar="N", help="times of each set (20)")
    parser.add_argument("--overlap", type=_number(1, 64), default=4, metavar="K", help="operations of a set (4)")
    parser.add_argument(
        "--budget",
        type=_seconds,
        default=_DEFAULT_BUDGET,
        metavar="SECONDS",
        help=f"for all measurements; the most useful ones come first ({_DEFAULT_BUDGET:g})",
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="the table")
    parser.add_argument("--resume", action="store_true", help="keep what FILE has, and measure only what is missing")
    parser.add_argument("--draw", type=Path, metavar="PNG", help="draw the table, too")
    parser.add_argument("--dry-run", action="store_true", help="print what would be measured, and how long it takes")
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors alone")
    what = parser.add_subparsers(dest="what", metavar="[show|draw]")
    show = what.add_parser("show", help="print a table, and the selector rules that follow from it")
    show.add_argument("file", type=Path, metavar="FILE")
    drawn = what.add_parser("draw", help="draw which candidate wins where")
    drawn.add_argument("file", type=Path, metavar="FILE")
    drawn.add_argument("png", type=Path, metavar="PNG")


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. Raises UsageError, HorocacheError, OSError."""
    from horocache.tuning.table import load  # noqa: PLC0415  (each command loads only what it needs)

    if options.what == "show":
        _show(load(options.file))
        return 0
    if options.what == "draw":
        from horocache.tuning.drawing import draw  # noqa: PLC0415

        draw(load(options.file), options.png)
        _say(f"wrote {options.png}")
        return 0
    wish = _wish(options)
    if options.dry_run:
        _describe(wish, options.budget)
        return 0
    return _measure(options, wish, arguments)


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or len(text) > 9 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text[:80]}' is not a whole number from {least} to {most}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 1.0 <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not a number of seconds from 1 to {_MOST_SECONDS:g}")
    return seconds


def _wish(options: argparse.Namespace) -> Wish:
    from horocache.base.processors import find_cores  # noqa: PLC0415
    from horocache.doctor.system import memory_bytes  # noqa: PLC0415
    from horocache.tuning import plan  # noqa: PLC0415
    from horocache.tuning.table import OPERATIONS  # noqa: PLC0415

    worlds = options.worlds if options.worlds is not None else ",".join({"2", str(max(2, find_cores().usable))})
    wish = plan.Wish(
        ops=plan.parse_ops(options.ops) if options.ops is not None else OPERATIONS,
        sizes=plan.parse_sizes(options.sizes),
        worlds=plan.parse_worlds(worlds, options.layouts),
        backends=plan.parse_backends(options.backends),
        overlap=options.overlap,
        repetitions=options.repeat,
    )
    plan.check_memory(wish.sizes, wish.worlds, wish.overlap, memory_bytes())
    return wish


def _describe(wish: Wish, budget: float) -> None:
    """Print the jobs of a run, with estimated times."""
    from horocache.tuning.drawing import size_text  # noqa: PLC0415
    from horocache.tuning.plan import START_SECONDS  # noqa: PLC0415

    total = 0.0
    for world, units in wish.stages():
        seconds = START_SECONDS + sum(wish.seconds_of(world, unit) for unit in units)
        total += seconds
        sizes = ", ".join(dict.fromkeys(size_text(unit.bytes) for unit in units))
        by = "mpiexec" if wish.needs_mpiexec(world) else "horocacherun"
        _say(f"{world}, by {by}: {', '.join(wish.ops)} of {sizes} bytes; about {seconds:.0f} s")
    cut = "" if total <= budget else "; the budget cuts that, the last ones first"
    _say(f"together about {total:.0f} s of a budget of {budget:g} s{cut}")


# ---- measuring


def _measure(options: argparse.Namespace, wish: Wish, arguments: Sequence[str]) -> int:
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)
    from horocache.tuning import run as tuning  # noqa: PLC0415
    from horocache.tuning.drawing import require_matplotlib  # noqa: PLC0415
    from horocache.tuning.fingerprint import fingerprint_here  # noqa: PLC0415

    if _core.identity()["source"] != "none":
        raise UsageError("tune starts its own ranks; run it by hand, and not with a launcher")
    path = options.out
    if path is None:
        raise UsageError("where to? Name the table with --out FILE, or use --dry-run")
    _check_target("--out", path)
    if options.draw is not None:
        _check_target("--draw", options.draw)
        require_matplotlib()
    host, command = fingerprint_here(), [printable(text) for text in arguments]
    collected = _kept(path, host, wish) if options.resume else tuning.Collected()

    def keep(measured: Collected) -> None:
        tuning.write(measured, path, _core.__version__, host, command, wish)

    with _progress(options.quiet) as progress, _interruptible() as check_signals:
        running = tuning.TuningRun(wish, collected, options.budget, keep, progress, check_signals)
        try:
            running.run()
            check_signals()
        except _EndedError as ended:
            complain("horocache", f"interrupted; {_result(path, collected, len(running.missing()))}")
            return ended.code
    return _report(options, wish, collected, len(running.missing()))


def _kept(path: Path, host: Fingerprint, wish: Wish) -> Collected:
    """Return the measurements of the table that is to be completed; none if there is no such file."""
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)
    from horocache.errors import InvalidArgumentError  # noqa: PLC0415
    from horocache.tuning.run import Collected, resumed  # noqa: PLC0415
    from horocache.tuning.table import load  # noqa: PLC0415

    if not path.exists():
        return Collected()
    try:
        return resumed(load(path), _core.__version__, host, wish)
    except InvalidArgumentError as error:
        raise UsageError(f"--resume {path}: {error}", 1) from None


def _report(options: argparse.Namespace, wish: Wish, collected: Collected, missing: int) -> int:
    """Print the result of a run that was not interrupted, draw the table, and return the exit code."""
    failures = {world: collected.failures[world] for world in wish.worlds if world in collected.failures}
    absent = {name: reason for name in wish.backends if (reason := collected.why_without_times(name)) is not None}
    for what, reason in [*failures.items(), *absent.items()]:
        complain("horocache", f"{what}: {reason}")
    if not options.quiet or not collected.sizes:
        _say(_result(options.out, collected, missing))
    if options.draw is not None and collected.sizes:
        from horocache.tuning.drawing import draw  # noqa: PLC0415
        from horocache.tuning.table import load  # noqa: PLC0415

        draw(load(options.out), options.draw)
    return 1 if failures or absent or not collected.sizes else 0


def _check_target(option: str, path: Path) -> None:
    """Raise UsageError unless a file of this name can be written; found out before anything is measured."""
    if reason := why_not_writable(path):
        raise UsageError(f"{option} {path}: {reason}")


def _result(path: Path, collected: Collected, missing: int) -> str:
    if not collected.sizes:
        return "nothing was measured, and no table was written"
    wrong = sum(one.wrong > 0 for candidates in collected.sizes.values() for one in candidates)
    parts = [f"{path}: {len(collected.sizes)} measurements"]
    parts += [f"{wrong} candidates had wrong results"] if wrong else []
    parts += [f"{missing} are missing, which --resume measures"] if missing else []
    return "; ".join([*parts, f"HOROCACHE_TUNING_TABLE={path} lets a job use it"])


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """A context with a function that raises _EndedError if a signal has asked the command to end.

    The signal's handler raises nothing: an exception at any moment could leave a half-made folder or a started job.
    """
    asked: list[int] = []

    def check() -> None:
        if asked:
            raise _EndedError(asked[0])

    def end(signum: int, _: FrameType | None) -> None:
        asked.append(signum)

    before = {signum: was for signum in _ENDING if (was := signal.getsignal(signum)) is not signal.SIG_IGN}
    for signum in before:
        signal.signal(signum, end)
    try:
        yield check
    finally:
        for signum, was in before.items():
            signal.signal(signum, was)


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[World, int, int], None]]:
    """A context with a function that shows the progress, on a terminal, in a bar on standard error."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=None)

        def update(world: World, done: int, total: int) -> None:
            bar.update(task, description=str(world), completed=done, total=total)

        yield update


# ---- showing


def _show(table: Table) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from horocache.tuning.lookup import World, rules_of  # noqa: PLC0415

    console = Console(highlight=False)
    console.width = max(console.width, _TABLE_WIDTH)
    host = table.host
    libraries = ", ".join(f"{name} {version}" for name, version in table.libraries.items())
    for line in (
        f"horocache {table.horocache}, {table.when}, {table.overlap} overlapped operations",
        f"{host.cpu}, {host.cores} cores, {host.memory_gib} GiB, kernel {host.kernel}",
        libraries,
    ):
        console.print(Text(printable(line)))
    console.print(_winners(table))
    for failure in table.failures:
        console.print(Text(printable(f"{World(failure.ranks, failure.hosts)}: {failure.reason}")))
    try:
        rules = rules_of(table)
    except ValueError as error:
        raise UsageError(f"the table {error}", 1) from None
    console.print(Text("Selector rules:" if rules else "No selector rules follow."))
    for rule in rules:
        sys.stdout.write(f"{rule}\n")


def _winners(table: Table) -> Any:
    from rich.table import Table as Grid  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from horocache.tuning.drawing import fastest, size_text  # noqa: PLC0415
    from horocache.tuning.table import canonical  # noqa: PLC0415

    grid = Grid(box=None, pad_edge=False)
    columns = ("operation", "ranks", "hosts", "size", "winner", "us", "IQR", "next", "us", "others")
    for index, column in enumerate(columns):
        grid.add_column(column, justify="left" if index in (0, 4, 7, 9) else "right", overflow="fold")
    for measurements in canonical(table).operations:
        for layout in measurements.layouts:
            for size in layout.sizes:
                found = fastest(measurements.op, layout, size)
                cells = ["-"] * 5
                if found is not None:
                    first, second = found
                    cells = [first.name, f"{first.median_us:.1f}", f"{first.spread_us:.1f}"]
                    cells += ["", ""] if second is None else [second.name, f"{second.median_us:.1f}"]
                wrong = sum(one.wrong > 0 for one in size.candidates)
                unable = sum(one.median_us is None and not one.wrong for one in size.candidates)
                others = [f"{wrong} wrong"] if wrong else []
                others += [f"{unable} cannot"] if unable else []
                row = (measurements.op, str(layout.ranks), str(layout.hosts), size_text(size.bytes), *cells)
                grid.add_row(*map(Text, (*row, ", ".join(others))))
    return grid


def _say(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")
