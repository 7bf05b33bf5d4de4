"""Programs that use the interface of msccl-tools, and the XML that they print."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from collections import Counter, deque

import pytest

from horocache.lang import (
    AllReduce,
    Custom,
    PostconditionError,
    ScheduleError,
    StaleReferenceError,
    UninitializedChunkError,
    UsageError,
)
from horocache.lang.msccl import topologies
from horocache.lang.msccl.language import (
    XML,
    Buffer,
    Check,
    Chunk,
    MSCCLProgram,
    ReduceChunk,
    ThreadblockPolicy,
    chunk,
    routines,
)
from horocache.lang.msccl.language.collectives import AllGather, AllToAll, Collective, ReduceScatter
from horocache.lang.msccl.language.collectives import AllReduce as AllReduceOfTools
from horocache.lang.msccl.topologies import fully_connected


class Stuck(Exception):
    """No thread block can continue."""


def run_xml(text: str, inputs, slots: int, seed: int):
    """Run a program as the published runtimes do, and return all memory.

    A step waits for its dependency, then for a message and a free slot together. A step that receives and reduces adds
    to its own srcbuf.
    """
    rng = random.Random(seed)
    root = ET.fromstring(text)
    memory, blocks = {}, []
    for gpu in root.findall("gpu"):
        rank = int(gpu.get("id"))
        memory.update({(rank, *place): Counter(value) for place, value in inputs(rank).items()})
        for block in gpu.findall("tb"):
            blocks.append((rank, block, [step.attrib for step in block.findall("step")]))
    done = {(rank, int(block.get("id"))): 0 for rank, block, _ in blocks}
    queues: dict[tuple[int, int, int], deque] = {}

    def advance(rank, block, steps):
        me = (rank, int(block.get("id")))
        if done[me] == len(steps):
            return False
        step = steps[done[me]]
        kind, count = step["type"], int(step["cnt"])
        if int(step["depid"]) >= 0 and done[rank, int(step["depid"])] <= int(step["deps"]):
            return False
        chan = int(block.get("chan"))
        inbound = queues.setdefault((int(block.get("recv")), rank, chan), deque())
        outbound = queues.setdefault((rank, int(block.get("send")), chan), deque())
        pops, pushes = kind in ("r", "rrc", "rcs", "rrs", "rrcs"), kind in ("s", "rcs", "rrs", "rrcs")
        if (pops and not inbound) or (pushes and len(outbound) >= slots):
            return False
        source, target = ((step[f"{side}buf"], int(step[f"{side}off"])) for side in ("src", "dst"))
        own = [memory.get((rank, source[0], source[1] + i)) for i in range(count)]
        value = inbound.popleft() if pops else own
        if kind in ("rrc", "rrs", "rrcs"):
            value = [mine + other for mine, other in zip(own, value, strict=True)]
        if kind == "re":
            value = [memory[rank, target[0], target[1] + i] + other for i, other in enumerate(own)]
        if kind in ("r", "rrc", "rcs", "rrcs", "cpy", "re"):
            memory.update({(rank, target[0], target[1] + i): one for i, one in enumerate(value)})
        if pushes:
            outbound.append(value)
        done[me] += 1
        return True

    left = list(blocks)
    while left:
        rng.shuffle(left)
        if not any([advance(*one) for one in left]):
            raise Stuck
        left = [one for one in left if done[one[0], int(one[1].get("id"))] < len(one[2])]
    assert not any(queues.values())
    return memory


def check_xml(text: str, collective, fine: int) -> None:
    """Check the results in several interleavings, with few and many slots."""
    letters = {"input": "i", "output": "o"}

    def inputs(rank):
        held = {}
        for index in range(collective.input_chunks(rank)):
            if collective.has_data(rank, index):
                buffer, at = collective.alias(rank, "input", index)
                held.update({(letters[buffer], at * fine + p): {(rank, index * fine + p): 1} for p in range(fine)})
        return held

    for slots in (1, 2, 8):
        for seed in range(5):
            memory = run_xml(text, inputs, slots, seed)
            for rank in range(collective.num_ranks):
                for index in range(collective.output_chunks(rank)):
                    expected = collective.expected(rank, index)
                    buffer, at = collective.alias(rank, "output", index)
                    for part in range(fine) if expected is not None else ():
                        want = Counter((source, i * fine + part) for source, i in expected)
                        assert memory[rank, letters[buffer], at * fine + part] == want


# ---- programs in the style of msccl-tools


def ring_of_tools(size, instances, channels=1, policy=ThreadblockPolicy.manual, **options):
    with MSCCLProgram(
        "ring",
        fully_connected(size),
        AllReduceOfTools(size, size, True),
        instances,
        threadblock_policy=policy,
        **options,
    ) as program:
        for first in range(size):
            placed = {"sendtb": first % channels, "recvtb": first % channels, "ch": first % channels}
            for step in range(size - 1):
                source, target = (first + 1 + step) % size, (first + 2 + step) % size
                chunk(target, Buffer.input, first).reduce(chunk(source, Buffer.input, first), **placed)
            for step in range(size - 1):
                source, target = (first + step) % size, (first + 1 + step) % size
                chunk(source, Buffer.input, first).copy(target, Buffer.input, first, **placed)
        XML()
        assert Check()
    return program


@pytest.mark.parametrize(("size", "instances", "channels"), [(2, 1, 1), (3, 1, 1), (4, 1, 1), (4, 2, 2), (5, 3, 1)])
def test_a_manually_placed_ring_prints_xml_for_the_runtimes(capsys, size, instances, channels):
    ring_of_tools(size, instances, channels)
    text = capsys.readouterr().out
    check_xml(text, AllReduce(size, size, True), instances)
    root = ET.fromstring(text)
    wanted = {"name": "ring", "proto": "Simple", "ngpus": str(size), "coll": "allreduce", "inplace": "1"}
    wanted |= {"outofplace": "0", "minBytes": "0", "maxBytes": "0", "nchunksperloop": str(size * instances)}
    assert wanted.items() <= root.attrib.items()


class AllToNext(Collective):
    """As in msccl-tools' examples: buffers are lists of chunks."""

    def init_buffers(self):
        out = []
        for rank in range(self.num_ranks):
            chunks = [
                None if rank == self.num_ranks - 1 else Chunk(rank, c, rank + 1, c) for c in range(self.chunk_factor)
            ]
            out.append({Buffer.input: chunks, Buffer.output: [None] * self.chunk_factor})
        return out

    def check(self, prog):
        correct = True
        for rank in range(1, self.num_ranks):
            output = prog.buffers[rank][Buffer.output]
            for c in range(self.chunk_factor):
                held = output[c]
                if held is None or (held.origin_rank, held.origin_index) != (rank - 1, c):
                    print(f"rank {rank} chunk {c}: {held}")
                    correct = False
        return correct


