"""Compiled programs in the daemon: every algorithm and protocol, exact, beside each other and other operations."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest

from horocache.errors import StallError, UnsupportedError
from horocache.lang import AllReduce, Program, algorithms, chunk, compile_program
from horocache.lang.formats.core_words import pack_library
from horocache.lang.program.compiled_program import CompiledProgram

from .conftest import run_ranks, submit
from .fences import check_fence, fenced

ALLREDUCE, ALLGATHER, ALLTOALL = 0, 1, 4
AVERAGE, SUM, MAX = 0, 1, 4
PROTOCOLS = ("auto", "Simple", "LL", "LL128", "Direct")
SIZES = (1, 2, 3, 7, 64, 97, 1000, 4099, 70_001)


def library(*programs: CompiledProgram, rules: str = "") -> bytes:
    return pack_library([(program.name, program, False) for program in programs], rules)


@functools.cache
def compiled(algorithm: str, *numbers: int) -> CompiledProgram:
    return compile_program(getattr(algorithms, algorithm)(*numbers))


def allreduce(runtime, inputs, outputs, name, backend="program", **options):
    handle = submit(runtime, ALLREDUCE, inputs, outputs, name=name, backend=backend, wait_follows=True, **options)
    return runtime.wait(handle, 60.0)


def programs_of(ranks: int) -> list[CompiledProgram]:
    found = [compiled("ring", ranks), compiled("all_pairs", ranks), compiled("binary_tree", ranks)]
    if ranks & (ranks - 1) == 0:
        found.append(compiled("halving_doubling", ranks))
    if ranks in (4, 6, 8):
        found.append(compiled("hierarchical", 2, ranks // 2))
    return found


@pytest.mark.parametrize("ranks", [2, 3, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (4, 5, 6, 8))])
def test_every_allreduce_is_exact(ranks):
    programs = programs_of(ranks)

    def body(rank, runtime):
        for program in programs:
            for count in SIZES:
                for dtype in (np.float32, np.int32):
                    mine = fenced(count, dtype, "behind")
                    mine[:] = np.arange(count) % 100 + rank
                    want = ranks * (np.arange(count) % 100) + ranks * (ranks - 1) // 2
                    name = f"{program.name}.{count}.{dtype.__name__}"
                    out = fenced(count, dtype, "before")
                    allreduce(runtime, [mine], [out], name, f"program/{program.name}")
                    np.testing.assert_array_equal(out, want)
                    np.testing.assert_array_equal(mine, np.arange(count) % 100 + rank)
                    allreduce(runtime, [mine], [mine], name + ".in", f"program/{program.name}")
                    np.testing.assert_array_equal(mine, want)
                    for array in (mine, out):
                        check_fence(array)

    run_ranks(ranks, body, programs=library(*programs))


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "dtype"), [(2, np.float32), (4, np.int32), (8, np.int16)])
def test_sixteen_mebibytes_are_exact(ranks, dtype):
    programs = programs_of(ranks)
    count = (16 << 20) // np.dtype(dtype).itemsize - 1

    def body(rank, runtime):
        base = (np.arange(count) % 100).astype(dtype)
        want = (ranks * base + ranks * (ranks - 1) // 2).astype(dtype)
        for program in programs:
            mine = base + dtype(rank)
            allreduce(runtime, [mine], [mine], program.name, f"program/{program.name}")
            assert np.array_equal(mine, want), program.name

    run_ranks(ranks, body, programs=library(*programs))


@pytest.mark.parametrize(
    ("ranks", "slots"),
    [
        (2, 1),
        (3, 2),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((2, 8), (4, 1), (4, 4), (6, 2), (6, 8))),
    ],
)
def test_protocols_and_slots_give_the_same(ranks, slots):
    programs = [
        msgspec.structs.replace(
            compiled(algorithm, ranks), name=f"{algorithm}_{protocol}", protocol=protocol, slots=slots, tile=tile
        )
        for algorithm in ("ring", "all_pairs")
        for protocol, tile in [(protocol, tile) for protocol in PROTOCOLS for tile in (0, 256)]
        if tile == 0 or protocol == "Simple"
    ]

    def body(rank, runtime):
        for program in programs:
            for count in SIZES:
                values = np.arange(count, dtype=np.float32) * (rank + 1)
                allreduce(runtime, [values], [values], f"{program.name}.{count}", f"program/{program.name}")
                np.testing.assert_array_equal(values, np.arange(count) * (ranks * (ranks + 1) / 2))

    run_ranks(ranks, body, programs=library(*programs))


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.long)])
def test_messages_stay_where_they_are_in_tensors_that_ranks_share(ranks):
    programs = [msgspec.structs.replace(one, protocol="Direct") for one in programs_of(ranks)]

    def body(rank, runtime):
        for program in programs:
            for count in (1, 97, 4099, 200_000):
                values = np.asarray(runtime.empty((count,), "float32"))
                for step in range(3):
                    values[:] = np.arange(count) % 1000 + rank + step
                    name = f"{program.name}.{count}"
                    allreduce(runtime, [values], [values], name, f"program/{program.name}")
                    want = ranks * (np.arange(count) % 1000 + step) + ranks * (ranks - 1) // 2
                    np.testing.assert_array_equal(values, want)

    run_ranks(ranks, body, programs=library(*programs), region_bytes=str(64 << 20))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_program_in_rank_order_gives_the_bits_of_the_built_in_algorithm(dtype):
    def body(rank, runtime):
        values = np.random.default_rng(rank).normal(size=5000).astype(dtype)
        for op, scales in ((SUM, {}), (AVERAGE, {}), (SUM, {"prescale": 0.3, "postscale": 1.7}), (MAX, {})):
            made = [np.empty_like(values), np.empty_like(values)]
            for out, backend in zip(made, ("shm", "program/all_pairs"), strict=True):
                name = f"{backend}.{op}.{len(scales)}"
                allreduce(runtime, [values], [out], name, backend, reduce_op=op, **scales)
            assert made[0].tobytes() == made[1].tobytes()

    run_ranks(4, body, programs=library(compiled("all_pairs", 4)))


def partly_finishing() -> CompiledProgram:
    """One step completes one sum but not another, so that sums are scaled at the end."""
    with Program("partly", AllReduce(3, 2, inplace=True)) as program:
        chunk(1, "input", 0).reduce(chunk(2, "input", 0))
        chunk(1, "input", 0, 2).reduce(chunk(0, "input", 0, 2))
        chunk(1, "input", 1).reduce(chunk(2, "input", 1))
        for rank in (0, 2):
            chunk(1, "input", 0, 2).copy(rank, "input", 0)
    return compile_program(program)


def test_where_a_step_finishes_only_some_of_its_sums_none_is_marked():
    steps = [step for one in partly_finishing().programs for strand in one.strands for step in strand.steps]
    assert any(step.count == 2 and step.op.startswith("r") for step in steps)
    assert not any(step.finishes for step in steps)


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("protocol", ["auto", "Simple", "LL128"])
def test_sums_are_scaled_once(ranks, protocol):
    several = msgspec.structs.replace(compile_program(algorithms.ring(ranks, instances=2)), name="instances")
    unfused = compile_program(algorithms.ring(ranks, fuse=False))
    programs = [*programs_of(ranks), several, msgspec.structs.replace(unfused, name="unfused")]
    if ranks == 3:
        programs.append(partly_finishing())
    programs = [msgspec.structs.replace(one, protocol=protocol) for one in programs]
    total = ranks * (ranks + 1) // 2
    cases = (
        (AVERAGE, {}, total / ranks),
        (SUM, {"prescale": 0.5, "postscale": 4.0}, 2 * total),
        (MAX, {"postscale": 3.0}, 3 * ranks),
    )

    def body(rank, runtime):
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

    run_ranks(ranks, body, programs=library(*programs), region_bytes=str(64 << 20))


def test_fused_tensors_run_as_one_program():
    def body(rank, runtime):
        arrays = [np.full(n, rank + 1, np.float32) for n in (1, 100, 3, 5000)]
        handle = submit(runtime, ALLREDUCE, arrays, arrays, name="group", group=True, backend="program/ring")
        runtime.wait(handle, 60.0)
        for array in arrays:
            assert (array == 6).all()

    run_ranks(3, body, programs=library(compiled("ring", 3)))


@pytest.mark.parametrize("ranks", [4, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (6, 8))])
def test_alltoall_in_one_two_and_three_steps(ranks):
    names = ("direct_alltoall", "two_step_alltoall", "three_step_alltoall")
    programs = [compiled(names[0], ranks), *(compiled(name, 2, ranks // 2) for name in names[1:])]

    def body(rank, runtime):
        for program in programs:
            for rows in (1, 5, 300):
                sent = np.arange(ranks * rows * 3, dtype=np.int64).reshape(-1, 3) + 10_000 * rank
                name = f"{program.name}.{rows}"
                [result] = runtime.wait(
                    submit(runtime, ALLTOALL, [sent], None, name=name, backend=f"program/{program.name}"), 60.0
                )
                got = np.from_dlpack(result)
                block = np.arange(rank * rows * 3, (rank + 1) * rows * 3).reshape(-1, 3)
                np.testing.assert_array_equal(got, np.concatenate([block + 10_000 * source for source in range(ranks)]))

    run_ranks(ranks, body, programs=library(*programs))


@pytest.mark.long
def test_the_allgather_in_two_steps_is_exact_on_eight_ranks():
    program = compiled("sccl_allgather_122")

    def body(rank, runtime):
        for rows in (1, 2, 7, 4099):
            sent = np.arange(rows * 3, dtype=np.float32).reshape(-1, 3) + 100_000 * rank
            handle = submit(runtime, ALLGATHER, [sent], None, name=f"rows{rows}", backend=f"program/{program.name}")
            [result] = runtime.wait(handle, 60.0)
            want = np.concatenate([sent + 100_000 * (other - rank) for other in range(8)])
            np.testing.assert_array_equal(np.from_dlpack(result), want)
        return runtime.metrics()["program_operations"]

    assert run_ranks(8, body, programs=library(program)) == [4] * 8


def test_sizes_on_the_edges_of_ranges_take_the_documented_program():
    small = msgspec.structs.replace(compiled("all_pairs", 3), name="small", max_bytes=4096)
    large = msgspec.structs.replace(compiled("ring", 3), name="large", min_bytes=8192)
    assert small.rank_order and not large.rank_order
    rules = "allreduce,3ranks:0-4096=program/small;allreduce,3ranks:8192-=program/large"

    def body(rank, runtime):
        taken = []
        for size in (4, 4092, 4096, 4100, 8188, 8192, 65536):
            values = np.full(size // 4, (2.0**24, 1.0, -(2.0**24))[rank], np.float32)
            before = runtime.metrics()["program_operations"]
            runtime.wait(submit(runtime, ALLREDUCE, [values], [values], name=f"t{size}"), 60.0)
            ran = runtime.metrics()["program_operations"] - before
            # 2^24 + 1 is not a float32, so a sum in rank order is 0 everywhere; a ring folds some parts in another
            # order.
            in_rank_order = not values.any()
            taken.append({(1, True): "small", (0, True): "built-in", (1, False): "large"}[ran, in_rank_order])
        return taken

    expected = ["small"] * 2 + ["built-in"] * 3 + ["large"] * 2
    assert run_ranks(3, body, programs=library(small, large, rules=rules), inline_max="0") == [expected] * 3


def test_what_no_program_is_for_is_left_to_the_built_in(capfd):
    def body(rank, runtime):
        values = np.full(100, rank + 1, np.float32)
        allreduce(runtime, [values], [values], "other", "program")  # its program is for larger tensors
        assert (values == 3).all()
        rows = np.full((rank + 1, 2), rank)
        [result] = runtime.wait(submit(runtime, ALLGATHER, [rows], None, name="rows", backend="program"), 60.0)
        assert np.from_dlpack(result)[:, 0].tolist() == [0, 1, 1]
        return runtime.metrics()["program_operations"]

    large = msgspec.structs.replace(compiled("ring", 2), min_bytes=1 << 20)
    assert run_ranks(2, body, programs=library(large)) == [0, 0]
    said = capfd.readouterr().err
    assert said.count("leaves allreduce to the built-in algorithm: program 'ring': it is for other sizes") == 2
    assert said.count("leaves allgather to the built-in algorithm: there is no program for it") == 2


def test_a_program_whose_chunks_must_be_equal_leaves_what_does_not_divide(capfd):
    with Program("moved", AllReduce(2, 2, inplace=True)) as written:
        chunk(0, "input", 0).copy(0, "kept", 0)
        whole = chunk(1, "input", 0, 2).reduce(chunk(0, "input", 0, 2))
        chunk(0, "kept", 0).copy(0, "input", 1)  # temporarily into a place of another size
        whole.copy(0, "input", 0)
    program = compile_program(written)
    assert program.uniform

    def body(rank, runtime):
        ran = []
        for count in (256, 255):
            values = np.full(count, rank + 1, np.int32)
            allreduce(runtime, [values], [values], f"of {count}", "program/moved")
            assert (values == 3).all()
            ran.append(runtime.metrics()["program_operations"])
        return ran

    assert run_ranks(2, body, programs=library(program)) == [[1, 1]] * 2
    assert capfd.readouterr().err.count("its chunks must have one size") == 2


def test_a_program_in_another_order_takes_no_floating_point_unless_it_is_named(capfd):
    def body(rank, runtime):
        ran = []
        unnamed = [(dtype, "program") for dtype in (np.int64, np.float32, np.complex64)]
        for dtype, backend in (*unnamed, (np.float32, "program/ring")):
            values = np.full(100, rank + 1, dtype)
            allreduce(runtime, [values], [values], f"{dtype.__name__}.{backend}", backend)
            assert (values == 6).all()
            ran.append(runtime.metrics()["program_operations"])
        return ran

    assert run_ranks(3, body, programs=library(compiled("ring", 3))) == [[1, 1, 1, 2]] * 3
    assert "'ring': it adds up in another order than rank order" in capfd.readouterr().err


def test_a_program_of_another_size_or_operation_is_refused():
    def body(rank, runtime):
        values = np.ones(10, np.float32)
        for backend, why in (
            ("program/ring", "is for allreduce of 3 ranks"),
            ("program/rign", "there is no algorithm"),
        ):
            with pytest.raises(UnsupportedError, match=why):
                allreduce(runtime, [values], [values], backend, backend)

    run_ranks(2, body, programs=library(compiled("ring", 3)))


def test_programs_of_three_process_sets_and_other_operations_run_side_by_side():
    sets = [[0, 1, 2], [1, 2, 3], [0, 3]]
    programs = library(*(msgspec.structs.replace(compiled("ring", n), name=f"ring{n}") for n in (2, 3, 4)))

    def body(rank, runtime):
        under_way = []
        for step in range(20):
            for number, members in enumerate([list(range(4)), *sets]):
                if rank not in members:
                    continue
                for backend in ("program", "shm"):
                    values = np.full(3000 + step, rank + step, np.int32)
                    name = f"{number}.{step}.{backend}"
                    handle = submit(
                        runtime, ALLREDUCE, [values], [values], name=name, process_set=number, backend=backend
                    )
                    under_way.append((handle, values, sum(members) + step * len(members)))
        for handle, values, want in under_way:
            runtime.wait(handle, 60.0)
            assert (values == want).all()

    run_ranks(4, body, process_sets=sets, programs=programs)


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
        strands = []
        for strand in one.strands:
            receives = next((i for i, step in enumerate(one.strands) if step.receive >= 0), None)
            steps = strand.steps
            if strand.send >= 0 and receives is not None:
                last = len(one.strands[receives].steps) - 1
                steps = (msgspec.structs.replace(steps[0], waits=((receives, last),)), *steps[1:])
            strands.append(msgspec.structs.replace(strand, steps=steps))
        ranks.append(msgspec.structs.replace(one, strands=tuple(strands)))
    return msgspec.structs.replace(good, programs=tuple(ranks))


def test_a_stuck_program_is_reported_strand_by_strand():
    def body(rank, runtime):
        values = np.ones(10, np.float32)
        with pytest.raises(StallError) as caught:
            allreduce(runtime, [values], [values], "held", "program/stuck")
        return str(caught.value)

    knobs = {"stall_check_time_seconds": "0.2", "stall_shutdown_time_seconds": "0.5"}
    for text in run_ranks(2, body, programs=library(stuck_program()), **knobs):
        assert "held" in text and "Program 'stuck' runs:" in text
        assert "waits for a message from rank" in text and "waits for other strands" in text
