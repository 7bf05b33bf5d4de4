"""``python -m horocache.compat train.py [arguments]``: run a program written for Horovod on horocache."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from horocache.compat import PACKAGES, install

USAGE = "usage: python -m horocache.compat (script.py | -m module | -c code) [arguments]"


def main(arguments: list[str]) -> None:
    """Run what the arguments say, as Python itself would; what it raises, and how it exits, is its own."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)  # noqa: T201  (the answer to a command line)
        raise SystemExit(0 if arguments else 2)
    how, rest = arguments[0], arguments[1:]
    if how in ("-m", "-c") and not rest:
        raise SystemExit(f"{USAGE}\nargument expected for the {how} option")
    install()
    if how == "-m":
        sys.argv = rest
        _first_on_path("")
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        _first_on_path("")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  (what -c means)
    else:
        if not Path(how).exists():
            raise SystemExit(f"python -m horocache.compat: can't open file {how!r}: there is no such file\n{USAGE}")
        sys.argv = [how, *rest]
        _first_on_path(str(Path(how).resolve().parent))
        runpy.run_path(how, run_name="__main__")


def _first_on_path(folder: str) -> None:
    """Put the program's folder where Python puts it: first, before the package that stands for Horovod."""
    sys.path[0:0] = [folder] if sys.path[:1] == [PACKAGES] else []


if __name__ == "__main__":
    main(sys.argv[1:])
