"""The verifier refuses damaged programs, unless they compute the same result in all tested interleavings."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import pytest

from horocache.lang import (
    AllReduce,
    CompiledProgram,
    DeadlockError,
    PostconditionError,
    ProgramError,
    Promise,
    RaceError,
    RankProgram,
    Step,
    ThreadBlock,
    VerificationError,
    compile_program,
    verify,
)

from .interpreter import Stuck, execute, outputs_as_written
from .random_programs import random_program

replace = msgspec.structs.replace


def _with_thread_block(program, rank, index, thread_block):
    one = program.programs[rank]
    thread_blocks = (*one.thread_blocks[:index], *thread_block, *one.thread_blocks[index + 1 :])
    programs = (*program.programs[:rank], replace(one, thread_blocks=thread_blocks), *program.programs[rank + 1 :])
    return replace(program, programs=programs)


def _with_step(program, rank, index, at, steps):
    thread_block = program.programs[rank].thread_blocks[index]
    return _with_thread_block(
        program,
        rank,
        index,
        [replace(thread_block, steps=(*thread_block.steps[:at], *steps, *thread_block.steps[at + 1 :]))],
    )


def _without_a_wait(rng, step):
    waits = list(step.waits)
    if waits:
        waits.pop(rng.randrange(len(waits)))
    return [replace(step, waits=tuple(waits))]


def _elsewhere(rng, step):
    word = rng.choice(("source", "destination"))
    place = getattr(step, word)
    return [step if place is None else replace(step, **{word: (place[0], max(0, place[1] + rng.choice((-1, 1))))})]


def _other_op(rng, step):
    other = {"r": "rrc", "rrc": "r", "rrs": "rrcs", "rrcs": "rrs", "rcs": "rrcs", "cpy": "re", "re": "cpy"}
    return [replace(step, op=other.get(step.op, step.op))]


DAMAGES = (
    _without_a_wait,
    _without_a_wait,
    _elsewhere,
    _other_op,
    lambda rng, step: [],
    lambda rng, step: [step, step],
)


def _damaged(program: CompiledProgram, rng: random.Random) -> CompiledProgram:
    thread_blocks = [(rank, s) for rank, one in enumerate(program.programs) for s in range(len(one.thread_blocks))]
    rank, index = rng.choice(thread_blocks)
    thread_block = program.programs[rank].thread_blocks[index]
    if rng.random() < 0.3:
        steps = list(thread_block.steps)
        a, b = rng.randrange(len(steps)), rng.randrange(len(steps))
        steps[a], steps[b] = steps[b], steps[a]
        return _with_thread_block(program, rank, index, [replace(thread_block, steps=tuple(steps))])
    at = rng.randrange(len(thread_block.steps))
    return _with_step(program, rank, index, at, rng.choice(DAMAGES)(rng, thread_block.steps[at]))


def test_a_damaged_program_raises_or_is_still_correct():
    refused: dict[type, int] = {}
    for seed in range(400):
        program, rng = random_program(seed), random.Random(seed)
        compiled = compile_program(program)
        if not compiled.count_steps():
            continue
        damaged = _damaged(compiled, rng)
        try:
            verify(damaged, program.collective)
        except ProgramError as error:
            refused[type(error)] = refused.get(type(error), 0) + 1
            continue
        written = outputs_as_written(program, compiled.refinement)
        for order in range(5):
            got = execute(damaged, program.collective, damaged.min_slots, order)
            for (rank, buffer), chunks in _specified(program, written, compiled.refinement).items():
                assert all(got[rank, buffer][at] == value for at, value in chunks.items()), f"program {seed}"
    assert set(refused) == {DeadlockError, PostconditionError, RaceError, VerificationError}
    assert sum(refused.values()) > 120, refused


def _specified(program, written, fine):
    places: dict[tuple[int, str], dict[int, object]] = {}
    collective = program.collective
    for rank in range(collective.num_ranks):
        for index in range(collective.output_chunks(rank)):
            buffer, at = collective.alias(rank, "output", index)
            for part in range(at * fine, (at + 1) * fine):
                if part in written.get((rank, buffer), {}):
                    places.setdefault((rank, buffer), {})[part] = written[rank, buffer][part]
    return places


# ---- programs made by hand


@dataclass
class Hand:
    """Two ranks that exchange and add up one chunk, written as thread blocks."""

    thread_blocks: tuple[tuple[ThreadBlock, ...], tuple[ThreadBlock, ...]]
    slots: int = 1

    def compiled(self) -> CompiledProgram:
        programs = tuple(RankProgram(thread_blocks, {"tmp": 1}) for thread_blocks in self.thread_blocks)
        return CompiledProgram("hand", Promise("allreduce", 1, True), 2, programs, min_slots=self.slots)


IN, TMP = ("input", 0), ("tmp", 0)


def _exchange(peer: int, first: str) -> tuple[ThreadBlock, ...]:
    send, receive = Step("s", 1, IN), Step("r", 1, None, TMP)
    add = Step("re", 1, TMP, IN)
    steps = (send, receive, add) if first == "send" else (receive, send, add)
    return (ThreadBlock(steps, peer, peer),)


def _verify(hand: Hand) -> None:
    verify(hand.compiled(), AllReduce(2, 1, inplace=True))


def test_sends_before_receives_are_correct():
    _verify(Hand((_exchange(1, "send"), _exchange(0, "send"))))


def test_receives_before_sends_on_both_ranks_are_a_deadlock_with_its_cycle():
    with pytest.raises(DeadlockError) as raised:
        _verify(Hand((_exchange(1, "receive"), _exchange(0, "receive"))))
    assert len(raised.value.cycle) == 2
    assert "rank 0 thread block 0 step 0 (r at tmp[0]) waits for a message from rank 1 on channel 0" in str(
        raised.value
    )


def test_thread_blocks_that_wait_for_each_other_are_a_deadlock_with_its_cycle():
    send = ThreadBlock((Step("s", 1, IN, waits=((1, 1),)),), 1)
    receive = ThreadBlock((Step("r", 1, None, TMP, waits=((0, 0),)), Step("re", 1, TMP, IN)), -1, 1)
    with pytest.raises(DeadlockError, match="wait for each other") as raised:
        _verify(Hand(((send, receive), _exchange(0, "send"))))
    assert [line.split(" (")[0] for line in raised.value.cycle] == [
        "rank 0 thread block 0 step 0",
        "rank 0 thread block 1 step 0",
    ]


def test_a_missing_wait_is_a_race():
    send = ThreadBlock((Step("s", 1, IN),), 1)
    receive = ThreadBlock((Step("rrc", 1, None, IN),), -1, 1)
    with pytest.raises(RaceError, match=r"both use input\[0\] of rank"):
        _verify(Hand(((send, receive), (ThreadBlock(send.steps, 0), ThreadBlock(receive.steps, -1, 0)))))


def test_an_order_through_another_rank_is_no_race():
    """Rank 0 sends its chunk; rank 1 answers with the sum, which rank 0 may then store."""
    zero = (ThreadBlock((Step("s", 1, IN),), 1), ThreadBlock((Step("r", 1, None, IN),), -1, 1))
    one = (ThreadBlock((Step("rrcs", 1, None, IN),), 0, 0),)
    _verify(Hand((zero, one)))


def test_more_sends_than_slots_are_a_deadlock_with_few_slots_only():
    steps = (
        Step("s", 1, IN),
        Step("s", 1, IN),
        Step("r", 1, None, TMP),
        Step("r", 1, None, TMP),
        Step("re", 1, TMP, IN),
    )
    both = (ThreadBlock(steps, 1, 1),), (ThreadBlock(steps, 0, 0),)
    with pytest.raises(DeadlockError, match="with 1 slots"):
        _verify(Hand(both))
    _verify(Hand(both, slots=2))


def test_a_message_that_is_never_received_is_an_error():
    steps = (Step("s", 1, IN), Step("r", 1, None, TMP), Step("re", 1, TMP, IN))
    more = (Step("s", 1, IN), Step("s", 1, IN), *steps[1:])
    with pytest.raises(VerificationError, match="1 messages from rank 0 to rank 1 on channel 0 are never received"):
        _verify(Hand(((ThreadBlock(more, 1, 1),), (ThreadBlock(steps, 0, 0),)), slots=2))


def test_the_interpreter_gets_stuck_where_the_verifier_finds_a_deadlock():
    hand = Hand((_exchange(1, "receive"), _exchange(0, "receive"))).compiled()
    with pytest.raises(Stuck):
        execute(hand, AllReduce(2, 1, inplace=True), 1, 0)
