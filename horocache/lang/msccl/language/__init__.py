"""``msccl.language``: MSCCLProgram, chunk, XML, Check."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from enum import Enum
from typing import Any

from horocache.lang.compiler.compiler import compile_traced
from horocache.lang.errors import BadReferenceError, PostconditionError, UsageError, caller
from horocache.lang.formats.msccl_xml import export
from horocache.lang.frontend import collectives as own
from horocache.lang.frontend.chunk_ref import Ref as OwnRef
from horocache.lang.frontend.chunk_ref import chunk as own_chunk
from horocache.lang.frontend.symbolic import Origin
from horocache.lang.frontend.topology import Topology
from horocache.lang.frontend.trace import Program
from horocache.lang.msccl.language import collectives, ir
from horocache.lang.msccl.language.collectives import Buffer, Chunk, Collective, ReduceChunk, buffer_of, name_of
from horocache.lang.msccl.language.ir import Instruction
from horocache.lang.program.compiled_program import CompiledProgram

__all__ = [
    "XML",
    "Buffer",
    "Check",
    "Chunk",
    "Instruction",
    "MSCCLProgram",
    "ReduceChunk",
    "Ref",
    "ThreadblockPolicy",
    "chunk",
]


class ThreadblockPolicy(Enum):
    """Assignment of instructions to thread blocks.

    ``auto``: by the compiler, which ignores ``sendtb`` and ``recvtb``. ``manual``: by ``sendtb`` and ``recvtb``.
    """

    auto = "auto"
    manual = "manual"

    def __str__(self) -> str:
        return str(self.value)


class _Adapted(own.Collective):
    """Adapts a user-defined collective to the compiler: its postcondition is the result that its own check accepted."""

    def __init__(self, user: Collective, buffers: Any) -> None:
        joined = all(Buffer.output not in one or one[Buffer.output] is one[Buffer.input] for one in buffers)
        super().__init__(user.num_ranks, 1, joined)
        self.name = str(user.name)
        self._buffers = buffers
        self.accepted: dict[tuple[int, str, int], list[Origin]] = {}  # by rank, buffer and index: the accepted contents

    def input_chunks(self, rank: int) -> int:
        return len(self._buffers[rank][Buffer.input])

    def output_chunks(self, rank: int) -> int:
        return len(self._buffers[rank].get(Buffer.output, self._buffers[rank][Buffer.input]))

    def has_data(self, rank: int, index: int) -> bool:
        return self._buffers[rank][Buffer.input][index] is not None

    def expected(self, rank: int, index: int) -> list[Origin] | None:
        return self.accepted.get((rank, own.OUTPUT, index))

    @property
    def promises_inputs(self) -> bool:
        return True  # the user's check may read the inputs

    def expected_input(self, rank: int, index: int) -> list[Origin] | None:
        return self.accepted.get((rank, own.INPUT, index))


class _Chunks(Sequence[Any]):
    """The current contents of a buffer, as a sequence of chunks."""

    def __init__(self, program: MSCCLProgram, rank: int, name: str) -> None:
        self._program, self._rank, self._buffer = program, rank, name

    def __len__(self) -> int:
        extent = self._program.own.extent(self._rank, self._buffer)
        held = self._program.own.memory.buffers.get((self._rank, self._buffer), ())
        return len(held) if extent is None else extent

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"chunk {index} of {self._buffer} of rank {self._rank}, which has {len(self)}")
        buffer, at = self._program.own.collective.alias(self._rank, self._buffer, index % len(self))
        return self._program.chunk_at(self._rank, buffer, at)


class _Buffers:
    """The buffers of a rank."""

    def __init__(self, program: MSCCLProgram, rank: int) -> None:
        self._program, self._rank = program, rank

    def __getitem__(self, buffer: Any) -> _Chunks:
        return _Chunks(self._program, self._rank, name_of(buffer))

    def __contains__(self, buffer: Any) -> bool:
        return isinstance(buffer, Buffer) or (self._rank, name_of(buffer)) in self._program.own.memory.buffers


_current: list[MSCCLProgram] = []


class MSCCLProgram:
    """A program that is being written, with the arguments of msccl-tools; a context manager.

    Args:
        name: name of the program.
        topo: links between the ranks.
        collective: the collective that the program must implement.
        instances: number of instances of the program that run in parallel, each on its part of every chunk.
        protocol: "Simple", "LL" or "LL128".
        threadblock_policy: whether the compiler or the program assigns instructions to thread blocks.
        interleaved_replication: no effect; the layout of instances is always correct.
        instr_fusion: True to fuse receives, reductions and sends where that does not change the result.
        check_xml: no effect; every printed program is verified.
        dependence_nop: no effect.
    """

    def __init__(
        self,
        name: str,
        topo: Topology,
        collective: Collective,
        instances: int,
        protocol: str = "Simple",
        threadblock_policy: ThreadblockPolicy = ThreadblockPolicy.auto,
        interleaved_replication: bool = True,
        instr_fusion: bool = True,
        check_xml: bool = True,
        dependence_nop: bool = False,
    ) -> None:
        del interleaved_replication, check_xml, dependence_nop
        if protocol not in ("Simple", "LL", "LL128"):
            raise UsageError(f"protocol={protocol!r}; there are Simple, LL and LL128.", caller())
        self.name, self.topo, self.collective = name, topo, collective
        self.instances, self.protocol, self.threadblock_policy = instances, protocol, threadblock_policy
        self.num_ranks = topo.num_nodes()
        initial = collective.init_buffers()
        made = getattr(collective, "made", None)
        adapted = _Adapted(collective, initial) if made is None else made
        self.own = Program(name, adapted, topo, instances=instances, protocol=protocol, fuse=instr_fusion)
        self._initial = initial
        self.buffers = [_Buffers(self, rank) for rank in range(self.num_ranks)]

    def __enter__(self) -> MSCCLProgram:
        self.own.__enter__()
        _current.append(self)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _current.remove(self)
        self.own.__exit__(kind, error, trace)

    def chunk_at(self, rank: int, buffer: str, index: int) -> Any:
        """The chunk or sum of chunks at a place; None if nothing has been written."""
        memory = self.own.memory
        value = memory.at(rank, buffer, index).value
        if value is None:
            return None
        terms = memory.values.terms(value)
        chunks = [self._initial[r][Buffer.input][i] for (r, i), count in terms for _ in range(count)]
        return chunks[0] if len(chunks) == 1 else ReduceChunk(rank, chunks)

    def check(self) -> bool:
        """True if the collective's check accepts the result; otherwise the check prints the errors."""
        return bool(self.collective.check(self))

    def generate_xml(self) -> str:
        """The compiled program as MSCCL-XML. Raises PostconditionError if the program is wrong."""
        return export(self._compiled())

    def lower(self) -> ir.Program:
        """The compiled program as thread blocks and steps. Raises PostconditionError if the program is wrong."""
        return ir.lowered(self._compiled(), self.own.collective)

    def _compiled(self) -> CompiledProgram:
        adapted = self.own.collective
        if isinstance(adapted, _Adapted):
            self._accept(adapted)
        return compile_traced(self.own, at_once=True)

    def _accept(self, adapted: _Adapted) -> None:
        """Make the result the postcondition if the user's check accepts it, else raise PostconditionError."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            correct = self.check()
        if not correct:
            raise PostconditionError(self.name, adapted.name, said.getvalue().splitlines(), caller())
        values = self.own.memory.values
        for rank in range(self.num_ranks):
            places = [(own.OUTPUT, index) for index in range(adapted.output_chunks(rank))]
            places += [(own.INPUT, index) for index in range(adapted.input_chunks(rank))]
            for name, index in places:
                value = self.own.memory.at(rank, *adapted.alias(rank, name, index)).value
                if value is not None:
                    origins = [origin for origin, count in values.terms(value) for _ in range(count)]
                    adapted.accepted[rank, name, index] = origins


def _curr() -> MSCCLProgram:
    if not _current:
        raise UsageError("no program is being written; use `with MSCCLProgram(...):`.", caller())
    return _current[-1]


class Ref:
    """Reference to adjacent chunks in a buffer of one rank. As an argument, -1 leaves the choice to the compiler.

    The use of a reference whose chunks have been overwritten raises :class:`~horocache.lang.StaleReferenceError`.
    """

    def __init__(self, program: MSCCLProgram, ref: OwnRef) -> None:
        self.prog, self._ref = program, ref

    rank = property(lambda self: self._ref.rank, doc="The rank whose memory it is.")
    index = property(lambda self: self._ref.index, doc="Of the first chunk.")
    size = property(lambda self: self._ref.count, doc="Chunks.")
    buffer = property(lambda self: buffer_of(self._ref.buffer), doc="The buffer, or its name.")

    def __repr__(self) -> str:
        return f"Ref(Buffer:{self.buffer}, Index:{self.index}, Size:{self.size}, Rank:{self.rank})"

    def copy(
        self, dst: int, buffer: Any = None, index: int = -1, sendtb: int = -1, recvtb: int = -1, ch: int = -1
    ) -> Ref:
        """Copy the chunks.

        Args:
            dst: destination rank.
            buffer: destination buffer; None: the same buffer as on this rank.
            index: index of the first chunk in the destination; -1: the same index if ``buffer`` is None, else the end
                of a scratch buffer.
            sendtb: thread block that sends.
            recvtb: thread block that receives.
            ch: channel.

        Returns:
            A reference to the copy.
        """
        name = None if buffer is None else name_of(buffer)
        if name is None:
            name, index = self._ref.buffer, self._ref.index if index == -1 else index
        elif name in (own.INPUT, own.OUTPUT):
            # With the sender's rank, as in msccl-tools: in place, an allgather copies the sender's part of the output.
            buffer, index = self.prog.collective.get_buffer_index(self.rank, buffer, index)
            name = name_of(buffer)
        at = None if index == -1 else index
        placed = self._placed(dst != self.rank, sendtb, recvtb, ch)
        return Ref(self.prog, self._ref.copy(dst, name, at, **placed))

    def reduce(self, other_chunkref: Ref, sendtb: int = -1, recvtb: int = -1, ch: int = -1) -> Ref:
        """Add other chunks, of this or another rank, to these chunks in place.

        Args:
            other_chunkref: the chunks to add; as many as these.
            sendtb: thread block that sends.
            recvtb: thread block that receives.
            ch: channel.

        Returns:
            This reference, which refers to the sums from now on.
        """
        if not isinstance(other_chunkref, Ref):
            raise BadReferenceError(f"reduce takes a reference to chunks, not {other_chunkref!r}.", caller())
        placed = self._placed(other_chunkref.rank != self.rank, sendtb, recvtb, ch)
        self._ref.reduce(other_chunkref._ref, **placed)
        return self

    def _placed(self, remote: bool, sendtb: int, recvtb: int, ch: int) -> dict[str, Any]:
        manual = self.prog.threadblock_policy == ThreadblockPolicy.manual
        thread_blocks = {"send_thread_block": sendtb if manual else -1, "recv_thread_block": recvtb if manual else -1}
        if not remote:  # a local step runs in one thread block, the sender's
            thread_blocks["recv_thread_block"] = -1
        placed = {**thread_blocks, "channel": ch if remote else -1}
        return {what: None if number == -1 else number for what, number in placed.items()}

    def split(self, num: int) -> list[Ref]:
        """Split the chunks into ``num`` equal parts, in order."""
        return [Ref(self.prog, part) for part in self._ref.split(num)]

    def group(self, other: Ref) -> Ref:
        """Join these chunks and the adjacent chunks of ``other``."""
        return Ref(self.prog, self._ref.group(other._ref))

    def _chunk(self, index: int) -> Any:
        return self.prog.chunk_at(self._ref.rank, self._ref.buffer, self._ref.index + index)

    def get_origin_index(self, index: int = 0) -> int:
        """Index of the input chunk that a chunk was copied from."""
        return int(self._chunk(index).origin_index)

    def get_origin_rank(self, index: int = 0) -> int:
        """Rank of the input chunk that a chunk was copied from."""
        return int(self._chunk(index).origin_rank)

    def get_dst_index(self, index: int = 0) -> int:
        """Index at which a chunk must end; -1: unknown."""
        return int(self._chunk(index).dst_index)

    def get_dst_rank(self, index: int = 0) -> int:
        """Rank at which a chunk must end; -1: several ranks, or unknown."""
        return int(self._chunk(index).dst_rank)

    def print_chunk_info(self, index: int = 0) -> None:
        """Print a chunk."""
        print(self._chunk(index))


def chunk(rank: int, buffer: Any, index: int, size: int = 1) -> Ref:
    """Take a reference to chunks. Raises UninitializedChunkError if one has never been written."""
    program = _curr()
    if isinstance(buffer, Buffer) and 0 <= rank < program.num_ranks:
        buffer, index = program.collective.get_buffer_index(rank, buffer, index)
    return Ref(program, own_chunk(rank, name_of(buffer), index, size))


def XML() -> None:  # noqa: N802 - msccl-tools' name
    """Compile the current program, verify it, and print it as MSCCL-XML. Raises ProgramError."""
    print(_curr().generate_xml())


def Check() -> bool:  # noqa: N802 - msccl-tools' name
    """True if the collective's check accepts the current program; otherwise the check prints the errors."""
    return _curr().check()


# msccl-tools' module of collectives re-exports these names, and some programs import them from there.
for _one in (MSCCLProgram, Ref, ThreadblockPolicy, chunk, XML, Check):
    setattr(collectives, _one.__name__, _one)
