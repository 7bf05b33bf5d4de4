"""The cost model: predicts the time of a program on a machine by a simulation of its steps, event by event.

Links follow the alpha-beta model, as in MSCCLang and much earlier work. A message occupies its link for a time that is
proportional to its bytes, followed by a gap, and arrives after the link's latency. For example, over a link of 1 us and
10 GB/s without a gap, two messages of 10,000 bytes that are sent at time 0 arrive after 2 us and 3 us.
A rank runs one step at a time, like the executor. A step takes a fixed time plus a time per byte. Steps wait for the
same events as in the executor, tile by tile: messages, free slots, and steps of other thread blocks.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

from horocache.lang.program.chunk_layout import Sizes
from horocache.lang.program.collective_spec import collective_of
from horocache.lang.program.compiled_program import CompiledProgram, Step, ThreadBlock
from horocache.lang.program.instruction_dag import POPS, PUSHES
from horocache.lang.tuning.machine_model import Machine

_MESSAGE_BYTES = 256 << 10  # of the longest message by default, as in cpp_core/program/link_plan.cc
_SLOTS = 4  # of a connection by default, as in cpp_core/program/shm_links.h
_Place = tuple[int, int]  # rank, thread block


@dataclass(frozen=True)
class Processor:
    """Cost of a step on a rank.

    Attributes:
        step_us: microseconds of each step.
        gb_per_s: bytes that the rank copies or adds in a nanosecond.
    """

    step_us: float = 0.3
    gb_per_s: float = 8.0


class _Simulation:
    """One simulated run. Times are in nanoseconds."""

    def __init__(self, program: CompiledProgram, sizes: Sizes, machine: Machine, processor: Processor) -> None:
        self._program, self._sizes, self._processor = program, sizes, processor
        ports, self._port_of = machine.ports()
        self._ports = ports
        self._port_free = [0.0] * len(ports)
        self._rank_free = [0.0] * program.ranks
        self._slots = max(program.min_slots, program.slots or _SLOTS)
        most = max(
            (s.count for one in program.programs for thread_block in one.thread_blocks for s in thread_block.steps),
            default=1,
        )
        self._tile = max(1, (program.tile or _MESSAGE_BYTES) // most // sizes.itemsize)
        self._tiles = max(1, -(-sizes.most_part() // self._tile))
        self._at: dict[_Place, tuple[int, int]] = {}  # the next tile and step of each thread block
        self._done: dict[tuple[_Place, int, int], float] = {}  # thread block, tile, step -> end
        self._arrived: dict[tuple[int, int, int], list[float]] = defaultdict(list)  # connection -> arrival times
        self._popped: dict[tuple[int, int, int], list[float]] = defaultdict(list)
        self._waiting: dict[object, list[_Place]] = defaultdict(list)
        self._due: list[tuple[float, _Place]] = []

    def run(self) -> float:
        """Run the simulation, and return the time at which the last step ends."""
        for rank, one in enumerate(self._program.programs):
            for number, thread_block in enumerate(one.thread_blocks):
                if thread_block.steps:
                    self._at[rank, number] = (0, 0)
                    self._look((rank, number))
        end = 0.0
        while self._due:
            ready, place = heapq.heappop(self._due)
            end = max(end, self._step(place, ready))
        left = [place for place, (tile, _) in self._at.items() if tile < self._tiles]
        if left:
            raise RuntimeError(f"the thread blocks {left} (rank, number) never end: the program was not proved")
        return end

    def _thread_block(self, place: _Place) -> ThreadBlock:
        return self._program.programs[place[0]].thread_blocks[place[1]]

    def _look(self, place: _Place) -> None:
        """Make the next step of a thread block due, or record the event that it waits for."""
        tile, number = self._at[place]
        thread_block = self._thread_block(place)
        step = thread_block.steps[number]
        rank = place[0]
        ready = self._done.get((place, tile, number - 1), 0.0) if number else 0.0
        if not number and tile:
            ready = self._done[place, tile - 1, len(thread_block.steps) - 1]
        for other, index in step.waits:
            key = ((rank, other), tile, index)
            if key not in self._done:
                self._waiting[key].append(place)
                return
            ready = max(ready, self._done[key])
        if step.op in POPS:
            connection = (thread_block.receive, rank, thread_block.channel)
            taken = len(self._popped[connection])
            if taken >= len(self._arrived[connection]):
                self._waiting["message", connection].append(place)
                return
            ready = max(ready, self._arrived[connection][taken])
        elif step.op in PUSHES:  # a step that also pops waits for a slot after its pop; the model omits that wait
            connection = (rank, thread_block.send, thread_block.channel)
            oldest = len(self._arrived[connection]) - self._slots
            if oldest >= 0:
                if oldest >= len(self._popped[connection]):
                    self._waiting["slot", connection].append(place)
                    return
                ready = max(ready, self._popped[connection][oldest])
        heapq.heappush(self._due, (ready, place))

    def _step(self, place: _Place, ready: float) -> float:
        tile, number = self._at[place]
        rank, thread_block = place[0], self._thread_block(place)
        step = thread_block.steps[number]
        size = self._bytes(step, tile)
        begin = max(ready, self._rank_free[rank])
        end = begin + self._processor.step_us * 1e3 + size / self._processor.gb_per_s
        self._rank_free[rank] = self._done[place, tile, number] = end
        if step.op in POPS:
            connection = (thread_block.receive, rank, thread_block.channel)
            self._popped[connection].append(end)
            self._wake("slot", connection)
        if step.op in PUSHES:
            self._send(rank, thread_block, size, end)
        last = number + 1 == len(thread_block.steps)
        self._at[place] = (tile + 1, 0) if last else (tile, number + 1)
        for other in self._waiting.pop((place, tile, number), []):
            self._look(other)
        if self._at[place][0] < self._tiles:
            self._look(place)
        return end

    def _send(self, rank: int, thread_block: ThreadBlock, size: int, now: float) -> None:
        port = self._port_of[rank * self._program.ranks + thread_block.send]
        latency, ns_per_byte, gap = self._ports[port]
        self._port_free[port] = max(self._port_free[port], now) + size * ns_per_byte + gap
        connection = (rank, thread_block.send, thread_block.channel)
        self._arrived[connection].append(self._port_free[port] - gap + latency)
        self._wake("message", connection)

    def _wake(self, what: str, connection: tuple[int, int, int]) -> None:
        for place in self._waiting.pop((what, connection), []):
            self._look(place)

    def _bytes(self, step: Step, tile: int) -> int:
        """Bytes of one tile of a step's fine chunks."""
        place = step.destination or step.source
        assert place is not None
        elements = 0
        for index in range(step.count):
            more, part = divmod(place[1] % self._sizes.refinement + index, self._sizes.refinement)
            size = self._sizes.part((step.size_class + more) % self._sizes.classes, part)
            elements += min(max(size - tile * self._tile, 0), self._tile)
        return elements * self._sizes.itemsize


def predict(
    program: CompiledProgram,
    elements: int,
    machine: Machine,
    *,
    itemsize: int = 4,
    processor: Processor | None = None,
) -> float:
    """Predict the time of a program on a machine, in microseconds.

    Args:
        program: the compiled program.
        elements: number of elements in one chunk of every class together: the whole tensor of an allreduce, one rank's
            part of an allgather.
        machine: a machine with the program's number of ranks.
        itemsize: bytes of an element.
        processor: cost of a step on a rank; by default ``Processor()``.

    Raises:
        ValueError: the machine has another number of ranks.
    """
    if machine.ranks != program.ranks:
        raise ValueError(f"the program is for {program.ranks} ranks, and the machine has {machine.ranks}")
    classes = collective_of(program.collective, program.ranks).classes
    sizes = Sizes(elements, itemsize, classes, program.refinement)
    return _Simulation(program, sizes, machine, processor or Processor()).run() / 1e3
