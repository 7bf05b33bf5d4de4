"""Programs with all ranks in one process: checked results, stuck programs, slow links; and the cost model."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from horocache import _core
from horocache.errors import InvalidArgumentError, StallError
from horocache.lang import AllReduce, Broadcast, Program, algorithms, chunk, compile_program
from horocache.lang.errors import UsageError
from horocache.lang.formats.core_words import pack
from horocache.lang.program.chunk_layout import Sizes
from horocache.lang.tuning.cost_model import Processor, predict
from horocache.lang.tuning.local_run import WrongResultError, run_locally
from horocache.lang.tuning.machine_model import Link, Machine, parse_machine

SLOW = Machine(2, 2, Link(5, 4), Link(200, 0.5))


@pytest.mark.parametrize("machine", [None, SLOW])
def test_local_runs_check_results_and_measure_times(machine):
    times = run_locally(compile_program(algorithms.ring(4)), 5000, machine=machine, repetitions=3, seed=7)
    assert len(times) == 3 and min(times) > 0
    if machine is not None:
        assert min(times) > 6 * 200_000  # six messages one after the other, each with the latency


def test_a_wrong_result_is_found():
    ring = compile_program(algorithms.ring(3))
    [thread_block] = ring.programs[0].thread_blocks
    no_addition = {"rrc": "r", "rrcs": "rcs"}
    steps = tuple(
        msgspec.structs.replace(step, op=no_addition.get(step.op, step.op), finishes=False)
        for step in thread_block.steps
    )
    first = msgspec.structs.replace(
        ring.programs[0], thread_blocks=(msgspec.structs.replace(thread_block, steps=steps),)
    )
    broken = msgspec.structs.replace(ring, programs=(first, *ring.programs[1:]))
    with pytest.raises(WrongResultError, match=r"rank \d, output chunk \d, element \d+: \d+ instead of \d+"):
        run_locally(broken, 300, "int32", seed=1)


def test_scratch_chunks_of_several_sizes_do_not_overlap():
    with Program("relay", Broadcast(3, 4), instances=2, slots=1, fuse=False) as program:
        for part in range(4):
            value = chunk(0, "input", part)
            value.copy(0, "output", part)
            value.copy(1, "scratch", 0).copy(2, "output", part)
            value.copy(1, "output", part)
    compiled = compile_program(program)
    for seed in range(1, 30):
        run_locally(compiled, 122_928, seed=seed, protocol="Simple")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_stuck_program_raises_with_the_wait_of_every_thread_block(seed):
    with Program("waits", AllReduce(2)) as program:
        for rank in range(2):
            chunk(rank, "input", 0).copy(1 - rank, "scratch", 0)
        for rank in range(2):
            chunk(rank, "scratch", 0).reduce(chunk(rank, "input", 0)).copy(rank, "output", 0)
    good = compile_program(program)
    ranks = []
    for one in good.programs:
        receives = next(i for i, thread_block in enumerate(one.thread_blocks) if thread_block.receive >= 0)
        sends = next(i for i, thread_block in enumerate(one.thread_blocks) if thread_block.send >= 0)
        if receives == sends:
            pytest.skip("the compiler has put both into one thread block")
        thread_blocks = list(one.thread_blocks)
        first, *more = thread_blocks[sends].steps
        thread_blocks[sends] = msgspec.structs.replace(
            thread_blocks[sends], steps=(msgspec.structs.replace(first, waits=((receives, 0),)), *more)
        )
        ranks.append(msgspec.structs.replace(one, thread_blocks=tuple(thread_blocks)))
    stuck = msgspec.structs.replace(good, programs=tuple(ranks))
    with pytest.raises(StallError, match=r"(?s)rank 0 thread block .* waits for .*rank 1 thread block .* waits for"):
        run_locally(stuck, 10, seed=seed, patience_s=0.2)


def test_arguments_that_do_not_fit_the_program_raise():
    ring = compile_program(algorithms.ring(2))
    with pytest.raises(UsageError, match="dtype='text'"):
        run_locally(ring, 10, "text")
    arrays = [np.zeros(9, np.float32) for _ in range(2)]
    empty = [np.zeros(0, np.float32) for _ in range(2)]
    with pytest.raises(InvalidArgumentError, match="rank 0 has 36 bytes for its input, which takes 40"):
        _core.run_program(pack(ring), arrays, empty, "float32", 10)
    with pytest.raises(InvalidArgumentError, match="each pair of 2 ranks needs one of the ports"):
        _core.run_program(pack(ring), arrays, empty, "float32", 9, ports=[(1.0, 1.0, 0.0)], port_of=[0])
    for wrong in ({"protocol": 9}, {"slots": 9}, {"repetitions": 0}, {"reduce_op": 99}):
        with pytest.raises(InvalidArgumentError, match="no such operation"):
            _core.run_program(pack(ring), arrays, empty, "float32", 9, **wrong)


@pytest.mark.parametrize(("elements", "classes", "refinement"), [(1, 3, 2), (1000, 7, 3), (64, 4, 4), (17, 1, 1)])
def test_chunk_sizes_cover_all_elements(elements, classes, refinement):
    sizes = Sizes(elements, 4, classes, refinement)
    assert [sizes.offset(0), sizes.offset(classes)] == [0, elements]
    assert sum(sizes.chunk(number) for number in range(classes)) == elements
    parts = [sizes.part(number, part) for number in range(classes) for part in range(refinement)]
    assert sum(parts) == elements and max(parts) == sizes.most_part()


def test_the_cost_model_of_a_chain_equals_a_count_by_hand():
    with Program("chain", AllReduce(2)) as program:
        total = chunk(1, "input", 0).reduce(chunk(0, "input", 0))
        for rank in range(2):
            total.copy(rank, "output", 0)
    machine = Machine(2, 1, Link(1, 1), Link(100, 0.5))
    nothing = Processor(step_us=0, gb_per_s=1e12)
    # 4000 bytes there and back, each way 8 us on the link and 100 us of latency.
    assert predict(compile_program(program), 1000, machine, processor=nothing) == pytest.approx(216, rel=0.01)
    machine = Machine(2, 1, Link(1, 1), Link(100, 0.5, gap_us=30))
    assert predict(compile_program(program), 1000, machine, processor=nothing) == pytest.approx(216, rel=0.01)


def test_the_two_step_alltoall_is_faster_if_each_message_has_a_gap():
    two, direct = (compile_program(one) for one in (algorithms.two_step_alltoall(2, 4), algorithms.direct_alltoall(8)))
    small, large = 32, 1 << 20
    for gap_us, better in ((0, False), (25, True)):
        machine = Machine(2, 4, Link(5, 2), Link(100, 0.2, gap_us))
        assert (predict(two, small, machine) < 0.8 * predict(direct, small, machine)) == better
        assert predict(two, large, machine) > 0.9 * predict(direct, large, machine)


def test_the_cost_model_prefers_algorithms_by_size_and_links():
    machine = Machine(1, 8, Link(50, 1), Link(50, 1))
    pairs, ring = (compile_program(one(8)) for one in (algorithms.all_pairs, algorithms.ring))
    small, large = 256, 1 << 20
    assert predict(pairs, small, machine) < 0.5 * predict(ring, small, machine)
    # Each host has one network card. In a ring, a chunk crosses a card once; with all pairs, once per rank.
    hosts = Machine(2, 4, Link(1, 20), Link(20, 1))
    assert predict(ring, large, hosts) < predict(pairs, large, hosts)


def test_machines_are_parsed_and_invalid_texts_raise():
    machine = parse_machine("2x4,inside=1/50,between=10/3,cards=2", 8)
    assert (machine.ranks, machine.between, machine.cards) == (8, Link(10, 3), 2)
    ports, port_of = machine.ports()
    assert len(ports) == 2 * 2 + 2 * 4 * 3
    assert port_of[0] == -1 and port_of[4] == port_of[2 * 8 + 5] != port_of[1 * 8 + 5]
    assert parse_machine("2x4,inside=1/50,between=10/3/0.5", 8).between == Link(10, 3, 0.5)
    inside = "2x4,inside=1/1"
    numbers = [f"{inside},between={link}" for link in ("1", "1/0", "1/1/-1", "1/1/nan", "1/1/1/1", "inf/1")]
    for text in ("", "2x4", *numbers, f"{inside},between=1/1,x=2"):
        with pytest.raises(UsageError, match="is not a machine"):
            parse_machine(text, 8)
    with pytest.raises(UsageError, match="has 8 ranks, and the program 4"):
        parse_machine("2x4,inside=1/50,between=10/3", 4)
