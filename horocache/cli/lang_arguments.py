"""The arguments of ``horocache lang`` that name a program."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def add_source(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Declare the arguments that name a program and its options."""
    parser.add_argument(
        "source", metavar="SOURCE", help=f"an algorithm of the library, FILE.py:FUNCTION, or FILE.py {more}".strip()
    )
    parser.add_argument("numbers", type=int, nargs="*", metavar="N", help="its arguments, such as a number of ranks")
    parser.add_argument("--instances", type=int, metavar="N", help="number of instances of the program")
    parser.add_argument("--channels", type=int, metavar="N", help="number of channels over which messages are spread")
    parser.add_argument("--protocol", metavar="NAME", help="auto, Simple, LL, LL128 or Direct")
    parser.add_argument("--slots", type=int, metavar="N", help="sends that may be outstanding on a connection, 1 to 8")


def whole_numbers(texts: Sequence[str]) -> list[int]:
    """Convert the arguments of a function to integers. Raises UsageError."""
    from horocache.lang.errors import UsageError  # noqa: PLC0415

    try:
        return [int(text) for text in texts]
    except ValueError:
        raise UsageError(f"{' '.join(texts)!r} are not whole numbers.") from None


def written(options: argparse.Namespace) -> Any:
    """Return the program that the arguments name. Raises UsageError, ProgramError."""
    from horocache.lang.loader import write_program  # noqa: PLC0415  (each command loads only what it needs)

    given = {name: getattr(options, name) for name in ("instances", "channels", "protocol", "slots")}
    chosen = {name: value for name, value in given.items() if value is not None}
    return write_program(options.source, options.numbers, **chosen)
