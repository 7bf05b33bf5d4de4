"""The compiler's output: merging, channels, thread blocks, instances, slots."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from horocache.lang import (
    AllReduce,
    Broadcast,
    Buffer,
    Custom,
    Gather,
    Program,
    Reduce,
    Scatter,
    ScheduleError,
    UsageError,
    algorithms,
    chunk,
    compile_program,
    parallelize,
)
from horocache.lang.formats.program_json import encode

from .interpreter import execute, outputs_as_written

IN, OUT = Buffer.input, Buffer.output


def ops(compiled):
    return Counter(
        step.op for one in compiled.programs for thread_block in one.thread_blocks for step in thread_block.steps
    )


def check(program):
    """Compile a program, compare it with the written one in some interleavings, and return it."""
    compiled = compile_program(program)
    written = outputs_as_written(program, compiled.refinement)
    for slots in range(compiled.min_slots, 9):
        for seed in range(10):
            got = execute(compiled, program.collective, slots, seed)
            for rank in range(compiled.ranks):
                for index in range(program.collective.output_chunks(rank)):
                    buffer, at = program.collective.alias(rank, OUT, index)
                    for part in range(at * compiled.refinement, (at + 1) * compiled.refinement):
                        want = written.get((rank, buffer), {}).get(part)
                        assert want is None or got[rank, buffer][part] == want
    return compiled


def custom(ranks, chunks, write, **options):
    """A program whose collective specifies, for every chunk of the inputs, the result of the program's operations."""
    expected = {}
    collective = Custom("custom", ranks, chunks, chunks, lambda r, c: expected.get((r, c)), inplace=True)
    with Program("custom", collective, **options) as program:
        write()
    for rank in range(ranks):
        for index in range(chunks):
            terms = program.memory.values.terms(program.memory.at(rank, IN, index).value)
            expected[rank, index] = [origin for origin, count in terms for _ in range(count)]
    return program


def reduce(source, target):
    chunk(*target).reduce(chunk(*source))


def copy(source, target):
    chunk(*source).copy(*target)


# ---- programs that other compilers get wrong


def test_a_local_reduction_of_two_inputs_is_not_dropped():
    def write():
        reduce((2, IN, 0), (2, IN, 1))
        copy((0, IN, 1), (2, IN, 0))

    assert ops(check(custom(3, 2, write)))["re"] == 1


def test_sends_and_receives_are_on_the_same_channels():
    def write():
        reduce((0, IN, 1), (2, IN, 1))
        copy((2, IN, 2), (1, IN, 2))
        reduce((2, IN, 1), (1, IN, 1))
        copy((2, IN, 2), (1, IN, 2))

    check(custom(3, 3, write))


def test_a_connection_has_one_thread_block_at_each_end():
    def write():
        reduce((1, IN, 0), (0, IN, 0))
        reduce((2, IN, 0), (1, IN, 0))
        reduce((1, IN, 1), (2, IN, 1))
        copy((2, IN, 1), (1, IN, 1))
        copy((1, IN, 1), (2, IN, 1))

    check(custom(3, 2, write))


def test_a_reduction_of_another_ranks_scratch_adds_the_sent_value():
    def write():
        chunk(0, IN, 0).copy(0, "s", 0)
        chunk(1, IN, 1).reduce(chunk(0, "s", 0))

    check(custom(2, 2, write))


@pytest.mark.parametrize("instances", [1, 2, 3])
def test_different_counts_are_correct_with_every_number_of_instances(instances):
    with Program("mixed", AllReduce(2, 2, inplace=True), instances=instances) as program:
        for index in range(2):
            chunk(0, IN, index).reduce(chunk(1, IN, index))
        chunk(0, IN, 0, 2).copy(1, IN, 0)
    check(program)


# ---- merging


def _manual_ring(**options):
    """Three ranks, one thread block each."""
    with Program("ring", AllReduce(3, 3, inplace=True), **options) as program:
        for first in range(3):
            for step in range(2):
                source, target = (first + 1 + step) % 3, (first + 2 + step) % 3
                chunk(target, IN, first).reduce(
                    chunk(source, IN, first), send_thread_block=0, recv_thread_block=0, channel=0
                )
            for step in range(2):
                source, target = (first + step) % 3, (first + 1 + step) % 3
                chunk(source, IN, first).copy(target, IN, first, send_thread_block=0, recv_thread_block=0, channel=0)
    return program


