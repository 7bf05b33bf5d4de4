"""The command ``horocache``."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from horocache.base.untrusted_text import printable
from horocache.base.usage import UsageError, complain, open_standard_streams, reader_is_gone
from horocache.cli import dump, lang, timeline, tune
from horocache.errors import HorocacheError

_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MOST_TENSORS = 1 << 19  # the benchmark's cache has room for twice as many, and a cache holds at most 1 << 20
_TYPES = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from horocache.doctor.core import installed_version  # noqa: PLC0415

        sys.stdout.write(f"horocache {installed_version() or '(not installed)'}\n")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``horocache`` and return its exit code."""
    open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = build_parser().parse_args(given)
        code = _run(options, given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return reader_is_gone()
    except KeyboardInterrupt:
        return 130
    except (UsageError, HorocacheError, MemoryError, OSError) as error:
        return _report(error)


def _report(error: Exception) -> int:
    """Print an error as one line, and return the exit code."""
    if isinstance(error, UsageError):
        complain("horocache", str(error))
        return error.status
    if isinstance(error, HorocacheError):
        complain("horocache", f"{type(error).__name__}: {error}", keep="\n")
    elif isinstance(error, MemoryError):
        complain("horocache", f"there is not enough memory: {error or 'an allocation failed'}")
    elif isinstance(error, OSError):  # a file that cannot be read, or an output that cannot be written
        complain("horocache", f"{error.filename or 'standard output'}: {error.strerror or error}")
    return 1


def _run(options: argparse.Namespace, given: list[str]) -> int:
    if options.command == "doctor":
        return _examine(options)
    commands = {"timeline": timeline.run, "dump": dump.run, "lang": lang.run}
    if options.command in commands:
        return commands[options.command](options)
    if options.command == "compat":
        from horocache.compat import installation  # noqa: PLC0415

        done = installation.install() if options.install else installation.uninstall()
        sys.stdout.write(printable(done) + "\n")
        return 0
    if options.command == "tune":
        return tune.run(options, given)
    if options.what != "control":
        _check_sizes(options.begin, options.end)
    from horocache.cli import bench  # noqa: PLC0415

    return bench.run(options, given)


def _examine(options: argparse.Namespace) -> int:
    if options.hang is not None:
        from horocache.doctor import hang  # noqa: PLC0415  (each command loads only what it needs)

        return hang.run(options.hang or None)
    from horocache.doctor import report  # noqa: PLC0415

    return report.run(as_json=options.json)


def _check_sizes(begin: int, end: int) -> None:
    from horocache.doctor.system import memory_bytes  # noqa: PLC0415

    if begin > end:
        raise UsageError(f"the smallest size, {begin} bytes, is larger than the largest, {end}")
    memory = memory_bytes()
    if end > memory:
        raise UsageError(f"the largest size, {end} bytes, is larger than the memory here, {memory}; give a smaller -e")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of ``horocache``."""
    parser = _Parser(prog="horocache", description="Look at this machine and measure it.", allow_abbrev=False)
    parser.add_argument("-v", "--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="doctor|bench|tune|timeline|dump|lang|compat"
    )
    doctor = commands.add_parser(
        "doctor", help="check what jobs can use here, and how to mend what is wrong; exit code 1 if something is wrong"
    )
    output = doctor.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument(
        "--hang",
        type=_positive,
        nargs="?",
        const=0,
        metavar="PID",
        help="say instead which ranks of running jobs wait, and for whom: all jobs here, or one rank's or launcher's",
    )
    bench = commands.add_parser("bench", help="measure the collectives of this machine")
    kinds = bench.add_subparsers(dest="what", required=True, metavar="allreduce|alltoall|control")
    for name in ("allreduce", "alltoall"):
        _add_collective(
            kinds.add_parser(name, help=f"time and bandwidth of {name}, in the columns of nccl-tests"), name
        )
    control = kinds.add_parser(
        "control", help="cost of agreeing on many tiny tensors, with the response cache and without"
    )
    control.add_argument(
        "--tensors", type=_counts, default=[100, 1000], metavar="N,N", help="tensors a step (100,1000)"
    )
    _add_common(control, iters=50)
    tune.add_parser(
        commands.add_parser("tune", help="find the fastest backend and algorithm for each operation and size, for jobs")
    )
    timeline.add_parser(commands.add_parser("timeline", help="read the timelines that the ranks of a job wrote"))
    dump.add_parser(commands.add_parser("dump", help="show what the ranks of a job are doing, or did before an error"))
    compat = commands.add_parser("compat", help="let every program of this environment that imports horovod run here")
    what = compat.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--install", action="store_true", help="install the name horovod, its metadata and the command horovodrun"
    )
    what.add_argument("--uninstall", action="store_true", help="remove them; pip uninstall horovod does it, too")
    lang.add_parser(commands.add_parser("lang", help="compile, prove and draw collectives that are programs"))
    return parser


def _add_collective(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        "-b", "--begin", type=_size, default=8, metavar="SIZE", help="smallest size in bytes; K, M, G (8)"
    )
    parser.add_argument("-e", "--end", type=_size, default=64 << 20, metavar="SIZE", help="largest size in bytes (64M)")
    parser.add_argument("-f", "--factor", type=_positive, default=2, metavar="N", help="from one size to the next (2)")
    parser.add_argument("-d", "--dtype", choices=_TYPES, default="float32", help="type of the elements (float32)")
    if name == "allreduce":
        parser.add_argument("-o", "--op", choices=["sum", "avg", "prod", "min", "max"], default="sum", help="(sum)")
    _add_common(parser, iters=20)


def _add_common(parser: argparse.ArgumentParser, iters: int) -> None:
    parser.add_argument(
        "-np", "--np", type=_positive, default=2, metavar="N", help="ranks to start, if no launcher has (2)"
    )
    parser.add_argument(
        "-n", "--iters", type=_positive, default=iters, metavar="N", help=f"turns that are timed ({iters})"
    )
    parser.add_argument("-w", "--warmup", type=_positive, default=5, metavar="N", help="turns before that (5)")
    parser.add_argument("--json", action="store_true", help="one JSON line for each row")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def _size(text: str) -> int:
    digits, suffix = text.rstrip("kKmMgG"), text[len(text.rstrip("kKmMgG")) :].lower()
    if not digits.isdigit() or int(digits) < 1 or suffix not in _SUFFIXES:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 8, 64K or 16M")
    return int(digits) * _SUFFIXES[suffix]


def _counts(text: str) -> list[int]:
    counts = [_positive(part) for part in text.split(",")]
    if max(counts) > _MOST_TENSORS:
        raise argparse.ArgumentTypeError(f"{max(counts)} tensors are too many; the most are {_MOST_TENSORS}")
    return counts
