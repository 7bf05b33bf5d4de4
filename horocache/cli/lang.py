"""``horocache lang``: compile, check, show, run, tune, import and export programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from horocache.base.untrusted_text import printable, read_bounded
from horocache.cli import lang_run
from horocache.cli.lang_arguments import add_source, whole_numbers, written

_COMMANDS = "compile|check|show|run|tune|import|export"


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    commands = parser.add_subparsers(dest="what", required=True, metavar=_COMMANDS)
    compiler = commands.add_parser("compile", help="compile a program, prove it, and write its file")
    add_source(compiler)
    compiler.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the program's file")
    compiler.add_argument("--min-bytes", type=int, default=0, metavar="N", help="smallest size it is meant for (0)")
    compiler.add_argument("--max-bytes", type=int, default=0, metavar="N", help="largest; 0: no limit (0)")
    compiler.add_argument(
        "--tile", type=int, default=0, metavar="N", help="most bytes of a message; 0: as it likes (0)"
    )
    check = commands.add_parser("check", help="prove the programs in files; exit code 1 if one is wrong")
    check.add_argument("files", nargs="+", metavar="FILE")
    check.add_argument("--rehash", action="store_true", help="write the hash of files that were edited and are right")
    show = commands.add_parser(
        "show", help="draw a program: its messages and the steps of each thread block over time (SVG)"
    )
    add_source(show, "or a program's file")
    show.add_argument("-o", "--output", type=Path, metavar="FILE", help="the drawing; omitted: text on the terminal")
    lang_run.add_parsers(commands)
    taken = commands.add_parser("import", help="make a program's file from MSCCL-XML")
    taken.add_argument("xml", type=Path, metavar="XML")
    taken.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the program's file")
    taken.add_argument(
        "--collective",
        nargs="+",
        metavar=("FILE.py:FUNCTION", "N"),
        help="the collective that the program implements, if the file names no known one: a function that returns it, "
        "and its arguments",
    )
    given = commands.add_parser("export", help="print a program as MSCCL-XML, for MSCCL's and RCCL's runtimes")
    add_source(given)
    given.add_argument("-o", "--output", type=Path, metavar="XML", help="a file, instead of the terminal")


def run(options: argparse.Namespace) -> int:
    """Run the command. Raises ProgramError, OSError."""
    commands = {
        "compile": _compile,
        "check": _check,
        "show": _show,
        "run": lang_run.run,
        "tune": lang_run.tune,
        "import": _import,
        "export": _export,
    }
    return commands[options.what](options)


def _compile(options: argparse.Namespace) -> int:
    import msgspec  # noqa: PLC0415

    from horocache.lang import compile_program, save_program  # noqa: PLC0415
    from horocache.lang.program.collective_spec import collective_of  # noqa: PLC0415
    from horocache.lang.verify.verifier import verify  # noqa: PLC0415

    compiled = compile_program(written(options))
    limits = {"min_bytes": options.min_bytes, "max_bytes": options.max_bytes, "tile": options.tile}
    compiled = msgspec.structs.replace(compiled, **limits)
    verify(compiled, collective_of(compiled.collective, compiled.ranks))
    save_program(compiled, options.output)
    _say(f"{options.output}: {summary(compiled)}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from horocache.lang.errors import ProgramFileError  # noqa: PLC0415
    from horocache.lang.formats.program_json import MAX_FILE_BYTES, decode, load, save  # noqa: PLC0415

    wrong = 0
    for name in options.files:
        try:
            if options.rehash:
                program = decode(read_bounded(Path(name), MAX_FILE_BYTES), expect_hash=False)
                save(program, name)
            else:
                program = load(name)
        except ProgramFileError as error:
            wrong += 1
            said = str(error) if str(error).startswith(name) else f"{name}: {error}"
            sys.stderr.write(printable(said, keep="\n") + "\n")
            continue
        _say(f"{name}: {summary(program)}")
    return 1 if wrong else 0


def _show(options: argparse.Namespace) -> int:
    from horocache.lang import compile_program, load_program  # noqa: PLC0415
    from horocache.lang.formats.drawing import describe, draw  # noqa: PLC0415

    source = None if options.source.endswith(".json") else written(options)
    compiled = load_program(options.source) if source is None else compile_program(source)
    if options.output is None:
        _say(describe(compiled))
        return 0
    options.output.write_text(draw(compiled, source), encoding="utf-8")
    _say(f"{options.output}: {summary(compiled)}")
    return 0


def _import(options: argparse.Namespace) -> int:
    from horocache.lang import import_msccl, save_program  # noqa: PLC0415
    from horocache.lang.errors import ProgramFileError  # noqa: PLC0415
    from horocache.lang.formats.msccl_xml import MAX_XML_BYTES  # noqa: PLC0415
    from horocache.lang.loader import make_collective  # noqa: PLC0415

    collective = None
    if options.collective:
        source, *numbers = options.collective
        collective = make_collective(source, whole_numbers(numbers))
    try:
        program = import_msccl(read_bounded(options.xml, MAX_XML_BYTES), collective)
    except (ProgramFileError, ValueError) as error:
        raise ProgramFileError(f"{options.xml}: {error}") from None
    save_program(program, options.output)
    _say(f"{options.output}: {summary(program)}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from horocache.lang.compiler.compiler import compile_for_msccl  # noqa: PLC0415
    from horocache.lang.formats.msccl_xml import beyond_limits, export  # noqa: PLC0415

    program = compile_for_msccl(written(options))
    for line in beyond_limits(program):
        sys.stderr.write(f"horocache: warning: {line}\n")
    text = export(program) + "\n"
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, encoding="utf-8")
        _say(f"{options.output}: {summary(program)}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(printable(text, keep="\n") + "\n")


def summary(program: Any) -> str:
    """Describe a program in one line: its collective, its size and its requirements."""
    thread_blocks = max(len(one.thread_blocks) for one in program.programs)
    steps = program.count_steps()
    parts = [
        f"{program.collective.name} by {program.name}",
        f"{program.ranks} ranks",
        f"{steps} steps",
        f"up to {thread_blocks} thread blocks a rank",
        f"{program.min_slots} slot{'s' * (program.min_slots > 1)}",
        "in rank order" if program.rank_order else "not in rank order",
        *(["for sizes that its chunks divide evenly; others run the built-in algorithm"] if program.uniform else []),
    ]
    return ", ".join(parts)