def test_a_ring_is_merged_to_one_thread_block_per_rank():
    compiled = check(_manual_ring())
    for one in compiled.programs:
        [thread_block] = one.thread_blocks
        assert Counter(step.op for step in thread_block.steps) == Counter(["s", "rrs", "rrcs", "rcs", "r"])


def test_without_merging_there_are_more_steps_and_the_same_result():
    merged, plain = check(_manual_ring()), check(_manual_ring(fuse=False))
    assert ops(plain) == Counter(s=12, rrc=6, r=6)
    assert plain.count_steps() > merged.count_steps()


def test_a_sum_that_is_read_later_is_stored():
    with Program("seen", AllReduce(3, 1, inplace=True)) as program:
        reduce((0, IN, 0), (1, IN, 0))
        chunk(1, IN, 0).copy(1, "kept", 0)
        reduce((1, IN, 0), (2, IN, 0))
        chunk(1, "kept", 0).reduce(chunk(1, IN, 0))
        chunk(2, IN, 0).copy(0, IN, 0)
        chunk(2, IN, 0).copy(1, IN, 0)
    assert ops(check(program))["rrs"] == 0


# ---- instances and fragments


def test_each_instance_runs_the_whole_program_on_its_own_channel():
    one = compile_program(algorithms.ring(4))
    four = check(algorithms.ring(4, instances=4))
    assert four.count_steps() == 4 * one.count_steps()
    assert {thread_block.channel for thread_block in four.programs[0].thread_blocks} == {0, 1, 2, 3}
    assert four.refinement == 4


def test_messages_are_spread_over_channels_unless_the_program_places_them():
    one, two = check(algorithms.ring(4)), check(algorithms.ring(4, channels=2))
    assert [len(each.thread_blocks) for each in two.programs] == [2] * 4
    assert {thread_block.channel for thread_block in two.programs[0].thread_blocks} == {0, 1}
    assert two.count_steps() == one.count_steps()
    for number in (0, 33):
        with pytest.raises(UsageError, match=f"channels is {number}"):
            algorithms.ring(4, channels=number)
    placed = check(_manual_ring(channels=2))  # every operation in it names its channel
    assert placed == check(_manual_ring())


def _ahead(slots):
    """A manual placement: each rank sends all chunks in one thread block, which also receives."""
    with Program("ahead", AllReduce(2, 4, inplace=True), slots=slots, fuse=False) as program:
        for index in range(4):
            for rank in range(2):
                chunk(rank, IN, index).copy(
                    1 - rank, "other", index, send_thread_block=0, recv_thread_block=0, channel=0
                )
        for index in range(4):
            for rank in range(2):
                chunk(rank, IN, index).reduce(chunk(rank, "other", index))
    return program


def test_a_program_that_needs_more_slots_than_it_has_raises():
    assert check(_ahead(8)).min_slots == 4
    with pytest.raises(ScheduleError, match=r"test_compiler.py:\d+: program 'ahead' .* needs 4 slots, and has 2"):
        compile_program(_ahead(2))


def _tree(factor):
    with Program("partly", AllReduce(2, 1, inplace=True)) as program:
        with parallelize(factor):
            reduce((1, IN, 0), (0, IN, 0))
        copy((0, IN, 0), (1, IN, 0))
    return program


def test_only_the_fragment_is_parallelized():
    compiled = check(_tree(4))
    assert ops(compiled) == Counter(s=5, rrc=4, r=1)
    zero = compiled.programs[0].thread_blocks
    assert sorted(thread_block.channel for thread_block in zero if thread_block.receive == 1) == [1, 2, 3, 4]
    assert [len(step.waits) for thread_block in zero for step in thread_block.steps if step.op == "s"] == [4]


def test_fragments_within_fragments_multiply():
    with Program("nested", AllReduce(2, 1, inplace=True), instances=2) as program:
        with parallelize(2), parallelize(3):
            reduce((1, IN, 0), (0, IN, 0))
        copy((0, IN, 0), (1, IN, 0))
    compiled = check(program)
    assert compiled.refinement == 12
    assert ops(compiled) == Counter(s=12 + 2, rrc=12, r=2)


