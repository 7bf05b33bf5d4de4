"""Programs written for msccl-tools, run unchanged: point their ``msccl`` imports here.

``from msccl.language import *`` becomes ``from horocache.lang.msccl.language import *``, and so on. What differs is
what is refused: a program that is wrong, stale references and chunks that nobody wrote are errors, and ``XML()`` prints
only what was proved right for the runtimes that read it.
"""
