"""Each mistake in a program raises an error of its own class, at the user's line."""

from __future__ import annotations

import inspect

import pytest

from horocache.lang import (
    AllGather,
    AllReduce,
    BadReferenceError,
    Buffer,
    NoLinkError,
    PostconditionError,
    Program,
    ProgramError,
    Reduce,
    StaleReferenceError,
    UninitializedChunkError,
    UsageError,
    chunk,
    compile_program,
    parallelize,
)
from horocache.lang.frontend import topology

IN, OUT = Buffer.input, Buffer.output


def program(ranks=2, chunks=4, **options):
    return Program("test", AllReduce(ranks, chunks, inplace=options.pop("inplace", False)), **options)


class _Expect:
    """Checks that the block raises an error of this class at its last line that runs."""

    def __init__(self, kind, *texts):
        self.kind, self.texts = kind, texts

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert kind is self.kind, f"expected {self.kind.__name__}, got {error!r}"
        frames = [frame for frame in inspect.getinnerframes(trace) if frame.filename == __file__]
        assert (error.location.file, error.location.line) == (__file__, frames[-1].lineno)
        assert str(error).startswith(f"{__file__}:{frames[-1].lineno}: ")
        for text in self.texts:
            assert text in str(error), str(error)
        return True


def line():
    return inspect.currentframe().f_back.f_lineno


# ---- stale references


def test_a_reference_to_chunks_that_a_copy_overwrote_is_stale():
    with _Expect(StaleReferenceError, "input[0] of rank 0", "was overwritten at"), program():
        old = chunk(0, IN, 0)
        chunk(1, IN, 0).copy(0, IN, 0)
        old.copy(1, IN, 1)


def test_a_stale_reference_names_the_line_that_overwrote_it():
    with pytest.raises(StaleReferenceError) as raised, program():
        old = chunk(0, IN, 0)
        chunk(1, IN, 0).copy(0, IN, 0)
        overwritten = line() - 1
        old.copy(1, IN, 1)
    assert f"was overwritten at {__file__}:{overwritten}" in str(raised.value)


def test_a_reference_to_chunks_that_a_reduction_changed_is_stale():
    with _Expect(StaleReferenceError), program():
        old = chunk(0, IN, 0)
        chunk(0, IN, 0).reduce(chunk(1, IN, 0))
        old.copy(1, IN, 1)


def test_a_reference_with_one_overwritten_chunk_is_stale():
    with _Expect(StaleReferenceError, "input[1:4] of rank 0 is stale", "input[2] of rank 0 was"), program():
        old = chunk(0, IN, 1, 3)
        chunk(1, IN, 2).copy(0, IN, 2)
        chunk(1, IN, 1, 3).reduce(old)


@pytest.mark.parametrize("use", [lambda ref: ref.split(1), lambda ref: ref.group(chunk(0, IN, 1))])
def test_stale_references_cannot_be_split_or_grouped(use):
    with pytest.raises(StaleReferenceError), program():
        old = chunk(0, IN, 0)
        chunk(1, IN, 0).copy(0, IN, 0)
        use(old)


def test_the_target_of_a_reduction_stays_fresh():
    with program(chunks=1, inplace=True) as made:
        total = chunk(0, IN, 0)
        total.reduce(chunk(1, IN, 0))
        total.copy(1, IN, 0)
    compile_program(made)


# ---- uninitialized chunks


def test_an_output_that_was_not_written_is_uninitialized():
    with _Expect(UninitializedChunkError, "nothing has been written to output[0] of rank 0"), program():
        chunk(0, OUT, 0)


def test_one_of_several_chunks_that_was_not_written_is_named():
    with _Expect(UninitializedChunkError, "output[2] of rank 0"), program():
        for index in (0, 1, 3):
            chunk(0, IN, index).copy(0, OUT, index)
        chunk(0, OUT, 0, 4)


def test_a_scratch_buffer_that_was_not_written_is_uninitialized():
    with _Expect(UninitializedChunkError, "nothing[0] of rank 1"), program():
        chunk(1, "nothing", 0)


# ---- numbers and names


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((2, IN, 0), "rank 2; the ranks are 0 to 1"),
        ((-1, IN, 0), "rank -1"),
        ((True, IN, 0), "rank True"),
        ((0, IN, 4), "input[4] of rank 0 is outside of it: it has 4 chunks"),
        ((0, IN, 2, 3), "input[2:5] of rank 0"),
        ((0, IN, -1), "index -1"),
        ((0, IN, 1.0), "index 1.0"),
        ((0, IN, 0, 0), "count 0"),
        ((0, 7, 0), "buffer 7"),
        ((0, "", 0), "buffer ''"),
    ],
)
def test_invalid_references_raise(arguments, text):
    with _Expect(BadReferenceError, text), program():
        chunk(*arguments)


def test_a_copy_beyond_the_destination_is_an_error():
    with _Expect(BadReferenceError, "output[3:5] of rank 1"), program():
        chunk(0, IN, 0, 2).copy(1, OUT, 3)


def test_a_copy_to_an_output_needs_an_index():
    with _Expect(BadReferenceError, "needs an index"), program():
        chunk(0, IN, 0).copy(1, OUT)


def test_a_copy_to_scratch_without_an_index_appends():
    with program(chunks=2) as made:
        assert chunk(0, IN, 0).copy(1, "scratch").index == 0
        assert chunk(0, IN, 1).copy(1, "scratch").index == 1
        assert made.memory.at(1, "scratch", 1).value is not None


def test_a_reduction_of_another_count_is_an_error():
    with _Expect(BadReferenceError, "which are 2 chunks", "which are 1"), program():
        chunk(0, IN, 0).reduce(chunk(1, IN, 0, 2))


