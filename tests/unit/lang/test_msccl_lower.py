"""Compiled programs in the classes of msccl-tools: merged steps, thread blocks and dependencies."""

from __future__ import annotations

import pytest

from horocache.lang import PostconditionError
from horocache.lang.msccl.language import Buffer, Instruction, MSCCLProgram, ThreadblockPolicy, chunk
from horocache.lang.msccl.language.collectives import AllReduce, AllToAll
from horocache.lang.msccl.topologies import fully_connected

MANUAL = {"sendtb": 0, "recvtb": 0, "ch": 0}


def around(instr_fusion):
    """Three ranks with one thread block each: partial sums pass all ranks, and then the result does."""
    collective = AllReduce(3, 3, True)
    program = MSCCLProgram(
        "around",
        fully_connected(3),
        collective,
        1,
        threadblock_policy=ThreadblockPolicy.manual,
        instr_fusion=instr_fusion,
    )
    with program:
        for rank in (1, 2):
            total = chunk(rank, Buffer.input, 0, 3).reduce(chunk(rank - 1, Buffer.input, 0, 3), **MANUAL)
        total.copy(0, Buffer.input, 0, **MANUAL).copy(1, Buffer.input, 0, **MANUAL)
    return program


def test_steps_are_merged():
    lowered = around(instr_fusion=True).lower()
    blocks = [gpu.threadblocks for gpu in lowered.gpus]
    assert [len(each) for each in blocks] == [1, 1, 1]
    found = [[op.inst for op in each[0].ops] for each in blocks]
    assert found == [
        [Instruction.send, Instruction.recv_copy_send],
        [Instruction.recv_reduce_send, Instruction.recv],
        [Instruction.recv_reduce_copy_send],
    ]
    first = blocks[0][0]
    assert (first.id, first.channel, first.send, first.recv) == (0, 0, 1, 2)
    assert {op.cnt() for op in first.ops} == {3} and first.ops[1].dst.buffer is Buffer.input
    assert (lowered.name, lowered.collective, lowered.inplace, lowered.protocol) == (
        "around",
        "allreduce",
        True,
        "Simple",
    )
    assert (lowered.gpus[2].rank, lowered.gpus[2].input_chunks) == (2, 3)


def test_without_merging_there_are_more_steps():
    counts = [
        sum(len(block.ops) for gpu in around(instr_fusion=fused).lower().gpus for block in gpu.threadblocks)
        for fused in (True, False)
    ]
    assert counts[0] == 5 and counts[1] > 5


def exchange(instances):
    with MSCCLProgram("exchange", fully_connected(2), AllToAll(2, 1, False), instances) as program:
        for source in range(2):
            for target in range(2):
                chunk(source, Buffer.input, target).copy(target, Buffer.output, source)
    return program


@pytest.mark.parametrize("instances", [2, 3])
def test_instances_multiply_thread_blocks(instances):
    several, single = (exchange(number).lower().gpus for number in (instances, 1))
    assert [len(gpu.threadblocks) for gpu in several] == [instances * len(gpu.threadblocks) for gpu in single]


def test_a_step_lists_the_steps_that_it_waits_for():
    collective = AllToAll(2, 1, True)
    policy = ThreadblockPolicy.manual
    with MSCCLProgram("swap", fully_connected(2), collective, 1, threadblock_policy=policy) as program:
        kept = chunk(0, Buffer.input, 1).copy(0, "kept", 0, sendtb=1)
        chunk(1, Buffer.input, 0).copy(0, Buffer.input, 1, **MANUAL)
        kept.copy(1, Buffer.input, 0, **MANUAL)
    ops = [op for gpu in program.lower().gpus for block in gpu.threadblocks for op in block.ops]
    copied = next(op for op in ops if op.inst is Instruction.copy)
    assert (copied.rank, copied.dst.buffer, copied.src.index) == (0, "kept", 1)
    sent = next(op for op in ops if op.inst is Instruction.send and op.rank == 0)
    assert sent.depends == [copied] and (sent.tb, copied.tb) == (1, 0)


def test_a_wrong_program_cannot_be_lowered():
    with MSCCLProgram("nothing", fully_connected(2), AllReduce(2, 1, True), 1) as program:
        pass
    with pytest.raises(PostconditionError):
        program.lower()
