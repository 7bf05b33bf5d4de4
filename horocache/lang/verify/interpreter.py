"""An abstract machine for compiled programs: what they compute, whether they hang, and whether they race.

Note [One run stands for all]
What a step waits for (steps before it, a message, a free slot) stays true once it is true, so the machine gets stuck in
one interleaving if and only if it does in every one, and a program that runs with some number of slots runs with more.
Two accesses to one chunk of which one writes must be ordered by what steps wait for, and not by chance or by how many
slots there are. If all are, every interleaving computes the same, so the values of one run are those of all.

What has happened before is told by clocks: for each strand of a rank, how many of its steps are known to be over. They
hold what the rank's own strands imply. An order that leads through other ranks is searched for where the clocks do not
tell of one; our compiler never relies on that, but programs made by hand may.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from horocache.lang.errors import DeadlockError, RaceError, VerificationError
from horocache.lang.frontend.symbolic import Value, Values
from horocache.lang.program.compiled_program import CompiledProgram, Operand, Step
from horocache.lang.program.instruction_dag import POPS, PUSHES, READS_DESTINATION, WRITES

At = tuple[int, int, int]  # rank, strand, step
Connection = tuple[int, int, int]  # source, destination, channel
Order = tuple[int, int] | None  # ranks folded from the first to the last, in their order; None: in another one


@dataclass(frozen=True)
class Held:
    """What a fine chunk holds.

    Attributes:
        value: symbolically.
        order: in which it was folded.
        size_class: whose size it has; -1: not known.
    """

    value: Value
    order: Order
    size_class: int


Message = tuple[int, int, list[Held], At]  # size class, part of the chunk at which it begins, contents, who pushed it


@dataclass
class _Accesses:
    """To a fine chunk: who wrote it last, and who has read it since."""

    writer: At | None = None
    readers: list[At] = field(default_factory=list)


class Machine:
    """Runs one program once.

    Args:
        program: its structure has been checked.
        slots: of each connection.
        memory: by rank and buffer, what each fine chunk holds; None for nothing. Changed.
        at_once: what pops and pushes waits until it can do both.

    Attributes:
        finishes: steps that add, and for each whether all its sums are then of all ranks, each once; None if some are.
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
        self._strands = [[strand.steps for strand in one.strands] for one in program.programs]
        self._next = [[0] * len(strands) for strands in self._strands]
        self._popped: dict[tuple[int, int], list[Held]] = {}  # by rank and strand: what waits to be pushed
        self._queues: dict[Connection, deque[Message]] = defaultdict(deque)
        self._waiting: dict[object, list[tuple[int, int]]] = defaultdict(list)
        self._blocked: dict[tuple[int, int], object] = {}
        self._clocks: dict[At, list[int]] = {}
        self._pushers: dict[At, At] = {}  # of steps that pop
        self._accesses: dict[tuple[int, str, int], _Accesses] = defaultdict(_Accesses)

    # ---- running

    def run(self) -> None:
        """To the end. Raises DeadlockError, RaceError, VerificationError."""
        ready = deque((rank, strand) for rank, strands in enumerate(self._strands) for strand in range(len(strands)))
        while ready:
            rank, strand = ready.popleft()
            reason = self._run_strand(rank, strand, ready)
            if reason is not None:
                self._blocked[rank, strand] = reason
                self._waiting[reason].append((rank, strand))
        if self._blocked:
            self._report_deadlock()
        for (source, destination, channel), queue in self._queues.items():
            if queue:
                raise VerificationError(
                    f"{len(queue)} messages from rank {source} to rank {destination} on channel {channel} are never "
                    f"received; the first is {self.text(queue[0][3])}."
                )

    def _run_strand(self, rank: int, strand: int, ready: deque[tuple[int, int]]) -> object | None:
        """As far as it goes; gives what it then waits for, None at its end."""
        steps = self._strands[rank][strand]
        while self._next[rank][strand] < len(steps):
            at = (rank, strand, self._next[rank][strand])
            reason = self._run_step(at, steps[at[2]], ready)
            if reason is not None:
                return reason
            self._next[rank][strand] += 1
            self._wake(at, ready)
        return None

    def _run_step(self, at: At, step: Step, ready: deque[tuple[int, int]]) -> object | None:
        rank, strand, _ = at
        one = self._program.programs[rank].strands[strand]
        outbound = (rank, one.send, one.channel)
        if (rank, strand) not in self._popped:
            for other, index in step.waits:
                if self._next[rank][other] <= index:
                    return (rank, other, index)
            inbound = (one.receive, rank, one.channel)
            if step.op in POPS and not self._queues[inbound]:
                return ("message", inbound)
            if self._at_once and step.op in PUSHES and len(self._queues[outbound]) >= self._slots:
                return ("slot", outbound)
            self._begin(at, step)
            self._popped[rank, strand] = self._work(at, step, inbound, ready)
        if step.op in PUSHES:
            if len(self._queues[outbound]) >= self._slots:
                return ("slot", outbound)
            place = step.source or step.destination
            assert place is not None
            part = place[1] % self._program.refinement
            self._queues[outbound].append((step.size_class, part, self._popped[rank, strand], at))
            self._wake(("message", outbound), ready)
        del self._popped[rank, strand]
        return None

    def _wake(self, event: object, ready: deque[tuple[int, int]]) -> None:
        for strand in self._waiting.pop(event, ()):
            del self._blocked[strand]
            ready.append(strand)

    def _work(self, at: At, step: Step, inbound: Connection, ready: deque[tuple[int, int]]) -> list[Held]:
        """Everything but the push; gives what is pushed."""
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
        rank, strand, index = at
        before = self._clocks.get((rank, strand, index - 1))
        clock = list(before) if before is not None else [0] * len(self._strands[rank])
        for other, done in step.waits:
            clock = [max(pair) for pair in zip(clock, self._clocks[rank, other, done], strict=True)]
        clock[strand] = index + 1
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
        """Whether any way through strands, waits and messages leads from the one to the other."""
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
        rank, strand, index = at
        if index > 0:
            yield (rank, strand, index - 1)
        for other, done in self._strands[rank][strand][index].waits:
            yield (rank, other, done)
        if at in self._pushers:
            yield self._pushers[at]

    # ---- what goes wrong

    def text(self, at: At) -> str:
        """For people: where a step is, and what it does."""
        rank, strand, index = at
        step = self._strands[rank][strand][index]
        places = "".join(
            f" {word} {place[0]}[{place[1]}]"
            for word, place in (("from", step.source), ("at", step.destination))
            if place is not None
        )
        return f"rank {rank} strand {strand} step {index} ({step.op}{places})"

    def _report_deadlock(self) -> None:
        """Follow who waits for whom, to a circle or to what never happens."""
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
        what = "wait for each other" if where in path else "wait for what never happens"
        text = "\n  ".join(lines)
        raise DeadlockError(f"with {self._slots} slots, strands {what}:\n  {text}", lines)

    def _owners(self) -> dict[object, tuple[int, int]]:
        """Who ends a wait for a message, and who one for a slot."""
        owners: dict[object, tuple[int, int]] = {}
        for rank, one in enumerate(self._program.programs):
            for index, strand in enumerate(one.strands):
                if strand.send >= 0:
                    owners["message", (rank, strand.send, strand.channel)] = (rank, index)
                if strand.receive >= 0:
                    owners["slot", (strand.receive, rank, strand.channel)] = (rank, index)
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
    """Of a sum: rank order is the first ranks, one after the other; which side the next one is on does not matter."""
    for whole, next_one in ((mine, other), (other, mine)):
        if whole is not None and next_one is not None and whole[0] == 0 and next_one == (whole[1] + 1, whole[1] + 1):
            return (0, whole[1] + 1)
    return None