def all_to_next(forget=-1):
    with MSCCLProgram("next", fully_connected(4), AllToNext(4, 2, True), 1) as program:
        for rank in range(3):
            for c in range(2):
                if (rank, c) != (forget, 0):
                    ref = chunk(rank, Buffer.input, c)
                    if rank == 1:
                        ref = ref.copy(rank - 1, f"via{rank}", ch=c)
                    ref.copy(ref.get_dst_rank(), Buffer.output, ref.get_dst_index())
        correct = Check()
        XML()
    return program, correct


def test_the_check_of_a_users_collective_defines_its_result(capsys):
    _, correct = all_to_next()
    assert correct
    specified = Custom("custom", 4, 2, 2, lambda r, c: [(r - 1, c)] if r else None, pre=lambda r, c: r < 3)
    check_xml(capsys.readouterr().out, specified, 1)


def test_a_program_that_the_users_check_refuses_is_not_printed(capsys):
    with pytest.raises(PostconditionError, match="rank 3 chunk 0: None"):
        all_to_next(forget=2)
    assert "<algo" not in capsys.readouterr().out


def test_a_wrong_allreduce_fails_check_and_raises(capsys):
    with pytest.raises(PostconditionError), MSCCLProgram("no", fully_connected(2), AllReduceOfTools(2, 1, True), 1):
        chunk(0, Buffer.input, 0).reduce(chunk(1, Buffer.input, 0))
        assert not Check()
        assert "Rank 1 chunk 0 is incorrect" in capsys.readouterr().out
        XML()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("kind", [AllGather, ReduceScatter, AllToAll])
