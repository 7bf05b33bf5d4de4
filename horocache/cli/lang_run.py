"""``horocache lang run`` and ``tune``: run programs with all ranks in this process."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horocache.cli.lang_arguments import add_source, written

if TYPE_CHECKING:
    from horocache.lang.program.compiled_program import CompiledProgram
    from horocache.lang.tuning.autotune import Candidate
    from horocache.lang.tuning.machine_model import Machine

_MACHINE = (
    "slower links: HOSTSxPER_HOST,inside=US/GBS[/GAP_US],between=US/GBS[/GAP_US][,cards=N], latencies and gaps in us, "
    "bandwidths in GB/s, such as 2x4,inside=1/50,between=10/3/1"
)
_UNITS = {"k": 10, "m": 20, "g": 30}


def _size(text: str) -> int:
    shift = _UNITS.get(text[-1:].lower(), 0)
    number = int(text[:-1] if shift else text) << shift
    if number < 1:
        raise ValueError
    return number


_size.__name__ = "number of bytes"


def add_parsers(commands: Any) -> None:
    """Declare the arguments."""
    runner = commands.add_parser("run", help="run a program here, all ranks in one process; check its results; time it")
    add_source(runner, "or a program's file")
    runner.add_argument("--bytes", type=_size, default=1 << 20, metavar="N", help="of a rank's data, as 64k or 1m (1m)")
    runner.add_argument("--dtype", default="float32", metavar="NAME", help="float32, float64, int32, int64 or uint8")
    runner.add_argument("--repetitions", type=int, default=20, metavar="N", help="for the times (20); 0: check alone")
    runner.add_argument("--seed", type=int, default=0, metavar="N", help="one thread, ranks in an order by chance")
    runner.add_argument("--tile", type=_size, metavar="N", help="most bytes of a message")
    runner.add_argument("--machine", metavar="TEXT", help=_MACHINE)
    tuner = commands.add_parser("tune", help="find the fastest program for each size, and write them with their ranges")
    tuner.add_argument("collective", metavar="OPERATION", help="allreduce or alltoall, or that of --source")
    tuner.add_argument("ranks", type=int, metavar="RANKS")
    tuner.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="for HOROCACHE_PROGRAMS")
    tuner.add_argument("--from", dest="low", type=_size, default=1 << 10, metavar="N", help="smallest size (1k)")
    tuner.add_argument("--to", dest="high", type=_size, default=16 << 20, metavar="N", help="largest (16m)")
    tuner.add_argument("--instances", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers to try (1 2)")
    tuner.add_argument("--channels", type=int, nargs="+", default=[1, 2], metavar="N", help="the same (1 2)")
    tuner.add_argument("--source", action="append", default=[], metavar="FILE.py:FUNCTION", help="also of your own")
    tuner.add_argument("--repetitions", type=int, default=10, metavar="N", help="of which the median counts (10)")
    tuner.add_argument("--machine", metavar="TEXT", help=_MACHINE)
    tuner.add_argument("--predict", action="store_true", help="ask the cost model for --machine, instead of running")


def _machine(text: str | None, ranks: int) -> Machine | None:
    from horocache.lang.tuning.machine_model import parse_machine  # noqa: PLC0415

    return None if text is None else parse_machine(text, ranks)


def _program(options: argparse.Namespace) -> CompiledProgram:
    from horocache.lang import compile_program, load_program  # noqa: PLC0415

    if options.source.endswith(".json"):
        return load_program(options.source)
    return compile_program(written(options))


def run(options: argparse.Namespace) -> int:
    """Run a program, check its results and time it. Raises ProgramError, HorocacheError, OSError."""
    import msgspec  # noqa: PLC0415

    from horocache.lang.tuning.cost_model import predict  # noqa: PLC0415
    from horocache.lang.tuning.local_run import ITEM_BYTES, run_locally  # noqa: PLC0415

    program = _program(options)
    if options.tile is not None:
        program = msgspec.structs.replace(program, tile=options.tile)
    machine = _machine(options.machine, program.ranks)
    itemsize = ITEM_BYTES.get(options.dtype, 1)  # run_locally refuses other types
    elements = max(1, options.bytes // itemsize)
    times = run_locally(
        program,
        elements,
        options.dtype,
        seed=options.seed,
        machine=machine,
        repetitions=0 if options.seed else options.repetitions,
    )
    say = f"{program.name}: {program.ranks} ranks, {elements} x {options.dtype}: results are right"
    if times:
        low, middle, high = min(times) / 1e3, statistics.median(times) / 1e3, max(times) / 1e3
        say += f"; {middle:.1f} us ({low:.1f} to {high:.1f})"
    if machine is not None:
        say += f"; the cost model says {predict(program, elements, machine, itemsize=itemsize):.1f} us"
    sys.stdout.write(say + "\n")
    return 0


def tune(options: argparse.Namespace) -> int:
    """Find the fastest program for each size, and write them. Raises ProgramError, HorocacheError, OSError."""
    from horocache.lang.errors import UsageError  # noqa: PLC0415
    from horocache.lang.tuning import autotune as tuning  # noqa: PLC0415

    machine = _machine(options.machine, options.ranks)
    if options.low > options.high or options.repetitions < 1:
        raise UsageError("--from is at most --to, and there is at least one of --repetitions.")
    if options.predict and machine is None:
        raise UsageError("--predict needs --machine; without --predict, this host is measured.")
    candidates = _candidates(options, machine)
    tuning.written_before(options.collective, options.ranks, options.output)  # raises early what write() would raise
    measured: list[tuning.Measured] = []
    for size in tuning.sizes_between(options.low, options.high):
        tried = (tuning.measure(one, size, options.repetitions, machine, options.predict) for one in candidates)
        of_size = [one for one in tried if one is not None]
        if not of_size:
            raise UsageError(f"no candidate runs on {size} bytes; give other sizes by --from and --to.")
        fastest = min(of_size, key=lambda one: one.microseconds)
        sys.stdout.write(f"{size:>12} B  {fastest.candidate.name:<32} {fastest.microseconds:10.1f} us\n")
        measured += of_size
    for path in tuning.write(tuning.choose(measured, options.collective), options.output):
        sys.stdout.write(f"{path}\n")
    return 0


def _candidates(options: argparse.Namespace, machine: Machine | None) -> list[Candidate]:
    from horocache.lang.errors import UsageError  # noqa: PLC0415
    from horocache.lang.loader import write_program  # noqa: PLC0415
    from horocache.lang.tuning import autotune as tuning  # noqa: PLC0415

    sources = tuning.library_of(options.collective, options.ranks, machine.per_host if machine else None)
    for source in options.source:
        name = source.rpartition(":")[2].removesuffix(".py")
        sources[name] = lambda source=source, **given: write_program(source, [options.ranks], **given)
    if not sources:
        raise UsageError(
            f"the library has no algorithm for {options.collective} on {options.ranks} ranks, but for allreduce and "
            "alltoall. Name functions of your own with --source FILE.py:FUNCTION."
        )
    candidates = list(tuning.candidates_of(sources, options.instances, options.channels))
    for one in candidates:
        if one.program.collective.name != options.collective:
            raise UsageError(f"{one.name} is a program for {one.program.collective.name}.")
    return candidates
