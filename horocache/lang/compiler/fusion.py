"""Fusion of a receive with a send of the received chunks (MSCCLang, section 4.3): less memory traffic, and no wait.

A receive and a send become ``rcs``. A receive that reduces and a send become ``rrcs``, or ``rrs`` if the sum need not
be stored, because the program never reads it from memory and the postcondition does not contain it.

Note [What can be merged]
A send can be fused into a receive of the same chunks if that receive is its only dependency. The direct edge is then
the only path between the two in the DAG, so fusion makes no cycle. Of several such sends, fusion takes the send with
the longest path after it. The channel assignment then decides which pairs are fused, because a thread block has only
one peer in each direction.
"""

from __future__ import annotations

from collections.abc import Sequence

from horocache.lang.frontend.collectives import INPUT, OUTPUT, Collective
from horocache.lang.frontend.trace import Place
from horocache.lang.program.instruction_dag import (
    COPY,
    READS_DESTINATION,
    READS_SOURCE,
    RECV,
    RECV_COPY_SEND,
    RECV_REDUCE_COPY,
    RECV_REDUCE_COPY_SEND,
    RECV_REDUCE_SEND,
    SEND,
    Instruction,
    users,
)

_OVERWRITES = frozenset({RECV, RECV_COPY_SEND, COPY})


def candidates(instructions: Sequence[Instruction]) -> dict[int, int]:
    """The receives that can be fused, each with the send to fuse into it."""
    followers = users(instructions)
    heights = _heights(instructions, followers)
    pairs = {}
    for receive in instructions:
        if receive.op not in (RECV, RECV_REDUCE_COPY):
            continue
        sends = [user for user in followers[receive.number] if _go_together(receive, instructions[user])]
        if sends:
            pairs[receive.number] = max(sends, key=lambda user: (heights[user], -user))
    return pairs


def _go_together(receive: Instruction, send: Instruction) -> bool:
    return (
        send.op == SEND
        and send.source == receive.destination
        and send.deps == {receive.number}
        and send.lane == receive.lane
        and send.size_class == receive.size_class
        and send.send_thread_block == receive.recv_thread_block
        and send.operation.channel == receive.operation.channel
    )


def _heights(instructions: Sequence[Instruction], followers: Sequence[Sequence[int]]) -> list[int]:
    """For each instruction, the number of instructions on the longest path after it."""
    heights = [0] * len(instructions)
    for node in reversed(instructions):
        after = [heights[user] for user in followers[node.number]]
        if node.pushes_to is not None:
            after.append(heights[node.pushes_to])
        heights[node.number] = 1 + max(after, default=-1)
    return heights


def merge(
    instructions: Sequence[Instruction], pairs: dict[int, int], collective: Collective
) -> list[Instruction | None]:
    """Fuse these pairs. The send becomes None in the result, and the receive, which is changed, pushes in its place."""
    out: list[Instruction | None] = list(instructions)
    followers = users(instructions)
    merged_into = {send: receive for receive, send in pairs.items()}
    for receive, send in pairs.items():
        node, after = instructions[receive], instructions[send]
        assert after.pushes_to is not None
        if node.op == RECV:
            node.op = RECV_COPY_SEND
        else:
            others = [instructions[user] for user in followers[receive] if user != send]
            seen = _is_seen(node, others, collective)
            node.op = RECV_REDUCE_COPY_SEND if seen else RECV_REDUCE_SEND
        node.pushes_to, node.send_thread_block, node.message = after.pushes_to, after.send_thread_block, after.message
        instructions[after.pushes_to].pops_from = receive
        out[send] = None
    for remaining in out:
        if remaining is not None:
            remaining.deps = {merged_into.get(dep, dep) for dep in remaining.deps} - {remaining.number}
    return out


def _is_seen(node: Instruction, others: Sequence[Instruction], collective: Collective) -> bool:
    """True if another instruction reads the sum from memory, or the sum is a part of the postcondition."""
    mine = node.destination
    assert mine is not None
    overwritten: set[int] = set()
    for other in others:
        if other.op in READS_SOURCE and _overlap(other.source, mine):
            return True
        to = other.destination
        if to is None or not _overlap(to, mine):
            continue
        if other.op in READS_DESTINATION:
            return True
        if other.op in _OVERWRITES:
            overwritten.update(range(to.index, to.index + to.count))
    everything = set(range(mine.index, mine.index + mine.count))
    counts = collective.promises_inputs or collective.is_joined(node.rank)
    promised = mine.buffer == OUTPUT or (mine.buffer == INPUT and counts)
    return promised and not everything <= overwritten


def _overlap(a: Place | None, b: Place) -> bool:
    if a is None or (a.rank, a.buffer) != (b.rank, b.buffer):
        return False
    return a.index < b.index + b.count and b.index < a.index + a.count
