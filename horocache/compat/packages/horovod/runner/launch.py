"""``horovod.runner.launch``: the function that the command ``horovodrun`` calls."""

from horocache.launch.cli import main as run_commandline

__all__ = ["run_commandline"]
