"""Compiled programs in the daemon: results of every algorithm and protocol, the choice of a program, and stalls."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest

from horocache.errors import StallError, UnsupportedError
from horocache.lang import AllReduce, Program, algorithms, chunk, compile_program
from horocache.lang.formats.core_words import pack_library
from horocache.lang.program.compiled_program import CompiledProgram

from .conftest import on_ranks, run_ranks
from .fences import check_fence, fenced
from .operations import ALLGATHER, ALLREDUCE, ALLTOALL, AVERAGE, MAX, SUM, blocking, finish, submit, submit_sum

PROTOCOLS = ("auto", "Simple", "LL", "LL128", "Direct")
COUNTS = (1, 2, 3, 7, 64, 97, 1000, 4099, 70_001)


def library(*programs: CompiledProgram, rules: str = "") -> bytes:
    return pack_library([(program.name, program, False) for program in programs], rules)


@functools.cache
def compiled(algorithm: str, *numbers: int) -> CompiledProgram:
    return compile_program(getattr(algorithms, algorithm)(*numbers))


def allreduce(runtime, inputs, outputs, name, backend="program", **options):
    return blocking(runtime, ALLREDUCE, inputs, outputs, name=name, backend=backend, **options)


def programs_of(ranks: int) -> list[CompiledProgram]:
    found = [compiled("ring", ranks), compiled("all_pairs", ranks), compiled("binary_tree", ranks)]
    if ranks & (ranks - 1) == 0:
        found.append(compiled("halving_doubling", ranks))
    if ranks in (4, 6, 8):
        found.append(compiled("hierarchical", 2, ranks // 2))
    return found


def long(*sizes):
    return [pytest.param(size, marks=pytest.mark.long) for size in sizes]


@on_ranks(2, 3, *long(4, 5, 6, 8), programs=lambda size: library(*programs_of(size)))
def test_every_allreduce_is_exact(rank, runtime, size):
    for program in programs_of(size):
        for count in COUNTS:
            for dtype in (np.float32, np.int32):
                mine = fenced(count, dtype, "behind")
                mine[:] = np.arange(count) % 100 + rank
                want = size * (np.arange(count) % 100) + size * (size - 1) // 2
                name = f"{program.name}.{count}.{dtype.__name__}"
                out = fenced(count, dtype, "before")
                allreduce(runtime, [mine], [out], name, f"program/{program.name}")
                np.testing.assert_array_equal(out, want)
                np.testing.assert_array_equal(mine, np.arange(count) % 100 + rank)
                allreduce(runtime, [mine], [mine], name + ".in", f"program/{program.name}")
                np.testing.assert_array_equal(mine, want)
                for array in (mine, out):
                    check_fence(array)


@pytest.mark.long
@on_ranks(2, 4, 8, programs=lambda size: library(*programs_of(size)))
def test_sixteen_mebibytes_are_exact(rank, runtime, size):
    dtype = {2: np.float32, 4: np.int32, 8: np.int16}[size]
    count = (16 << 20) // np.dtype(dtype).itemsize - 1
    base = (np.arange(count) % 100).astype(dtype)
    want = (size * base + size * (size - 1) // 2).astype(dtype)
    for program in programs_of(size):
        mine = base + dtype(rank)
        allreduce(runtime, [mine], [mine], program.name, f"program/{program.name}")
        assert np.array_equal(mine, want), program.name


@pytest.mark.parametrize(
    ("ranks", "slots"),
    [
        (2, 1),
        (3, 2),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((2, 8), (4, 1), (4, 4), (6, 2), (6, 8))),
    ],
)
def test_results_do_not_depend_on_protocol_and_slots(ranks, slots):
    programs = [
        msgspec.structs.replace(
            compiled(algorithm, ranks), name=f"{algorithm}_{protocol}", protocol=protocol, slots=slots, tile=tile
        )
        for algorithm in ("ring", "all_pairs")
        for protocol, tile in [(protocol, tile) for protocol in PROTOCOLS for tile in (0, 256)]
        if tile == 0 or protocol == "Simple"
    ]

    def reduce_with_each_program(rank, runtime):
        for program in programs:
            for count in COUNTS:
                values = np.arange(count, dtype=np.float32) * (rank + 1)
                allreduce(runtime, [values], [values], f"{program.name}.{count}", f"program/{program.name}")
                np.testing.assert_array_equal(values, np.arange(count) * (ranks * (ranks + 1) / 2))

    run_ranks(ranks, reduce_with_each_program, programs=library(*programs))


def direct_programs(ranks):
    return [msgspec.structs.replace(one, protocol="Direct") for one in programs_of(ranks)]


@on_ranks(2, 3, *long(4), programs=lambda size: library(*direct_programs(size)), region_bytes=str(64 << 20))
def test_the_direct_protocol_is_exact_on_tensors_in_shared_memory(rank, runtime, size):
    for program in direct_programs(size):
        for count in (1, 97, 4099, 200_000):
            values = np.asarray(runtime.empty((count,), "float32"))
            for step in range(3):
                values[:] = np.arange(count) % 1000 + rank + step
                allreduce(runtime, [values], [values], f"{program.name}.{count}", f"program/{program.name}")
                want = size * (np.arange(count) % 1000 + step) + size * (size - 1) // 2
                np.testing.assert_array_equal(values, want)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@on_ranks(4, programs=lambda size: library(compiled("all_pairs", size)))
def test_a_program_in_rank_order_gives_the_bits_of_the_built_in_algorithm(rank, runtime, dtype):
    values = np.random.default_rng(rank).normal(size=5000).astype(dtype)
    for op, scales in ((SUM, {}), (AVERAGE, {}), (SUM, {"prescale": 0.3, "postscale": 1.7}), (MAX, {})):
        made = [np.empty_like(values), np.empty_like(values)]
        for out, backend in zip(made, ("shm", "program/all_pairs"), strict=True):
            name = f"{backend}.{op}.{len(scales)}"
            allreduce(runtime, [values], [out], name, backend, reduce_op=op, **scales)
        assert made[0].tobytes() == made[1].tobytes()


def partly_finishing() -> CompiledProgram:
    """One step completes one sum but not another, so that sums are scaled at the end."""
    with Program("partly", AllReduce(3, 2, inplace=True)) as program:
        chunk(1, "input", 0).reduce(chunk(2, "input", 0))
        chunk(1, "input", 0, 2).reduce(chunk(0, "input", 0, 2))
        chunk(1, "input", 1).reduce(chunk(2, "input", 1))
        for rank in (0, 2):
            chunk(1, "input", 0, 2).copy(rank, "input", 0)
    return compile_program(program)


def test_a_step_that_completes_only_some_of_its_sums_does_not_scale_them():
    steps = [
        step for one in partly_finishing().programs for thread_block in one.thread_blocks for step in thread_block.steps
    ]
    assert any(step.count == 2 and step.op.startswith("r") for step in steps)
    assert not any(step.finishes for step in steps)


def programs_to_scale(ranks: int, protocol: str) -> list[CompiledProgram]:
    instances = msgspec.structs.replace(compile_program(algorithms.ring(ranks, instances=2)), name="instances")
    unfused = msgspec.structs.replace(compile_program(algorithms.ring(ranks, fuse=False)), name="unfused")
    programs = [*programs_of(ranks), instances, unfused, *([partly_finishing()] if ranks == 3 else [])]
    return [msgspec.structs.replace(one, protocol=protocol) for one in programs]


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("protocol", ["auto", "Simple", "LL128"])
def test_sums_are_scaled_once(ranks, protocol):
    programs = programs_to_scale(ranks, protocol)
    total = ranks * (ranks + 1) // 2
    cases = (
        (AVERAGE, {}, total / ranks),
        (SUM, {"prescale": 0.5, "postscale": 4.0}, 2 * total),
        (MAX, {"postscale": 3.0}, 3 * ranks),
    )

    def reduce_with_factors(rank, runtime):
        for program in programs:
            for count in (1, 97, 70_001):
                for op, scales, want in cases:
                    for dtype in (np.float32, np.float16, np.float64):
                        mine = np.full(count, 2 * (rank + 1), dtype)
                        shared = np.asarray(runtime.empty((count,), "float32"))
                        name = f"{program.name}.{count}.{op}.{dtype.__name__}"
                        for values in (mine, shared) if dtype == np.float32 else (mine,):
                            values[:] = 2 * (rank + 1)
                            kind = f"{name}.{values is shared}"
                            allreduce(
                                runtime, [values], [values], kind, f"program/{program.name}", reduce_op=op, **scales
                            )
                            np.testing.assert_allclose(values, 2 * want, rtol=1e-3 if dtype == np.float16 else 1e-6)

    run_ranks(ranks, reduce_with_factors, programs=library(*programs), region_bytes=str(64 << 20))


@on_ranks(3, programs=lambda size: library(compiled("ring", size)))
def test_fused_tensors_run_as_one_program(rank, runtime):
    arrays = [np.full(n, rank + 1, np.float32) for n in (1, 100, 3, 5000)]
    finish(runtime, submit(runtime, ALLREDUCE, arrays, arrays, name="group", group=True, backend="program/ring"))
    for array in arrays:
        assert (array == 6).all()


def alltoall_programs(ranks):
    two_level = [compiled(name, 2, ranks // 2) for name in ("two_step_alltoall", "three_step_alltoall")]
    return [compiled("direct_alltoall", ranks), *two_level]


@on_ranks(4, *long(6, 8), programs=lambda size: library(*alltoall_programs(size)))
def test_alltoall_in_one_two_and_three_steps(rank, runtime, size):
    for program in alltoall_programs(size):
        for rows in (1, 5, 300):
            sent = np.arange(size * rows * 3, dtype=np.int64).reshape(-1, 3) + 10_000 * rank
            name = f"{program.name}.{rows}"
            handle = submit(runtime, ALLTOALL, [sent], None, name=name, backend=f"program/{program.name}")
            [result] = runtime.wait(handle, 60.0)
            got = np.from_dlpack(result)
            block = np.arange(rank * rows * 3, (rank + 1) * rows * 3).reshape(-1, 3)
            np.testing.assert_array_equal(got, np.concatenate([block + 10_000 * source for source in range(size)]))


@pytest.mark.long
@on_ranks(8, programs=lambda _: library(compiled("sccl_allgather_122")))
def test_the_allgather_in_two_steps_is_exact_on_eight_ranks(rank, runtime):
    program = compiled("sccl_allgather_122")
    for rows in (1, 2, 7, 4099):
        sent = np.arange(rows * 3, dtype=np.float32).reshape(-1, 3) + 100_000 * rank
        handle = submit(runtime, ALLGATHER, [sent], None, name=f"rows{rows}", backend=f"program/{program.name}")
        [result] = runtime.wait(handle, 60.0)
        want = np.concatenate([sent + 100_000 * (other - rank) for other in range(8)])
        np.testing.assert_array_equal(np.from_dlpack(result), want)
    assert runtime.metrics()["program_operations"] == 4


def test_the_size_of_a_tensor_selects_the_program_at_the_bounds_of_its_range():
    small = msgspec.structs.replace(compiled("all_pairs", 3), name="small", max_bytes=4096)
    large = msgspec.structs.replace(compiled("ring", 3), name="large", min_bytes=8192)
    assert small.rank_order and not large.rank_order
    rules = "allreduce,3ranks:0-4096=program/small;allreduce,3ranks:8192-=program/large"

    def reduce_each_size(rank, runtime):
        taken = []
        for size in (4, 4092, 4096, 4100, 8188, 8192, 65536):
            values = np.full(size // 4, (2.0**24, 1.0, -(2.0**24))[rank], np.float32)
            before = runtime.metrics()["program_operations"]
            finish(runtime, submit_sum(runtime, values, name=f"t{size}"))
            ran = runtime.metrics()["program_operations"] - before
            # 2^24 + 1 is not a float32, so a sum in rank order is 0 everywhere; a ring folds some parts in another
            # order.
            in_rank_order = not values.any()
            taken.append({(1, True): "small", (0, True): "built-in", (1, False): "large"}[ran, in_rank_order])
        assert taken == ["small"] * 2 + ["built-in"] * 3 + ["large"] * 2

    run_ranks(3, reduce_each_size, programs=library(small, large, rules=rules), inline_max="0")


def test_operations_without_a_matching_program_run_the_built_in_algorithm(capfd):
    def reduce_and_gather(rank, runtime):
        values = np.full(100, rank + 1, np.float32)
        allreduce(runtime, [values], [values], "other", "program")  # its program is for larger tensors
        assert (values == 3).all()
        [result] = blocking(runtime, ALLGATHER, [np.full((rank + 1, 2), rank)], name="rows", backend="program")
        assert np.from_dlpack(result)[:, 0].tolist() == [0, 1, 1]
        assert runtime.metrics()["program_operations"] == 0

    large = msgspec.structs.replace(compiled("ring", 2), min_bytes=1 << 20)
    run_ranks(2, reduce_and_gather, programs=library(large))
    log = capfd.readouterr().err
    assert log.count("leaves allreduce to the built-in algorithm: program 'ring': it is for other sizes") == 2
    assert log.count("leaves allgather to the built-in algorithm: there is no program for it") == 2


def test_a_program_of_equal_chunks_leaves_other_sizes_to_the_built_in_algorithm(capfd):
    with Program("moved", AllReduce(2, 2, inplace=True)) as written:
        chunk(0, "input", 0).copy(0, "kept", 0)
        whole = chunk(1, "input", 0, 2).reduce(chunk(0, "input", 0, 2))
        chunk(0, "kept", 0).copy(0, "input", 1)  # for a moment, this puts chunk 0 where chunk 1 is
        whole.copy(0, "input", 0)
    program = compile_program(written)
    assert program.uniform

    def reduce_even_and_odd_counts(rank, runtime):
        for count in (256, 255):
            values = np.full(count, rank + 1, np.int32)
            allreduce(runtime, [values], [values], f"of {count}", "program/moved")
            assert (values == 3).all()
            assert runtime.metrics()["program_operations"] == 1

    run_ranks(2, reduce_even_and_odd_counts, programs=library(program))
    assert capfd.readouterr().err.count("its chunks must have one size") == 2


def test_a_program_in_another_order_reduces_floats_only_if_it_is_named(capfd):
    def reduce_each_type(rank, runtime):
        unnamed = [(dtype, "program", 1) for dtype in (np.int64, np.float32, np.complex64)]
        for dtype, backend, ran in (*unnamed, (np.float32, "program/ring", 2)):
            values = np.full(100, rank + 1, dtype)
            allreduce(runtime, [values], [values], f"{dtype.__name__}.{backend}", backend)
            assert (values == 6).all()
            assert runtime.metrics()["program_operations"] == ran

    run_ranks(3, reduce_each_type, programs=library(compiled("ring", 3)))
    assert "'ring': it adds up in another order than rank order" in capfd.readouterr().err


@on_ranks(2, programs=lambda _: library(compiled("ring", 3)))
def test_a_program_for_another_number_of_ranks_and_an_unknown_program_raise(rank, runtime):
    values = np.ones(10, np.float32)
    for backend, why in (
        ("program/ring", "is for allreduce of 3 ranks"),
        ("program/rign", "there is no algorithm"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            allreduce(runtime, [values], [values], backend, backend)


SETS = [[0, 1, 2], [1, 2, 3], [0, 3]]


def renamed_rings(_):
    return library(*(msgspec.structs.replace(compiled("ring", n), name=f"ring{n}") for n in (2, 3, 4)))


@on_ranks(4, process_sets=SETS, programs=renamed_rings)
def test_programs_of_three_process_sets_and_other_operations_run_side_by_side(rank, runtime):
    under_way = []
    for step in range(20):
        for number, members in enumerate([list(range(4)), *SETS]):
            if rank not in members:
                continue
            for backend in ("program", "shm"):
                values = np.full(3000 + step, rank + step, np.int32)
                name = f"{number}.{step}.{backend}"
                handle = submit_sum(runtime, values, name=name, process_set=number, backend=backend)
                under_way.append((handle, values, sum(members) + step * len(members)))
    for handle, values, want in under_way:
        finish(runtime, handle)
        assert (values == want).all()


def stuck_program() -> CompiledProgram:
    """A program that was verified and then edited: both ranks wait for the other's message before they send theirs."""
    with Program("stuck", AllReduce(2)) as program:
        for rank in range(2):
            chunk(rank, "input", 0).copy(1 - rank, "scratch", 0)
        for rank in range(2):
            own = chunk(rank, "scratch", 0) if rank == 0 else chunk(rank, "input", 0)
            own.reduce(chunk(rank, "input", 0) if rank == 0 else chunk(rank, "scratch", 0)).copy(rank, "output", 0)
    good = compile_program(program)
    ranks = []
    for one in good.programs:
        thread_blocks = []
        for thread_block in one.thread_blocks:
            receives = next((i for i, step in enumerate(one.thread_blocks) if step.receive >= 0), None)
            steps = thread_block.steps
            if thread_block.send >= 0 and receives is not None:
                last = len(one.thread_blocks[receives].steps) - 1
                steps = (msgspec.structs.replace(steps[0], waits=((receives, last),)), *steps[1:])
            thread_blocks.append(msgspec.structs.replace(thread_block, steps=steps))
        ranks.append(msgspec.structs.replace(one, thread_blocks=tuple(thread_blocks)))
    return msgspec.structs.replace(good, programs=tuple(ranks))


@on_ranks(
    2,
    programs=lambda _: library(stuck_program()),
    stall_check_time_seconds="0.2",
    stall_shutdown_time_seconds="0.5",
)
def test_the_stall_error_of_a_stuck_program_describes_each_thread_block(rank, runtime):
    values = np.ones(10, np.float32)
    with pytest.raises(StallError) as caught:
        allreduce(runtime, [values], [values], "held", "program/stuck")
    text = str(caught.value)
    assert "held" in text and "Program 'stuck' runs:" in text
    assert "waits for a message from rank" in text and "waits for other thread blocks" in text
