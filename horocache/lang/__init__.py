"""Language and compiler for collective algorithms, after MSCCLang (Cowan et al., ASPLOS 2023).

The user routes chunks between ranks inside ``with Program(...)``. :func:`compile_program` compiles the program and
proves that it implements its collective. The backend ``program`` runs it.
"""

from __future__ import annotations

from horocache.lang import algorithms
from horocache.lang.compiler.compiler import compile_for_msccl, compile_program
from horocache.lang.errors import (
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
from horocache.lang.formats.msccl_xml import export as export_msccl
from horocache.lang.formats.msccl_xml import parse as import_msccl
from horocache.lang.formats.program_json import load as load_program
from horocache.lang.formats.program_json import save as save_program
from horocache.lang.frontend import topology
from horocache.lang.frontend.chunk_ref import Buffer, Ref, chunk, parallelize
from horocache.lang.frontend.collectives import (
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
from horocache.lang.frontend.topology import Topology
from horocache.lang.frontend.trace import Program
from horocache.lang.program.compiled_program import CompiledProgram, Promise, RankProgram, Step, ThreadBlock
from horocache.lang.verify.verifier import verify

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
    "ThreadBlock",
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
