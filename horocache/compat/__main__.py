"""``python -m horocache.compat train.py [arguments]``: run a program written for Horovod on horocache."""

from __future__ import annotations

import os
import subprocess
import sys

from horocache.compat import install

USAGE = "usage: python -m horocache.compat [options of python] (script.py | -m module | -c code) [arguments]"


def main(arguments: list[str]) -> None:
    """Replace this process by a Python that runs the program in ``arguments``, with ``import horovod`` as horocache."""
    if arguments[:1] in (["--install"], ["--uninstall"]):
        from horocache.cli.entry_point import main as horocache  # noqa: PLC0415  (few want it)

        raise SystemExit(horocache(["compat", *arguments]))
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)  # noqa: T201  (the answer to a command line)
        raise SystemExit(0 if arguments else 2)
    install()
    sys.stdout.flush()
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # -u, -O, -W and so on
    os.execv(sys.executable, [sys.executable, *options, *arguments])  # noqa: S606  (no shell is wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
