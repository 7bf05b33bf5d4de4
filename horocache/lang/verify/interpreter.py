"""An abstract interpreter for compiled programs: it finds their results, deadlocks and races.

Note [One run stands for all]
The conditions that a step waits for (steps before it, a message, a free slot) stay true once they are true. The
interpreter therefore gets stuck in one interleaving if and only if it gets stuck in every one, and a program that runs
with some number of slots runs with more. Two accesses to one chunk, at least one of them a write, must be ordered by
the waits of steps, not by chance or by the number of slots. If all are ordered, every interleaving computes the same,
so the values of one run are the values of all.

Clocks record the order. The clock of a step has, for each thread block of its rank, the number of steps that are known
to be finished when the step is. For example, step 0 of thread block 0 writes a chunk, and step 1 of thread block 1
waits for it and reads the chunk. The reader's clock is [1, 2], so the write comes first. Without the wait the clock is
[0, 2]. The clocks contain the order that the rank's own thread blocks imply. If they do not order two accesses, the
interpreter searches for a path through other ranks before it reports a race. The compiler never relies on such a path,
but programs written by hand may.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from horocache.lang.errors import DeadlockError, RaceError, VerificationError
from horocache.lang.frontend.symbolic import Value, Values
from horocache.lang.program.compiled_program import CompiledProgram, Operand, Step
from horocache.lang.program.instruction_dag import POPS, PUSHES, READS_DESTINATION, WRITES

At = tuple[int, int, int]  # rank, thread block, step
Connection = tuple[int, int, int]  # source, destination, channel
Order = tuple[int, int] | None  # first and last of the ranks that are folded in rank order; None: another order


@dataclass(frozen=True)
class Held:
    """Contents of a fine chunk.

    Attributes:
        value: symbolic value.
        order: order in which the value was folded.
        size_class: size class of the contents.
    """

    value: Value
    order: Order
    size_class: int


Message = tuple[int, int, list[Held], At]  # size class, first part of the chunk, contents, step that pushed it


@dataclass
class _Accesses:
    """Accesses to a fine chunk: the step that wrote it last, and the steps that have read it since."""

    writer: At | None = None
    readers: list[At] = field(default_factory=list)


class Machine:
    """Runs one program once.

    Args:
        program: a program whose structure has been checked.
        slots: number of slots of each connection.
        values: table of the symbolic values.
        memory: by rank and buffer, the contents of each fine chunk; None for a chunk without data. The run changes it.
        at_once: True if a step that pops and pushes waits until it can do both.

    Attributes:
        finishes: for each step that adds: True if each of its sums contains one chunk of every rank, each once; False
            if none does; None if only some do.
    """

    def __init__(
        self,
        program: CompiledProgram,
        slots: int,
        values: Values,
        memory: dict[tuple[int, str], list[Held | None]],
        at_once: bool = False,
    ) -> None:
        self.memory = memory
        self.finishes: dict[At, bool | None] = {}
        self._at_once = at_once
        self._program, self._slots, self._values = program, slots, values
        self._thread_blocks = [[thread_block.steps for thread_block in one.thread_blocks] for one in program.programs]
        self._next = [[0] * len(thread_blocks) for thread_blocks in self._thread_blocks]
        self._popped: dict[tuple[int, int], list[Held]] = {}  # by rank and thread block: contents still to be pushed
        self._queues: dict[Connection, deque[Message]] = defaultdict(deque)
        self._waiting: dict[object, list[tuple[int, int]]] = defaultdict(list)
        self._blocked: dict[tuple[int, int], object] = {}
        self._clocks: dict[At, list[int]] = {}
        self._pushers: dict[At, At] = {}  # by the step that popped a message: the step that pushed it
        self._accesses: dict[tuple[int, str, int], _Accesses] = defaultdict(_Accesses)

    # ---- running

    def run(self) -> None:
        """Run the program to its end. Raises DeadlockError, RaceError, VerificationError."""
        ready = deque(
            (rank, thread_block)
            for rank, thread_blocks in enumerate(self._thread_blocks)
            for thread_block in range(len(thread_blocks))
        )
        while ready:
            rank, thread_block = ready.popleft()
            reason = self._run_thread_block(rank, thread_block, ready)
            if reason is not None:
                self._blocked[rank, thread_block] = reason
                self._waiting[reason].append((rank, thread_block))
        if self._blocked:
            self._report_deadlock()
        for (source, destination, channel), queue in self._queues.items():
            if queue:
                raise VerificationError(
                    f"{len(queue)} messages from rank {source} to rank {destination} on channel {channel} are never "
                    f"received; the first is {self.text(queue[0][3])}."
                )

    def _run_thread_block(self, rank: int, thread_block: int, ready: deque[tuple[int, int]]) -> object | None:
        """Run a thread block as far as possible, and return the event that it waits for; None at its end."""
        steps = self._thread_blocks[rank][thread_block]
        while self._next[rank][thread_block] < len(steps):
            at = (rank, thread_block, self._next[rank][thread_block])
            reason = self._run_step(at, steps[at[2]], ready)
            if reason is not None:
                return reason
            self._next[rank][thread_block] += 1
            self._wake(at, ready)
        return None

    def _run_step(self, at: At, step: Step, ready: deque[tuple[int, int]]) -> object | None:
        rank, thread_block, _ = at
        one = self._program.programs[rank].thread_blocks[thread_block]
        outbound = (rank, one.send, one.channel)
        if (rank, thread_block) not in self._popped:
            for other, index in step.waits:
                if self._next[rank][other] <= index:
                    return (rank, other, index)
            inbound = (one.receive, rank, one.channel)
            if step.op in POPS and not self._queues[inbound]:
                return ("message", inbound)
            if self._at_once and step.op in PUSHES and len(self._queues[outbound]) >= self._slots:
                return ("slot", outbound)
            self._begin(at, step)
            self._popped[rank, thread_block] = self._work(at, step, inbound, ready)
        if step.op in PUSHES:
            if len(self._queues[outbound]) >= self._slots:
                return ("slot", outbound)
            place = step.source or step.destination
            assert place is not None
            part = place[1] % self._program.refinement
            self._queues[outbound].append((step.size_class, part, self._popped[rank, thread_block], at))
            self._wake(("message", outbound), ready)
        del self._popped[rank, thread_block]
        return None

    def _wake(self, event: object, ready: deque[tuple[int, int]]) -> None:
        for thread_block in self._waiting.pop(event, ()):
            del self._blocked[thread_block]
            ready.append(thread_block)

    def _work(self, at: At, step: Step, inbound: Connection, ready: deque[tuple[int, int]]) -> list[Held]:
        """Run a step without its push, and return the contents to push."""
        rank = at[0]
        if step.op in POPS:
            size_class, part, held, pusher = self._queues[inbound].popleft()
            self._pushers[at] = pusher
            self._wake(("slot", inbound), ready)
            self._check_message(at, step, size_class, part, len(held))
        else:
            assert step.source is not None
            held = self._read(at, step, step.source)
        if step.op in READS_DESTINATION:
            assert step.destination is not None
            mine = self._read(at, step, step.destination)
            held = [self._add(a, b) for a, b in zip(mine, held, strict=True)]
            whole = {self._values.is_whole(one.value, self._program.ranks) for one in held}
            self.finishes[at] = None if len(whole) > 1 else whole == {True}
        if step.op in WRITES:
            assert step.destination is not None
            buffer, index = step.destination
            for i, one in enumerate(held):
                self._note_write(at, (rank, buffer, index + i))
                self.memory[rank, buffer][index + i] = one
        return held

    def _check_message(self, at: At, step: Step, size_class: int, part: int, count: int) -> None:
        assert step.destination is not None
        expected = (step.count, step.size_class, step.destination[1] % self._program.refinement)
        if (count, size_class, part) != expected:
            raise VerificationError(
                f"{self.text(at)} expects {expected[0]} fine chunks of size class {expected[1]} from part {expected[2]}"
                f" on, and gets {count} of class {size_class} from part {part} on, of {self.text(self._pushers[at])}."
            )

    def _add(self, mine: Held, other: Held) -> Held:
        return Held(self._values.add(mine.value, other.value), _fold(mine.order, other.order), mine.size_class)

    def _read(self, at: At, step: Step, place: Operand) -> list[Held]:
        rank = at[0]
        buffer, index = place
        refinement, classes = self._program.refinement, self._values.classes
        part = index % refinement
        out = []
        for i in range(step.count):
            held = self.memory[rank, buffer][index + i]
            if held is None:
                raise VerificationError(f"{self.text(at)} reads {buffer}[{index + i}], to which nothing was written.")
            size_class = (step.size_class + (part + i) // refinement) % classes
            if not self._program.uniform and held.size_class != size_class:
                raise VerificationError(
                    f"{self.text(at)} reads {buffer}[{index + i}] as of size class {size_class}; it holds one of class "
                    f"{held.size_class}."
                )
            self._note_read(at, (rank, buffer, index + i))
            out.append(held)
        return out

    # ---- races

    def _begin(self, at: At, step: Step) -> None:
        rank, thread_block, index = at
        before = self._clocks.get((rank, thread_block, index - 1))
        clock = list(before) if before is not None else [0] * len(self._thread_blocks[rank])
        for other, done in step.waits:
            clock = [max(pair) for pair in zip(clock, self._clocks[rank, other, done], strict=True)]
        clock[thread_block] = index + 1
        self._clocks[at] = clock

    def _note_read(self, at: At, place: tuple[int, str, int]) -> None:
        accesses = self._accesses[place]
        if accesses.writer is not None:
            self._check_ordered(accesses.writer, at, place)
        accesses.readers.append(at)

    def _note_write(self, at: At, place: tuple[int, str, int]) -> None:
        accesses = self._accesses[place]
        if accesses.writer is not None:
            self._check_ordered(accesses.writer, at, place)
        for reader in accesses.readers:
            self._check_ordered(reader, at, place)
        accesses.writer, accesses.readers = at, []

    def _check_ordered(self, first: At, then: At, place: tuple[int, str, int]) -> None:
        if first == then or self._clocks[then][first[1]] > first[2] or self._leads_to(first, then):
            return
        rank, buffer, index = place
        raise RaceError(
            f"{self.text(first)} and {self.text(then)} both use {buffer}[{index}] of rank {rank}, one of them writes "
            "it, and nothing orders them."
        )

    def _leads_to(self, first: At, then: At) -> bool:
        """True if a path through thread blocks, waits and messages leads from ``first`` to ``then``."""
        seen, stack = {then}, [then]
        while stack:
            for before in self._before(stack.pop()):
                if before == first:
                    return True
                if before not in seen:
                    seen.add(before)
                    stack.append(before)
        return False

    def _before(self, at: At) -> Iterator[At]:
        rank, thread_block, index = at
        if index > 0:
            yield (rank, thread_block, index - 1)
        for other, done in self._thread_blocks[rank][thread_block][index].waits:
            yield (rank, other, done)
        if at in self._pushers:
            yield self._pushers[at]

    # ---- error reports

    def text(self, at: At) -> str:
        """Text for messages: the position of a step, its opcode and its chunks."""
        rank, thread_block, index = at
        step = self._thread_blocks[rank][thread_block][index]
        places = "".join(
            f" {word} {place[0]}[{place[1]}]"
            for word, place in (("from", step.source), ("at", step.destination))
            if place is not None
        )
        return f"rank {rank} thread block {thread_block} step {index} ({step.op}{places})"

    def _report_deadlock(self) -> None:
        """Follow the waits to a cycle or to an event that never happens, and raise DeadlockError."""
        owners = self._owners()
        where = min(self._blocked)
        path: list[tuple[int, int]] = []
        lines: list[str] = []
        while where in self._blocked and where not in path:
            path.append(where)
            reason = self._blocked[where]
            at = (*where, self._next[where[0]][where[1]])
            lines.append(f"{self.text(at)} waits for {self._reason(reason)}")
            where = self._culprit(reason, owners)
        begin = path.index(where) if where in path else 0
        lines = lines[begin:]
        what = "wait for each other" if where in path else "wait for events that never happen"
        text = "\n  ".join(lines)
        raise DeadlockError(f"with {self._slots} slots, thread blocks {what}:\n  {text}", lines)

    def _owners(self) -> dict[object, tuple[int, int]]:
        """The thread block that ends a wait for a message or a slot, by the event."""
        owners: dict[object, tuple[int, int]] = {}
        for rank, one in enumerate(self._program.programs):
            for index, thread_block in enumerate(one.thread_blocks):
                if thread_block.send >= 0:
                    owners["message", (rank, thread_block.send, thread_block.channel)] = (rank, index)
                if thread_block.receive >= 0:
                    owners["slot", (thread_block.receive, rank, thread_block.channel)] = (rank, index)
        return owners

    def _culprit(self, reason: object, owners: dict[object, tuple[int, int]]) -> tuple[int, int]:
        assert isinstance(reason, tuple)
        return owners.get(reason, (-1, -1)) if isinstance(reason[0], str) else (reason[0], reason[1])

    def _reason(self, reason: object) -> str:
        assert isinstance(reason, tuple)
        if reason[0] == "message":
            source, _, channel = reason[1]
            return f"a message from rank {source} on channel {channel}"
        if reason[0] == "slot":
            _, destination, channel = reason[1]
            return f"a free slot to rank {destination} on channel {channel}"
        return self.text(reason)


def _fold(mine: Order, other: Order) -> Order:
    """Order of a sum: rank order if one side has ranks 0 to r in rank order and the other side has rank r + 1."""
    for whole, next_one in ((mine, other), (other, mine)):
        if whole is not None and next_one is not None and whole[0] == 0 and next_one == (whole[1] + 1, whole[1] + 1):
            return (0, whole[1] + 1)
    return None