def test_chunks_that_are_copied_together_are_one_message():
    def write(count):
        def inner():
            for index in range(0, 4, count):
                chunk(0, IN, index, count).copy(1, IN, index)

        return inner

    assert ops(check(custom(2, 4, write(1))))["s"] == 4
    assert ops(check(custom(2, 4, write(4)))) == Counter(s=1, r=1)


# ---- placement by hand


def test_a_thread_block_with_two_peers_in_one_direction_raises():
    with Program("two", AllReduce(3, 1, inplace=True)) as program:
        reduce((1, IN, 0), (0, IN, 0))
        reduce((2, IN, 0), (0, IN, 0))
        chunk(0, IN, 0).copy(1, IN, 0, send_thread_block=1)
        chunk(0, IN, 0).copy(2, IN, 0, send_thread_block=1)
    with pytest.raises(ScheduleError, match=r"thread block 1 of rank 0 sends to rank 1 and rank 2") as raised:
        compile_program(program)
    assert raised.value.location.file == __file__


def test_two_thread_blocks_on_one_connection_with_a_given_channel_raise():
    def write(channel):
        def inner():
            chunk(0, IN, 0).copy(1, IN, 0, send_thread_block=0, recv_thread_block=0, channel=channel)
            chunk(0, IN, 1).copy(1, IN, 1, send_thread_block=1, recv_thread_block=1, channel=channel)

        return inner

    with pytest.raises(ScheduleError, match=r"two thread blocks of rank 0 are sending on one connection, to rank 1"):
        compile_program(custom(2, 2, write(0)))
    compiled = check(custom(2, 2, write(None)))
    assert [thread_block.channel for thread_block in compiled.programs[0].thread_blocks] == [0, 1]


def test_manual_placements_are_kept():
    def write():
        for index in range(4):
            chunk(0, IN, index).copy(1, IN, index, send_thread_block=index % 2, recv_thread_block=index % 2)

    compiled = check(custom(2, 4, write))
    assert [len(thread_block.steps) for thread_block in compiled.programs[0].thread_blocks] == [2, 2]


# ---- slots


def _crossed(slots, fuse=True):
    """Each rank sends all chunks before it can receive a result."""
    with Program("crossed", AllReduce(2, 8, inplace=True), slots=slots, fuse=fuse) as program:
        for index in range(8):
            reduce((1, IN, index), (0, IN, index))
        for index in range(8):
            copy((0, IN, index), (1, IN, index))
    return program


@pytest.mark.parametrize("slots", [None, 1, 2, 8])
def test_a_compiled_program_has_the_number_of_slots_that_it_needs(slots):
    compiled = check(_crossed(slots))
    assert compiled.min_slots <= (slots or 8)
    assert compiled.slots == (slots or 0)


# ---- determinism


def test_the_same_program_is_the_same_bytes_in_every_process():
    script = (
        "import hashlib; from horocache.lang import algorithms, compile_program\n"
        "from horocache.lang.formats.program_json import encode\n"
        "print(hashlib.sha256(encode(compile_program(algorithms.hierarchical(2, 3, instances=2)))).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(digests) == 1


def test_compiling_twice_gives_the_same_bytes():
    assert encode(compile_program(algorithms.ring(5))) == encode(compile_program(algorithms.ring(5)))


# ---- collectives with a root


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("kind", [Broadcast, Gather, Reduce, Scatter])
def test_collectives_with_a_root_compile(kind, inplace):
    with Program("rooted", kind(3, 2, inplace, root=1)) as program:
        root = chunk(1, IN, 0, program.collective.input_chunks(1))
        if kind is Broadcast:
            for rank in range(3):
                root.copy(rank, OUT, 0)
        elif kind is Reduce:
            for rank in (0, 2):
                root.reduce(chunk(rank, IN, 0, 2))
            root.copy(1, OUT, 0)
        elif kind is Gather:
            for rank in range(3):
                chunk(rank, IN, 0, 2).copy(1, OUT, 2 * rank)
        else:
            for rank, part in enumerate(root.split(3)):
                part.copy(rank, OUT, 0)
    check(program)
