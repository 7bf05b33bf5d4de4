"""The command ``horovodrun``, which is ``horocacherun --horovod``."""

from __future__ import annotations

import sys

from horocache.launch import cli


def main() -> int:
    """Run the launcher with the arguments of the command line; returns the exit code."""
    return cli.main(["--horovod", *sys.argv[1:]])
