"""``horovod.runner.launch``: what the command ``horovodrun`` calls."""

from horocache.launch.cli import main as run_commandline

__all__ = ["run_commandline"]
