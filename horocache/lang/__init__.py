"""Collectives as programs: chunks are routed in Python, compiled, proved right, and run as one more backend.

After MSCCLang (Cowan et al., ASPLOS 2023). ``with Program(...)`` writes one, :func:`compile_program` compiles it.
"""

from __future__ import annotations

from . import algorithms, topology
from .collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToNext,
    Broadcast,
    Collective,
    Custom,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)
from .compiled import CompiledProgram, Promise, RankProgram, Step, Strand
from .compiler import compile_for_msccl, compile_program
from .errors import (
    BadReferenceError,
    DeadlockError,
    NoLinkError,
    PostconditionError,
    ProgramError,
    ProgramFileError,
    RaceError,
    ScheduleError,
    StaleReferenceError,
    UninitializedChunkError,
    UsageError,
    VerificationError,
)
from .files import load as load_program
from .files import save as save_program
from .msccl_xml import export as export_msccl
from .msccl_xml import parse as import_msccl
from .refs import Buffer, Ref, chunk, parallelize
from .topology import Topology
from .trace import Program
from .verify import verify

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "AllToNext",
    "BadReferenceError",
    "Broadcast",
    "Buffer",
    "Collective",
    "CompiledProgram",
    "Custom",
    "DeadlockError",
    "Gather",
    "NoLinkError",
    "PostconditionError",
    "Program",
    "ProgramError",
    "ProgramFileError",
    "Promise",
    "RaceError",
    "RankProgram",
    "Reduce",
    "ReduceScatter",
    "Ref",
    "Scatter",
    "ScheduleError",
    "StaleReferenceError",
    "Step",
    "Strand",
    "Topology",
    "UninitializedChunkError",
    "UsageError",
    "VerificationError",
    "algorithms",
    "chunk",
    "compile_for_msccl",
    "compile_program",
    "export_msccl",
    "import_msccl",
    "load_program",
    "parallelize",
    "save_program",
    "topology",
    "verify",
]
