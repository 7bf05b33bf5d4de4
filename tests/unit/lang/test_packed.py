"""The words of a packed program, in the order that cpp_core/program/program.h documents."""

from __future__ import annotations

from array import array

from horocache.lang import AllReduce, Buffer, Program, algorithms, chunk, compile_program
from horocache.lang.formats.core_words import pack


def words(program):
    return array("q", pack(program)).tolist()


def test_a_program_is_packed_rank_by_rank():
    with Program("one way", AllReduce(2, 1, inplace=True)) as program:
        copied = chunk(1, Buffer.input, 0).copy(0, "tmp", 0)
        total = chunk(0, Buffer.input, 0).reduce(copied)
        total.copy(1, Buffer.output, 0)
    packed = words(compile_program(program))
    assert packed[:7] == [int.from_bytes(b"HCCPROG1", "little"), 2, 1, 1, 1, 0, 1]
    rank_0 = [3, 1, 0, 1, 2]  # buffers, their sizes, thread blocks
    rank_0 += [-1, 1, 0, 2, 1, 0, 1, -1, 0, 2, 0, 0, 8 + 3, 0, 1, 2, 0, 0, 0, 0]  # receives and adds: finished
    rank_0 += [1, -1, 0, 1, 0, 0, 1, 0, 0, -1, 0, 1, 0, 1]  # sends when that is complete
    assert packed[7 : 7 + len(rank_0)] == rank_0


def test_every_instance_has_its_own_words():
    one, four = (compile_program(algorithms.ring(3, instances=n)) for n in (1, 4))
    assert len(words(four)) > 3 * len(words(one))
