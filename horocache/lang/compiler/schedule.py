"""The order in which each thread block runs its instructions.

Note [The order is one for all]
All instructions of all ranks get one order. In this order, each instruction comes after its dependencies and after the
push of the message that it pops, and the pops of every connection come in the order of its pushes. Every thread block
runs its instructions in this order. With enough slots such a schedule cannot deadlock: the first instruction in the
order that has not run has nothing left to wait for. The number of slots that is enough is found by a search for cycles
among the waits.

The order of the pushes on a connection is free. The compiler tries three: by the levels of the pushes in the DAG, by
the levels of the pops, and program order. Without fused instructions, program order always works, with one slot.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from horocache.lang.program.instruction_dag import POPS, PUSHES, Instruction

Key = tuple[int, ...]
MAX_SLOTS = 8


@dataclass
class Graph:
    """The instructions by number, and the messages of the connections.

    Attributes:
        nodes: all instructions; None for an instruction that was fused into another one.
        connections: for each connection its messages, as pairs of the instructions that push and pop them.
    """

    nodes: Sequence[Instruction | None]
    connections: dict[Hashable, list[tuple[int, int]]]

    def living(self) -> list[Instruction]:
        """The instructions that were not fused into others, in program order."""
        return [node for node in self.nodes if node is not None]


def graph_of(nodes: Sequence[Instruction | None], connection: Callable[[Instruction], Hashable]) -> Graph:
    """Build the graph; ``connection`` returns the connection of an instruction that pushes."""
    connections: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for node in nodes:
        if node is not None and node.pushes_to is not None:
            connections[connection(node)].append((node.number, node.pushes_to))
    return Graph(nodes, dict(connections))


def orders(graph: Graph) -> list[Callable[[int, int], Key]]:
    """Sort keys for the messages of a connection, the best first; arguments: the instructions that push and pop."""
    depths, heights = _levels(graph)

    def level(node: int) -> Key:
        return (depths[node], -heights[node], node)

    def written(push: int, pop: int) -> Key:
        del pop
        message = graph.nodes[push]
        assert message is not None and message.message is not None
        return (message.message,)

    return [lambda push, pop: (*level(push), *level(pop)), lambda push, pop: (*level(pop), *level(push)), written]


def _levels(graph: Graph) -> tuple[list[int], list[int]]:
    """For each instruction, the length of the longest path to it, and of the longest path from it."""
    depths, heights = [0] * len(graph.nodes), [0] * len(graph.nodes)
    living = graph.living()
    for node in living:
        before = [depths[dep] for dep in node.deps]
        if node.pops_from is not None:
            before.append(depths[node.pops_from])
        depths[node.number] = 1 + max(before, default=-1)
    for node in reversed(living):
        after = heights[node.number] + 1
        for dep in (*node.deps, *(() if node.pops_from is None else (node.pops_from,))):
            heights[dep] = max(heights[dep], after)
    return depths, heights


def schedule(graph: Graph, by: Callable[[int, int], Key]) -> list[int] | None:
    """One order of all instructions; None if none exists. Sorts the messages of each connection by ``by``."""
    following: list[list[int]] = [[] for _ in graph.nodes]
    missing = [0] * len(graph.nodes)

    def edge(before: int, after: int) -> None:
        following[before].append(after)
        missing[after] += 1

    for node in graph.living():
        for dep in node.deps:
            edge(dep, node.number)
        if node.pops_from is not None:
            edge(node.pops_from, node.number)
    for messages in graph.connections.values():
        messages.sort(key=lambda message: by(*message))
        for (push, pop), (next_push, next_pop) in pairwise(messages):
            edge(push, next_push)
            edge(pop, next_pop)
    depths, heights = _levels(graph)
    ready = [(depths[n.number], -heights[n.number], n.number) for n in graph.living() if not missing[n.number]]
    heapq.heapify(ready)
    order = []
    while ready:
        number = heapq.heappop(ready)[2]
        order.append(number)
        for after in following[number]:
            missing[after] -= 1
            if not missing[after]:
                heapq.heappush(ready, (depths[after], -heights[after], after))
    return order if len(order) == len(graph.living()) else None


def minimal_slots(graph: Graph, order: Sequence[int], thread_block_of: Sequence[Hashable], at_once: bool) -> int | None:
    """The fewest slots with which a schedule cannot deadlock; None if it needs more than MAX_SLOTS.

    More slots never cause a deadlock: they only allow pushes to run earlier.

    Args:
        graph: instructions with their dependencies, and messages in the order of the schedule.
        order: order of all instructions.
        thread_block_of: thread block of each instruction.
        at_once: True if an instruction that pops and pushes waits until it can do both, as in MSCCL's runtimes. False
            if it pops first, as in horocache's runtime.
    """
    return next((n for n in range(1, MAX_SLOTS + 1) if not circle(graph, order, thread_block_of, n, at_once)), None)


def circle(
    graph: Graph, order: Sequence[int], thread_block_of: Sequence[Hashable], slots: int, at_once: bool
) -> list[int]:
    """Instructions that wait for each other in a cycle; empty without a deadlock.

    An instruction n that pops and pushes is two events: 2n, which pops, and 2n + 1, which pushes. With ``at_once`` it
    is one event, like all other instructions. An event waits for its dependencies, for the event before it in its
    thread block, and for the push of its message. With s slots, push i + s of a connection waits for pop i.
    """
    events = {number: _events(graph.nodes[number], at_once) for number in order}
    preceding: dict[int, list[int]] = {event: [] for pair in events.values() for event in pair}
    following: dict[int, list[int]] = {event: [] for event in preceding}

    def edge(before: int, after: int) -> None:
        if before != after:
            following[before].append(after)
            preceding[after].append(before)

    last: dict[Hashable, int] = {}
    for number in order:
        node = graph.nodes[number]
        assert node is not None
        begin, end = events[number]
        edge(begin, end)
        for dep in node.deps:
            edge(events[dep][1], begin)
        if thread_block_of[number] in last:
            edge(last[thread_block_of[number]], begin)
        last[thread_block_of[number]] = end
    for messages in graph.connections.values():
        for push, pop in messages:
            edge(events[push][1], events[pop][0])
        for (_, pop), (push, _) in zip(messages, messages[slots:], strict=False):
            edge(events[pop][0], events[push][1])
    return [event // 2 for event in _stuck(following, preceding)]


def _stuck(following: dict[int, list[int]], preceding: dict[int, list[int]]) -> list[int]:
    """A cycle of a graph; empty if it has none."""
    missing = {event: len(before) for event, before in preceding.items()}
    ready = [event for event, count in missing.items() if not count]
    while ready:
        for after in following[ready.pop()]:
            missing[after] -= 1
            if not missing[after]:
                ready.append(after)
    event = next((event for event, count in missing.items() if count), None)
    path: dict[int, None] = {}
    while event is not None and event not in path:
        path[event] = None
        event = next(before for before in preceding[event] if missing[before])
    return [] if event is None else list(path)[list(path).index(event) :]


def _events(node: Instruction | None, at_once: bool) -> tuple[int, int]:
    """The first and the last event of an instruction."""
    assert node is not None
    pops, pushes = 2 * node.number, 2 * node.number + 1
    if node.op in PUSHES:
        return (pops, pushes) if node.op in POPS and not at_once else (pushes, pushes)
    return (pops, pops)
