"""Runs programs that were written for msccl-tools. Only their imports of ``msccl`` change.

``from msccl.language import *`` becomes ``from horocache.lang.msccl.language import *``, and so on. Unlike msccl-tools,
this package refuses wrong programs, stale references, and chunks that have never been written. ``XML()`` prints only
programs that are proved correct for the runtimes that read them.
"""
