"""The algorithms of the library compile, and are correct in all tested interleavings."""

from __future__ import annotations

import inspect

import pytest

from horocache.lang import Buffer, algorithms, compile_program
from horocache.lang.frontend import topology
from horocache.lang.tuning.local_run import run_locally

from .interpreter import execute

RANKS = (2, 3, 4, 5, 6, 8)
HOSTS = ((1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (5, 1))
BY_RANKS = (algorithms.ring, algorithms.all_pairs, algorithms.halving_doubling, algorithms.binary_tree,
            algorithms.direct_alltoall)  # fmt: skip
BY_HOSTS = (algorithms.hierarchical, algorithms.two_step_alltoall, algorithms.three_step_alltoall,
            algorithms.all_to_next)  # fmt: skip
CASES = [(one, (ranks,)) for one in BY_RANKS for ranks in RANKS]
CASES += [(one, shape) for one in BY_HOSTS for shape in HOSTS]
CASES += [(algorithms.sccl_allgather_122, ())]


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize(("algorithm", "arguments"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_algorithms_give_the_specified_results(algorithm, arguments, instances):
    program = algorithm(*arguments, instances=instances)
    compiled = compile_program(program)
    assert compiled.min_slots == 1
    assert not compiled.uniform
    for elements in (1, 37, 5000):
        run_locally(compiled, elements, "int32", seed=elements, protocol="Direct")
    collective, fine = program.collective, compiled.refinement
    for slots in (1, 2, 8):
        memory = execute(compiled, collective, slots, seed=slots)
        for rank in range(compiled.ranks):
            for index in range(collective.output_chunks(rank)):
                expected = collective.expected(rank, index)
                buffer, at = collective.alias(rank, Buffer.output, index)
                for part in range(fine):
                    if expected is not None:
                        want = {(source, chunk * fine + part): 1 for source, chunk in expected}
                        assert memory[rank, buffer][at * fine + part] == want


@pytest.mark.parametrize("algorithm", [*BY_RANKS, *BY_HOSTS, algorithms.sccl_allgather_122])
def test_algorithms_have_at_most_30_lines(algorithm):
    lines = inspect.getsource(algorithm).splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


@pytest.mark.parametrize("ranks", RANKS)
def test_all_pairs_folds_in_rank_order(ranks):
    assert compile_program(algorithms.all_pairs(ranks)).rank_order


def test_a_ring_of_more_than_two_does_not_fold_in_rank_order():
    assert not compile_program(algorithms.ring(3)).rank_order


def test_the_allgather_of_two_steps_uses_the_links_of_a_dgx1_only():
    assert algorithms.sccl_allgather_122().topology.name == topology.dgx1().name


def test_the_ring_algorithm_compiles_for_a_ring_topology():
    compile_program(algorithms.ring(6, topology=topology.ring(6)))
