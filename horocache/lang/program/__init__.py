"""Compiled programs as data: thread blocks of steps, the instruction DAG, layout of chunks."""
