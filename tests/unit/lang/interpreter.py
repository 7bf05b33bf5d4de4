"""A second interpreter of compiled programs, without shared code: random interleavings, exact contributions.

It implements Note [What a program means] in horocache/lang/program/compiled_program.py and nothing else.
"""

from __future__ import annotations

import random
from collections import Counter, deque

from horocache.lang import CompiledProgram, Program

Sum = Counter  # how many times each fine chunk (rank, index) of the inputs contributes


def outputs_as_written(program: Program, fine: int) -> dict[tuple[int, str], dict[int, Sum]]:
    """Return the memory after the operations have run one after the other."""
    memory = initial_memory(program.collective, fine)
    for operation in program.operations:
        source, target = operation.source, operation.destination
        count = source.count * fine
        read = [memory[source.rank, source.buffer][source.index * fine + i] for i in range(count)]
        place = memory.setdefault((target.rank, target.buffer), {})
        for i, value in enumerate(read):
            at = target.index * fine + i
            place[at] = place[at] + value if operation.kind == "reduce" else value
    return memory


def initial_memory(collective, fine: int) -> dict[tuple[int, str], dict[int, Sum]]:
    memory: dict[tuple[int, str], dict[int, Sum]] = {}
    for rank in range(collective.num_ranks):
        for index in range(collective.input_chunks(rank)):
            buffer, at = collective.alias(rank, "input", index)
            place = memory.setdefault((rank, buffer), {})
            for part in range(fine):
                place[at * fine + part] = Sum({(rank, index * fine + part): 1})
    return memory


class Stuck(Exception):
    """No thread block can continue."""


def execute(program: CompiledProgram, collective, slots: int, seed: int) -> dict[tuple[int, str], dict[int, Sum]]:
    """Run one random interleaving. Raises Stuck; AssertionError if messages do not fit or are left over."""
    rng = random.Random(seed)
    memory = initial_memory(collective, program.refinement)
    thread_blocks = [(rank, s) for rank, one in enumerate(program.programs) for s in range(len(one.thread_blocks))]
    done = dict.fromkeys(thread_blocks, 0)
    held: dict[tuple[int, int], list[Sum]] = {}
    queues: dict[tuple[int, int, int], deque[list[Sum]]] = {}
    left = list(thread_blocks)
    while left:
        rng.shuffle(left)
        moved = [one for one in left if _advance(program, one, done, held, queues, memory, slots)]
        if not moved:
            raise Stuck
        left = [one for one in left if done[one] < len(program.programs[one[0]].thread_blocks[one[1]].steps)]
    assert not any(queues.values()), "messages are left over"
    return memory


def _advance(program, one, done, held, queues, memory, slots) -> bool:
    rank, s = one
    thread_block = program.programs[rank].thread_blocks[s]
    if done[one] == len(thread_block.steps):
        return False
    step = thread_block.steps[done[one]]
    began = one not in held
    if began:
        if any(done[rank, other] <= index for other, index in step.waits):
            return False
        if step.op.startswith("r") and step.op != "re":
            queue = queues.setdefault((thread_block.receive, rank, thread_block.channel), deque())
            if not queue:
                return False
            value = queue.popleft()
        else:
            value = [memory[rank, step.source[0]][step.source[1] + i] for i in range(step.count)]
        assert len(value) == step.count
        if step.op in ("re", "rrc", "rrs", "rrcs"):
            mine = memory[rank, step.destination[0]]
            value = [mine[step.destination[1] + i] + part for i, part in enumerate(value)]
        if step.op in ("r", "cpy", "re", "rrc", "rcs", "rrcs"):
            place = memory.setdefault((rank, step.destination[0]), {})
            place.update({step.destination[1] + i: part for i, part in enumerate(value)})
        held[one] = value
    if step.op in ("s", "rcs", "rrs", "rrcs"):
        queue = queues.setdefault((rank, thread_block.send, thread_block.channel), deque())
        if len(queue) >= slots:
            return began
        queue.append(held[one])
    del held[one]
    done[one] += 1
    return True