def test_allgather_reducescatter_and_alltoall_print_xml(capsys, kind, inplace):
    if kind is AllToAll and inplace:
        pytest.skip("parts would have to be swapped in place")
    with MSCCLProgram("direct", fully_connected(3), kind(3, 2, inplace), 1):
        for source in range(3):
            for target in range(3):
                if kind is AllGather:
                    if not (inplace and source == target):
                        chunk(source, Buffer.input, 0, 2).copy(target, Buffer.output, 2 * source)
                elif kind is AllToAll:
                    ref = chunk(source, Buffer.input, 2 * target, 2)
                    ref.copy(ref.get_dst_rank(), Buffer.output, ref.get_dst_index())
        if kind is ReduceScatter:
            for target in range(3):
                total = chunk(target, Buffer.input, 2 * target, 2)
                for source in range(3):
                    if source != target:
                        total = total.reduce(chunk(source, Buffer.input, 2 * target, 2))
                if not inplace:
                    total.copy(target, Buffer.output, 0)
        assert Check()
        XML()
    text = capsys.readouterr().out
    names = {AllGather: "allgather", ReduceScatter: "reducescatter", AllToAll: "alltoall"}
    assert ET.fromstring(text).get("coll") == names[kind]
    check_xml(text, kind(3, 2, inplace).made, 1)


def test_a_copy_to_the_input_in_place_goes_to_the_part_of_the_sender(capsys):
    with MSCCLProgram("pairs", fully_connected(3), AllGather(3, 2, True), 1):
        for source in range(3):
            for target in range(3):
                if source != target:
                    ref = chunk(source, Buffer.input, 0, 2).copy(target, Buffer.input, 0)
                    assert (ref.buffer, ref.index) == (Buffer.output, 2 * source)
        assert Check()
        XML()
    check_xml(capsys.readouterr().out, AllGather(3, 2, True).made, 1)


class SumInTheMiddle(Collective):
    """Ranks 1 and 2 end with sums in their inputs."""

    def init_buffers(self):
        return [{Buffer.input: [Chunk(rank, 0)], Buffer.output: [None]} for rank in range(3)]

    def check(self, prog):
        first, both = ReduceChunk(0, [Chunk(0, 0), Chunk(1, 0)]), ReduceChunk(0, [Chunk(r, 0) for r in range(3)])
        return prog.buffers[1][Buffer.input][0] == first and prog.buffers[2][Buffer.input][0] == both


def test_results_of_a_users_collective_in_input_buffers_stay(capsys):
    with MSCCLProgram("middle", fully_connected(3), SumInTheMiddle(3, 1, False), 1):
        total = chunk(1, Buffer.input, 0).reduce(chunk(0, Buffer.input, 0))
        chunk(2, Buffer.input, 0).reduce(total)
        assert Check()
        XML()
    inputs = lambda rank: {("i", 0): {(rank, 0): 1}}  # noqa: E731
    memory = run_xml(capsys.readouterr().out, inputs, 1, 0)
    assert memory[1, "i", 0] == Counter([(0, 0), (1, 0)])
    assert memory[2, "i", 0] == Counter([(0, 0), (1, 0), (2, 0)])


@pytest.mark.parametrize("offset", [0, 2])
def test_routines_are_rings_over_some_ranks(capsys, offset):
    ranks = 2 + offset
    post = lambda r, i: [(offset, i), (offset + 1, i)] if r >= offset else None  # noqa: E731
    specified = Custom("sums", ranks, 2, 2, post, inplace=True)
    with MSCCLProgram("sums", fully_connected(ranks), Sums(ranks, 2, True), 1):
        routines.allreduce_ring_inplace(2, gpu_offset=offset)
        assert Check()
        XML()
    check_xml(capsys.readouterr().out, specified, 1)
    with MSCCLProgram("gather", fully_connected(4), AllGather(4, 1, True), 1):
        routines.allgather_ring_inplace(4)
        assert Check()
        XML()
    check_xml(capsys.readouterr().out, AllGather(4, 1, True).made, 1)


class Sums(Collective):
    """The last two ranks end with the sums of their chunks."""

    def init_buffers(self):
        chunks = [[Chunk(rank, i) for i in range(2)] for rank in range(self.num_ranks)]
        return [{Buffer.input: own, Buffer.output: own} for own in chunks]

    def check(self, prog):
        last = range(self.num_ranks - 2, self.num_ranks)
        want = [ReduceChunk(-1, [Chunk(rank, i) for rank in last]) for i in range(2)]
        return all(list(prog.buffers[rank][Buffer.input]) == want for rank in last)


def test_modules_have_the_names_of_msccl_tools():
    code = (
        "from horocache.lang.msccl.collectives import *\n"
        "from horocache.lang.msccl.topologies.generic import fully_connected\n"
        "from horocache.lang.msccl.topologies.nvidia import dgx1\n"
        "from horocache.lang.msccl.topologies.amd import amd4\n"
        "from horocache.lang.msccl.language.collectives import *\n"
        "with MSCCLProgram('two', fully_connected(2), AllReduce(2, 1, True), 1):\n"
        "    total = chunk(1, Buffer.input, 0).reduce(chunk(0, Buffer.input, 0))\n"
        "    assert total.buffer == Buffer.input and chunk(1, total.buffer, 0).index == 0\n"
        "    total.copy(0)\n"
        "    assert Check()\n"
    )
    exec(compile(code, "program", "exec"), {})


