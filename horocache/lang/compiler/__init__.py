"""From a written program to a compiled one: fusion, thread blocks, channels, schedule."""

from horocache.lang.compiler.compiler import compile_for_msccl, compile_program, compile_traced

__all__ = ["compile_for_msccl", "compile_program", "compile_traced"]
