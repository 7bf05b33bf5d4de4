"""The command line: the launcher's own options, one flag per knob, and Horovod's spellings of some of them."""

import argparse
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from horocache.base.usage import UsageError
from horocache.launch import horovod_flags
from horocache.launch.horovod_flags import HorovodFlag, Outcome

Knob = Mapping[str, str]  # a row of _core.knob_table()

# Set by the launcher for each rank, so a flag would contradict it.
IDENTITY = {"rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "job_id", "launcher_dir"}
# The knob `mpi` has no flag either: it concerns ranks that mpiexec started, and --mpi is one of Horovod's flags.
NO_FLAG = IDENTITY | {"mpi"}

_EPILOG = """\
Every line of a rank's output is prefixed with its number: "[1] text". A line that ends in a carriage return, as
progress bars write, is passed on at once; an unfinished line, when it has not grown for 0.1 s, and after 1 s at the
latest. A line of more than 64 KiB is passed on in pieces; where another rank's output comes between two of them, the
second begins a line with the prefix. Bytes are never changed. Standard input goes to rank 0; the others read an
empty file. OMP_NUM_THREADS is set to each rank's share of the cores, unless it is set.

Exit code: that of the first rank that failed by itself, and not because of another one (128 + n if signal n killed it);
2 for a mistake on this command line; 127 or 126 if the command was not found or cannot be executed; 128 + n if
horocacherun itself was ended by signal n."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message + "; see horocacherun --help")


def build_parser(knobs: Sequence[Knob], version: str) -> argparse.ArgumentParser:
    """Build the parser of ``horocacherun``."""
    parser = _Parser(
        prog="horocacherun",
        usage="horocacherun -np N [options] command [arguments]",
        description="Start N ranks of a command on this host.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action="version", version=f"horocacherun {version}")
    parser.add_argument("-np", "--np", "--num-proc", dest="np", type=_whole, metavar="N", help="number of ranks")
    parser.add_argument("-H", "--hosts", metavar="localhost:N", help="this host and how many ranks it may take")
    parser.add_argument("-hostfile", "--hostfile", metavar="FILE", help="the same, as lines 'localhost slots=N'")
    parser.add_argument(
        "--horovod",
        action="store_true",
        help="let programs that import horovod run on horocache; see horocache.compat",
    )
    parser.add_argument("--config-file", metavar="YAML", help="arguments from a file; those given here prevail")
    parser.add_argument(
        "-cb", "--check-build", action="store_true", help="show what jobs can use here, and start nothing"
    )
    parser.add_argument("--no-prefix", action="store_true", help="pass lines on without the [rank] prefix")
    parser.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="timestamps",
        action="store_true",
        help="put the time in front of each line",
    )
    parser.add_argument(
        "--output-dir",
        "--output-filename",
        metavar="DIR",
        help="keep each rank's output, too, in DIR/rank.N/stdout and DIR/rank.N/stderr (rank.07 of 12 ranks)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="time for the other ranks to end after the first failure, and again between TERM and KILL (5)",
    )
    parser.add_argument(
        "--bind", choices=["core", "none"], default="none", help="give each rank its own share of the cores (none)"
    )
    parser.add_argument("--verbose", action="store_true", help="print what is started")
    # Passed by horocache.run: the launcher ends when process PID ends, and then removes the folder DIR.
    parser.add_argument("--for-run", nargs=2, metavar=("PID", "DIR"), help=argparse.SUPPRESS)
    group = parser.add_argument_group(
        "knobs", "each is also an environment variable, HOROCACHE_ and the name in capitals"
    )
    for knob in knobs:
        if knob["name"] not in NO_FLAG:
            _add_knob(group, knob)
    _add_horovod_spellings(parser.add_argument_group("Horovod's spellings"))
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; the error for an unknown option suggests the nearest one."""
    options, unknown = parser.parse_known_args(arguments)
    if options.config_file is not None:
        from horocache.launch import config_file  # noqa: PLC0415  (few jobs have one)

        options, unknown = parser.parse_known_args([*config_file.arguments_of(options.config_file), *arguments])
    if unknown:
        name = unknown[0].partition("=")[0]
        nearest = difflib.get_close_matches(name, _option_names(parser), n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else "; see horocacherun --help"
        raise UsageError(f"there is no option {name}{hint}")
    command = options.command
    options.command = command[1:] if command[:1] == ["--"] else command
    return options


def knob_arguments(options: argparse.Namespace, knobs: Iterable[Knob]) -> dict[str, str]:
    """Return the knobs that the command line sets, as text."""
    values = {
        knob["name"]: _text(value)
        for knob in knobs
        if (value := getattr(options, "knob_" + knob["name"], None)) is not None and knob["name"] not in NO_FLAG
    }
    return values


def _add_knob(group: Any, knob: Knob) -> None:
    flag = "--" + knob["name"].replace("_", "-")
    default = knob["default"] or "none"
    described = {
        "choice": f"one of {knob['minimum'].replace('|', ', ')}",
        "int": f"{knob['minimum']} to {knob['maximum']}",
        "float": f"{knob['minimum']} to {knob['maximum']}",
    }.get(knob["type"], "")
    about = f"{knob['doc']} ({described + '; ' if described else ''}default {default})".replace("%", "%%")
    if knob["type"] == "bool":
        group.add_argument(flag, dest="knob_" + knob["name"], action=argparse.BooleanOptionalAction, help=about)
    else:
        metavar = {"int": "N", "float": "X", "choice": "WORD"}.get(knob["type"], "TEXT")
        group.add_argument(flag, dest="knob_" + knob["name"], metavar=metavar, help=about)


def _add_horovod_spellings(group: Any) -> None:
    group.add_argument(
        "--fusion-threshold-mb",
        dest="knob_fusion_threshold",
        type=_megabytes,
        metavar="MIB",
        help="--fusion-threshold in MiB",
    )
    group.add_argument("--cycle-time-ms", dest="knob_cycle_time", metavar="MS", help="--cycle-time")
    group.add_argument("--timeline-filename", dest="knob_timeline", metavar="FILE", help="--timeline")
    group.add_argument("--autotune-log-file", dest="knob_autotune_log", metavar="FILE", help="--autotune-log")
    group.add_argument(
        "--stall-check-warning-time-seconds",
        dest="knob_stall_check_time_seconds",
        metavar="S",
        help="--stall-check-time-seconds",
    )
    group.add_argument(
        "--stall-check-shutdown-time-seconds",
        dest="knob_stall_shutdown_time_seconds",
        metavar="S",
        help="--stall-shutdown-time-seconds",
    )
    switch = {"action": "store_const", "const": None}
    group.add_argument(
        "--no-stall-check", dest="knob_stall_check_disable", help="--stall-check-disable", **(switch | {"const": "1"})
    )
    group.add_argument(
        "--stall-check", dest="knob_stall_check_disable", help="the default", **(switch | {"const": "0"})
    )
    group.add_argument(
        "--log-with-timestamp", dest="knob_log_hide_time", help="--no-log-hide-time", **(switch | {"const": "0"})
    )
    group.add_argument(
        "--log-without-timestamp", dest="knob_log_hide_time", help="--log-hide-time", **(switch | {"const": "1"})
    )
    for flag in horovod_flags.TABLE:
        if flag.outcome is Outcome.NOTED:
            group.add_argument(*flag.spellings, action=_Note, flag=flag, dest="notes", help=flag.about)
        elif flag.outcome is Outcome.REFUSED:
            group.add_argument(*flag.spellings, action=_Refuse, flag=flag, help=argparse.SUPPRESS)


class _Note(argparse.Action):
    """Appends the note for an accepted argument without effect to ``notes``."""

    def __init__(self, flag: HorovodFlag, **options: Any) -> None:
        super().__init__(**options, nargs=flag.values or 0, metavar="X", default=[])
        self._flag = flag

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        note = f"{option_string} has no effect: {self._flag.about}"
        namespace.notes = [*namespace.notes, *([note] if note not in namespace.notes else [])]


class _Refuse(argparse.Action):
    """Refuses an argument of horovodrun, with the reason."""

    def __init__(self, flag: HorovodFlag, **options: Any) -> None:
        super().__init__(**options, nargs=flag.values or 0)
        self._flag = flag

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> NoReturn:
        raise UsageError(f"{option_string} is not available: {self._flag.about}")


def _option_names(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings]


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds from 0 to 86400")
    return value


def _megabytes(text: str) -> str:
    try:
        return str(int(float(text) * (1 << 20)))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of MiB") from None