def test_references_have_the_origin_and_the_destination_of_chunks(capsys):
    with MSCCLProgram("refs", fully_connected(2), AllToAll(2, 2, False), 1) as program:
        ref = chunk(0, Buffer.input, 2, 2)
        assert (ref.rank, ref.index, ref.size) == (0, 2, 2)
        assert (ref.get_origin_rank(), ref.get_origin_index(1)) == (0, 3)
        assert (ref.get_dst_rank(), ref.get_dst_index()) == (1, 0)
        first, second = ref.split(2)
        assert second.group(first).index == 2
        copied = ref.copy(1, "i")  # a string names scratch, even this one
        assert len(program.buffers[1]["i"]) == 2
        assert program.buffers[1]["i"][0] == Chunk(0, 2)
        assert copied.reduce(chunk(1, Buffer.input, 0, 2)).size == 2
        assert program.buffers[1]["i"][1] == ReduceChunk(1, [Chunk(1, 1), Chunk(0, 3)])
        ref.print_chunk_info()
    assert "Chunk(origin_rank=0, origin_index=2, dst_rank=1, dst_index=0)" in capsys.readouterr().out


def test_misuse_raises():
    with pytest.raises(UsageError, match="no program is being written"):
        chunk(0, Buffer.input, 0)
    with pytest.raises(UsageError, match="protocol='Fast'"):
        MSCCLProgram("x", fully_connected(2), AllReduceOfTools(2, 1, True), 1, protocol="Fast")
    with pytest.raises(UninitializedChunkError), MSCCLProgram("x", fully_connected(2), AllGather(2, 1, False), 1):
        chunk(0, Buffer.output, 0)
    with pytest.raises(StaleReferenceError), MSCCLProgram("x", fully_connected(2), AllReduceOfTools(2, 1, True), 1):
        old = chunk(0, Buffer.input, 0)
        chunk(1, Buffer.input, 0).copy(0, Buffer.input, 0)
        old.copy(1, Buffer.input, 0)


def test_impossible_manual_thread_blocks_raise():
    with (
        pytest.raises(ScheduleError),
        MSCCLProgram(
            "x",
            fully_connected(3),
            AllReduceOfTools(3, 1, True),
            1,
            threadblock_policy=ThreadblockPolicy.manual,
        ),
    ):
        total = chunk(0, Buffer.input, 0)
        for other in (1, 2):
            total.reduce(chunk(other, Buffer.input, 0), sendtb=0, recvtb=0, ch=0)
        for other in (1, 2):
            total.copy(other, Buffer.input, 0, sendtb=1, recvtb=1, ch=0)
        XML()


# ---- topologies


def test_topologies_have_the_expected_number_of_links():
    connected = {
        "fully_connected": (topologies.fully_connected(4), 12),
        "ring": (topologies.ring(5), 10),
        "line": (topologies.line(5), 8),
        "star": (topologies.star(5, non_blocking=False), 8),
        "hub_and_spoke": (topologies.hub_and_spoke(4), 12),
        "dgx1": (topologies.dgx1(), 32),
        "dgx_a100": (topologies.dgx_a100(), 56),
        "amd4": (topologies.amd4(), 8),
        "amd8": (topologies.amd8(), 56),
        "distributed_fully_connected": (topologies.distributed_fully_connected(topologies.ring(4), 2, 1), 48),
        "distributed_hub_and_spoke": (topologies.distributed_hub_and_spoke(topologies.ring(4), 2, 1), 48),
        "reverse": (topologies.reverse_topology(topologies.line(3)), 4),
        "binarize": (topologies.binarize_topology(topologies.dgx1()), 32),
    }
    for name, (topology, links) in connected.items():
        size = topology.num_nodes()
        found = sum(topology.link(a, b) > 0 for a in range(size) for b in range(size))
        assert found == links, name


def test_nvlinks_are_read_from_the_output_of_nvidia_smi():
    printed = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t0-3\n\nLegend:\n"
    topology = topologies.nvlink_only(printed)
    assert [list(row) for row in topology.links] == [[0, 4], [4, 0]]