def test_a_copy_that_overlaps_its_source_is_an_error():
    with _Expect(BadReferenceError, "overlap"), program():
        chunk(0, IN, 0, 2).copy(0, IN, 1)


def test_a_reduction_into_itself_is_an_error():
    with _Expect(BadReferenceError, "cannot be reduced into itself"), program():
        chunk(0, IN, 0).reduce(chunk(0, IN, 0))


def test_a_reduction_takes_references():
    with _Expect(BadReferenceError, "takes a reference"), program():
        chunk(0, IN, 0).reduce(3)


def test_chunks_cannot_be_split_into_unequal_parts():
    with _Expect(BadReferenceError, "cannot be split into 2"), program():
        chunk(0, IN, 0, 3).split(2)


def test_chunks_that_are_not_adjacent_cannot_be_grouped():
    with _Expect(BadReferenceError, "not side by side"), program():
        chunk(0, IN, 0).group(chunk(0, IN, 2))


def test_split_and_group_are_inverse():
    with program():
        first, second = chunk(0, IN, 0, 4).split(2)
        whole = second.group(first)
        assert (whole.index, whole.count) == (0, 4)


def test_a_copy_onto_itself_does_nothing_and_returns_the_reference():
    with program(inplace=True) as made:
        ref = chunk(0, IN, 0)
        assert ref.copy(0, IN, 0) is ref
        assert ref.copy(0, OUT, 0) is ref
    assert made.operations == []


def test_ranks_without_a_link_cannot_exchange_chunks():
    with _Expect(NoLinkError, "Line(n=3)", "from rank 0 to rank 2"), program(3, topology=topology.line(3)):
        chunk(0, IN, 0).copy(2, IN, 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"instances": 0}, "instances is 0"),
        ({"instances": 1.5}, "instances is 1.5"),
        ({"protocol": "Fast"}, "protocol='Fast'; there are auto, Simple"),
        ({"slots": 0}, "slots is 0"),
        ({"slots": 9}, "slots is 9; it is a whole number from 1 to 8"),
        ({"topology": topology.ring(3)}, "3 ranks, and the collective allreduce 2"),
    ],
)
def test_invalid_options_raise(options, text):
    with _Expect(UsageError, text):
        program(**options)


@pytest.mark.parametrize("make", [lambda: AllReduce(0), lambda: AllReduce(2, 0), lambda: Reduce(2, 1, root=2)])
def test_invalid_collectives_raise(make):
    with pytest.raises(BadReferenceError, match=__file__):
        make()


def test_invalid_placements_raise():
    with pytest.raises(UsageError, match="channel=-1"), program():
        chunk(0, IN, 0).copy(1, IN, 0, channel=-1)
    with pytest.raises(UsageError, match="within one rank, which has none"), program():
        chunk(0, IN, 0).copy(0, IN, 1, channel=0)
    with pytest.raises(UsageError, match="has one thread block"), program():
        chunk(0, IN, 0).copy(0, IN, 1, send_thread_block=0, recv_thread_block=1)
    with _Expect(UsageError, "instances of parallelize is 0"), program(), parallelize(0):
        pass


# ---- calls at the wrong time


def test_programs_cannot_be_nested():
    with _Expect(UsageError, "begins within program 'test'"), program(), program():
        pass


def test_functions_outside_a_program_raise():
    with _Expect(UsageError, "no program is being written"):
        chunk(0, IN, 0)
    with _Expect(UsageError, "no program is being written"):
        parallelize(2)


def test_a_reference_of_another_program_cannot_be_used():
    with program():
        ref = chunk(0, IN, 0)
    with _Expect(UsageError, "used in another one"), program():
        ref.copy(1, IN, 0)


def test_a_program_that_ended_in_an_error_cannot_continue_or_be_compiled():
    made = program()
    with pytest.raises(UninitializedChunkError), made:
        chunk(0, OUT, 0)
    with _Expect(UsageError, "written already"), made:
        pass
    with _Expect(UsageError, "ended in an error"):
        compile_program(made)


def test_a_program_cannot_be_compiled_before_it_is_written():
    with pytest.raises(UsageError, match="has not been written"):
        compile_program(program())
    with pytest.raises(UsageError, match="is still being written"), program() as made:
        compile_program(made)


def test_an_error_is_a_value_error_of_horocache():
    assert issubclass(ProgramError, ValueError)


# ---- postconditions


def _compile_fails(made):
    with pytest.raises(PostconditionError) as raised:
        compile_program(made)
    return raised.value.wrong


def test_an_empty_program_is_no_allreduce():
    with program(chunks=1) as made:
        pass
    assert _compile_fails(made) == [
        f"output[0] of rank {rank}: expected a0[0] + a1[0], got nothing" for rank in range(2)
    ]


def test_a_missing_rank_a_double_count_and_a_wrong_slot_are_listed():
    with program(3, 1, inplace=True) as made:
        total = chunk(0, IN, 0).reduce(chunk(1, IN, 0))
        total.copy(2, "tmp", 0).reduce(chunk(1, IN, 0))
        chunk(2, "tmp", 0).copy(1, IN, 0)
    assert _compile_fails(made) == [
        "output[0] of rank 0: expected a0[0] + a1[0] + a2[0], got a0[0] + a1[0]",
        "output[0] of rank 1: expected a0[0] + a1[0] + a2[0], got a0[0] + 2 a1[0]",
        "output[0] of rank 2: expected a0[0] + a1[0] + a2[0], got a2[0]",
    ]


def test_a_chunk_in_the_wrong_slot_is_listed():
    with Program("swapped", AllGather(2, 1)) as made:
        for source in range(2):
            for target in range(2):
                chunk(source, IN, 0).copy(target, OUT, 1 - source)
    assert _compile_fails(made)[0] == "output[0] of rank 0: expected a0[0], got a1[0]"
