"""A dependency engine: functions and collectives run as soon as what they read and write allows it.

The :class:`Engine` orders what a program pushes by the variables that each operation reads and writes. Copies, updates,
callbacks and collectives run beside each other, and the result is that of running them one by one.
"""

from horocache.dag.collective import input_has_failed
from horocache.dag.engine import Completion, Engine
from horocache.dag.graph import Graph
from horocache.dag.variable import Lane, Var

__all__ = ["Completion", "Engine", "Graph", "Lane", "Var", "input_has_failed"]
