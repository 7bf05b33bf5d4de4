"""The command ``horovodrun``, where it is wanted: ``horocacherun --horovod``."""

from __future__ import annotations

import sys

from horocache.launch import cli


def main() -> int:
    """Run the launcher with the arguments of the command line; the exit code."""
    return cli.main(["--horovod", *sys.argv[1:]])
