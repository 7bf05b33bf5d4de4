"""Assignment of instructions to thread blocks, and the waits between the steps of different thread blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from horocache.lang.compiler.channels import Channels
from horocache.lang.errors import ScheduleError
from horocache.lang.frontend.collectives import INPUT, OUTPUT
from horocache.lang.frontend.trace import Place
from horocache.lang.program.compiled_program import RankProgram, Step, ThreadBlock
from horocache.lang.program.instruction_dag import POPS, PUSHES, Instruction

Key = tuple[Hashable, ...]


def place(nodes: Sequence[Instruction | None], channels: Channels) -> list[Hashable]:
    """The thread block of each instruction; equal keys are one thread block.

    A send or receive runs in the thread block of its connection. A local instruction runs in the thread block of its
    deepest dependency, where it can begin at once. A local instruction without dependencies runs in the thread block of
    the first send or receive that depends on it, or in a thread block for local instructions. The user's choice comes
    first.
    """
    thread_blocks: list[Hashable] = [None] * len(nodes)
    depths = [0] * len(nodes)
    first_user = _first_remote_users(nodes)
    for node in nodes:
        if node is None:
            continue
        depths[node.number] = 1 + max((depths[dep] for dep in node.deps), default=0)
        if node.op in POPS or node.op in PUSHES:
            thread_blocks[node.number] = _of_connection(node, nodes, channels)
        elif node.recv_thread_block is not None:
            thread_blocks[node.number] = (node.rank, node.lane, "given", node.recv_thread_block)
        elif node.deps:
            thread_blocks[node.number] = thread_blocks[max(node.deps, key=lambda dep: (depths[dep], dep))]
        else:
            user = first_user.get(node.number)
            is_alone = user is None
            thread_blocks[node.number] = (
                (node.rank, node.lane, "local") if is_alone else _of_connection(_at(nodes, user), nodes, channels)
            )
    return thread_blocks


def _at(nodes: Sequence[Instruction | None], number: int | None) -> Instruction:
    node = None if number is None else nodes[number]
    assert node is not None
    return node


def _first_remote_users(nodes: Sequence[Instruction | None]) -> dict[int, int]:
    """For each instruction, the first send or receive that depends on it."""
    found: dict[int, int] = {}
    for node in nodes:
        if node is not None and (node.op in POPS or node.op in PUSHES):
            for dep in node.deps:
                found.setdefault(dep, node.number)
    return found


def _of_connection(node: Instruction, nodes: Sequence[Instruction | None], channels: Channels) -> Key:
    given = node.recv_thread_block if node.op in POPS else node.send_thread_block
    if given is not None:
        return (node.rank, node.lane, "given", given)
    if node.op in POPS:
        sender = _at(nodes, node.pops_from)
        assert sender.message is not None
        channel = channels.of[sender.message]
        source: int | None = sender.rank
        target = channels.partner(node.rank, node.lane, True, sender.rank, channel)
    else:
        assert node.message is not None
        channel = channels.of[node.message]
        target = _at(nodes, node.pushes_to).rank
        source = channels.partner(node.rank, node.lane, False, target, channel)
    return (node.rank, node.lane, "auto", channel, source, target)


def connection(node: Instruction, nodes: Sequence[Instruction | None], channels: Channels) -> Hashable:
    """The connection of an instruction that pushes."""
    assert node.message is not None
    return (node.rank, _at(nodes, node.pushes_to).rank, node.lane, channels.of[node.message])


def emit(
    nodes: Sequence[Instruction | None],
    order: Sequence[int],
    thread_block_of: Sequence[Hashable],
    channels: Channels,
    ranks: int,
) -> tuple[RankProgram, ...]:
    """The programs of all ranks, whose thread blocks run their instructions in the given order."""
    numbers = {key: index for index, key in enumerate(sorted({(n.lane, c) for n, c in _used(nodes, channels)}))}
    by_rank: list[list[int]] = [[] for _ in range(ranks)]
    for number in order:
        by_rank[_at(nodes, number).rank].append(number)
    return tuple(_emit_rank(nodes, mine, thread_block_of, channels, numbers) for mine in by_rank)


def _used(nodes: Sequence[Instruction | None], channels: Channels) -> list[tuple[Instruction, int]]:
    pushes = [node for node in nodes if node is not None and node.message is not None]
    return [(node, channels.of[node.message]) for node in pushes if node.message is not None]


def _emit_rank(
    nodes: Sequence[Instruction | None],
    mine: Sequence[int],
    thread_block_of: Sequence[Hashable],
    channels: Channels,
    numbers: dict[tuple[tuple[int, ...], int], int],
) -> RankProgram:
    thread_blocks: dict[Hashable, list[int]] = {}
    for number in mine:
        thread_blocks.setdefault(thread_block_of[number], []).append(number)
    places = {number: (s, i) for s, steps in enumerate(thread_blocks.values()) for i, number in enumerate(steps)}
    waits = _waits(nodes, mine, places, len(thread_blocks))
    scratch: dict[str, int] = defaultdict(int)
    out = []
    for steps in thread_blocks.values():
        send = receive = -1
        used: set[int] = set()
        for number in steps:
            node = _at(nodes, number)
            for operand in (node.source, node.destination):
                if operand is not None and operand.buffer not in (INPUT, OUTPUT):
                    scratch[operand.buffer] = max(scratch[operand.buffer], operand.index + operand.count)
            if node.pushes_to is not None and node.message is not None:
                send = _at(nodes, node.pushes_to).rank
                used.add(numbers[(node.lane, channels.of[node.message])])
            if node.pops_from is not None:
                sender = _at(nodes, node.pops_from)
                assert sender.message is not None
                receive = sender.rank
                used.add(numbers[(node.lane, channels.of[sender.message])])
        if len(used) > 1:
            raise ScheduleError(f"a thread block is on channels {sorted(used)}; it has one.")
        made = tuple(_step(_at(nodes, number), waits[number]) for number in steps)
        out.append(ThreadBlock(made, send, receive, min(used, default=0)))
    return RankProgram(tuple(out), dict(sorted(scratch.items())))


def _step(node: Instruction, waits: tuple[tuple[int, int], ...]) -> Step:
    count = (node.source or node.destination or Place(0, "", 0, 0)).count
    source = None if node.source is None else (node.source.buffer, node.source.index)
    destination = None if node.destination is None else (node.destination.buffer, node.destination.index)
    return Step(node.op, count, source, destination, node.size_class, waits)  # type: ignore[arg-type]


def _waits(
    nodes: Sequence[Instruction | None], mine: Sequence[int], places: dict[int, tuple[int, int]], thread_blocks: int
) -> dict[int, tuple[tuple[int, int], ...]]:
    """The waits of each step for steps of other thread blocks, without waits that its other waits imply.

    The clock of an instruction has, for each thread block of the rank, the number of steps that are finished when the
    instruction is. A dependency needs no wait if the clock already covers it.
    """
    clocks: dict[int, list[int]] = {}
    waits: dict[int, tuple[tuple[int, int], ...]] = {}
    last = [[0] * thread_blocks for _ in range(thread_blocks)]
    for number in mine:
        thread_block, step = places[number]
        clock = list(last[thread_block])
        needed = []
        for dep in sorted(_at(nodes, number).deps, key=lambda dep: sum(clocks[dep]), reverse=True):
            there, at = places[dep]
            if clock[there] <= at:
                needed.append((there, at))
                clock = [max(pair) for pair in zip(clock, clocks[dep], strict=True)]
        clock[thread_block] = step + 1
        clocks[number] = last[thread_block] = clock
        waits[number] = tuple(sorted(needed))
    return waits
