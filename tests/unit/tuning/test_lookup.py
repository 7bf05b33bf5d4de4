"""Lookup in tuning tables: sizes, layouts, operations, candidates that cannot run, tables of other hosts."""

from __future__ import annotations

import logging
import random

import pytest

from horocache import _core
from horocache.errors import InvalidArgumentError
from horocache.tuning import lookup
from horocache.tuning.fingerprint import fingerprint_of
from horocache.tuning.lookup import World, bands_of, boundary, candidates_for, nearest_world, rules_of, table_rules
from horocache.tuning.table import Layout, canonical, save

from .tables import CANNOT, HERE, WRONG, applying, make_table, random_table, text_of

TIMES = {"A": {"A": 10, "B": 20, "C": 30}, "B": {"A": 20, "B": 10, "C": 30}, "C": {"A": 20, "B": 30, "C": 10}}
# The shape of Table II of MCR-DL (Anthony et al., IPDPS 2023): A up to 2048 bytes, B at 4096 and 8192, C from 16384 on.
PAPER = {size: TIMES["A"] for size in (256, 512, 1024, 2048)}
PAPER |= {4096: TIMES["B"], 8192: TIMES["B"], 16384: TIMES["C"], 32768: TIMES["C"]}


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, logger="horocache.tuning")
    return lambda: [record.getMessage() for record in caplog.records]


def saved(tmp_path, table):
    save(table, tmp_path / "t.json")
    return tmp_path / "t.json"


# ---- sizes


@pytest.mark.parametrize(
    ("size", "winner"),
    [
        *((size, "A") for size in (0, 1, 255, 256, 257, 2048, 2895)),
        *((size, "B") for size in (2896, 3000, 4096, 8192, 11584)),
        *((size, "C") for size in (11585, 16384, 32768, 1 << 20, 1 << 40)),
    ],
)
def test_t2_each_size_goes_to_the_winner_of_its_range(size, winner):
    table = make_table({"allreduce": {(4, 1): PAPER}})
    assert candidates_for(table, "allreduce", World(4, 1), size)[0] == winner
    assert applying(text_of(rules_of(table)), "allreduce", 4, 1, size)[0] == winner


def test_t2_the_rules_of_the_papers_shape():
    rules = [str(rule) for rule in rules_of(make_table({"allreduce": {(4, 1): PAPER}}))]
    assert rules == [
        "allreduce,cpu,2-ranks,1hosts:0-2896=A",
        "allreduce,cpu,2-ranks,1hosts:0-2896=B",
        "allreduce,cpu,2-ranks,1hosts:0-2896=C",
        "allreduce,cpu,2-ranks,1hosts:2896-11585=B",
        "allreduce,cpu,2-ranks,1hosts:2896-11585=A",
        "allreduce,cpu,2-ranks,1hosts:2896-11585=C",
        "allreduce,cpu,2-ranks,1hosts:11585-=C",
        "allreduce,cpu,2-ranks,1hosts:11585-=A",
        "allreduce,cpu,2-ranks,1hosts:11585-=B",
    ]


def test_a_measured_size_keeps_its_winner_also_beside_its_neighbours():
    sizes = [1, 2, 3, 4, 5, 1000, 1001, (1 << 40) - 1, 1 << 40]
    times = {size: {"A": 1 + index % 2, "B": 2 - index % 2} for index, size in enumerate(sizes)}
    table = make_table({"broadcast": {(2, 1): times}})
    for index, size in enumerate(sizes):
        assert candidates_for(table, "broadcast", World(2, 1), size)[0] == "AB"[index % 2]


def test_a_boundary_is_the_rounded_geometric_mean():
    assert [boundary(*pair) for pair in ((1024, 4096), (2048, 4096), (1, 2), (2, 3), (3, 5))] == [2048, 2896, 2, 3, 4]


def test_one_winner_for_all_sizes_needs_no_range():
    table = make_table({"reduce": {(2, 1): {64: {"A": 1, "B": 3}, 4096: {"A": 5, "B": 6}}}})
    assert [str(rule) for rule in rules_of(table)] == ["reduce,cpu,2-ranks,1hosts=A", "reduce,cpu,2-ranks,1hosts=B"]


def test_the_candidates_behind_the_winner_are_ordered_over_the_range():
    # Over both sizes B is 1.1 and 3.0 times as slow as A, C 2.0 and 2.0 times; D has no time at one size.
    sizes = {64: {"A": 10, "B": 11, "C": 20, "D": 10.5}, 128: {"A": 10, "B": 30, "C": 20, "D": CANNOT}}
    [band] = bands_of("allreduce", make_table({"allreduce": {(2, 1): sizes}}).operations[0].layouts[0])
    assert band.candidates == ("A", "C", "B", "D")


def test_equal_times_are_ordered_by_name():
    table = make_table({"allreduce": {(2, 1): {64: {"C": 5, "A": 5, "B": 5}}}})
    assert candidates_for(table, "allreduce", World(2, 1), 64) == ("A", "B", "C")


# ---- layouts


@pytest.mark.parametrize(
    ("ranks", "served_by"), [(2, 2), (3, 2), (4, 8), (5, 8), (8, 8), (15, 8), (16, 32), (32, 32), (33, 32), (1000, 32)]
)
def test_t3_an_unmeasured_number_of_ranks_takes_the_nearest_by_ratio_and_of_two_the_larger(ranks, served_by):
    worlds = [World(2, 1), World(8, 1), World(32, 1)]
    assert nearest_world(worlds, World(ranks, 1)) == World(served_by, 1)
    table = make_table({"allreduce": {world: {64: {f"x{world.ranks}": 1}} for world in worlds}})
    assert applying(text_of(rules_of(table)), "allreduce", ranks, 1, 64) == [f"x{served_by}"]


@pytest.mark.parametrize(
    ("wanted", "served_by"),
    [
        ((4, 2), (4, 2)),
        ((16, 2), (8, 2)),  # the same number of hosts comes first
        ((4, 3), (4, 2)),
        ((8, 3), (8, 4)),  # of equally many ranks, the nearest number of hosts: 4 / 3 < 3 / 2
        ((64, 3), (16, 4)),
        ((4, 4), (8, 4)),
        ((4, 1), None),  # one host and several do not stand for each other
    ],
)
def test_t3_an_unmeasured_number_of_hosts_takes_the_nearest_layout_of_several_hosts(wanted, served_by):
    worlds = [World(4, 2), World(8, 2), World(8, 4), World(16, 4)]
    assert nearest_world(worlds, World(*wanted)) == served_by
    table = make_table({"allreduce": {world: {64: {f"x{world.ranks}.{world.hosts}": 1}} for world in worlds}})
    expected = [] if served_by is None else ["x{}.{}".format(*served_by)]
    assert applying(text_of(rules_of(table)), "allreduce", *wanted, 64) == expected


def test_t3_times_of_one_host_do_not_decide_on_several():
    table = make_table({"allreduce": {(4, 1): {64: {"shm/auto": 1}}}})
    assert applying(text_of(rules_of(table)), "allreduce", 4, 2, 64) == []
    assert candidates_for(table, "allreduce", World(4, 2), 64) == ()


def test_a_single_rank_has_no_rule():
    table = make_table({"allreduce": {(2, 1): {64: {"shm/auto": 1}}}})
    assert applying(text_of(rules_of(table)), "allreduce", 1, 1, 64) == []
    assert rules_of(table, ranks=1) == [] and candidates_for(table, "allreduce", World(1, 1), 64) == ()


def test_rules_for_more_ranks_or_hosts_than_the_job_has_are_left_out():
    worlds = {(ranks, hosts): {64: {f"x{ranks}.{hosts}": 1}} for ranks in (2, 8, 32) for hosts in (1, 2)}
    table = make_table({"allreduce": worlds})
    assert [str(rule) for rule in rules_of(table, ranks=3, hosts=1)] == ["allreduce,cpu,2-ranks=x2.1"]
    assert len(rules_of(table, ranks=8)) == 4 and len(rules_of(table)) == 6


@pytest.mark.parametrize("seed", range(150))
def test_the_rules_say_what_the_lookup_says(seed):
    table, rng = random_table(seed), random.Random(seed)
    rules = text_of(rules_of(table))
    for _ in range(60):
        ranks = rng.choice([2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 27, 28, 64, 100])
        op, world = rng.choice(table.operations).op, World(ranks, rng.choice([1, 2, 3, 4, 5, 8, 50]))
        size = rng.choice([0, 1, 2, 3, 4, 8, 252, 253, 254, 2000, 4096, 16383, 16384, 16385, 1 << 30])
        assert applying(rules, op, *world, size) == list(candidates_for(table, op, world, size)), (op, world, size)
        narrowed = text_of(rules_of(table, ranks=ranks, hosts=world.hosts))
        assert applying(narrowed, op, *world, size) == applying(rules, op, *world, size)


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_a_tables_lists_does_not_change_its_rules(seed):
    table = random_table(seed)
    assert set(map(str, rules_of(canonical(table)))) == set(map(str, rules_of(table)))


def test_a_table_with_too_many_rules_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lookup, "MAX_RULES", 5)
    path = saved(tmp_path, make_table({"allreduce": {(4, 1): PAPER}}))
    with pytest.raises(InvalidArgumentError, match=r"t\.json: has more than 5 rules"):
        table_rules(path, here=HERE)


# ---- operations whose sizes differ from rank to rank


@pytest.mark.parametrize("op", ["allgather", "alltoall", "gather", "scatter"])
def test_t10_an_operation_whose_sizes_differ_has_one_order_for_all_sizes(op):
    # Slowdowns: A 1 + 2, B 2 + 1, C 1.2 + 1.1.
    sizes = {64: {"A": 10, "B": 20, "C": 12}, 4096: {"A": 40, "B": 20, "C": 22}}
    table = make_table({op: {(4, 1): sizes}})
    assert [str(rule) for rule in rules_of(table)] == [f"{op},cpu,2-ranks,1hosts={name}" for name in "CAB"]
    assert {candidates_for(table, op, World(4, 1), size) for size in (1, 64, 4096, 1 << 30)} == {("C", "A", "B")}


def test_t10_the_list_of_these_operations_is_the_cores():
    for op in ("allreduce", "broadcast", "reduce", "reducescatter"):
        assert op not in lookup.SIZES_DIFFER
        _core.parse_knobs({"select": f"{op}:0-64=shm"})
    for op in lookup.SIZES_DIFFER:
        with pytest.raises(InvalidArgumentError, match="differ by rank"):
            _core.parse_knobs({"select": f"{op}:0-64=shm"})


# ---- candidates that cannot run, or must not


def test_t7_each_range_names_the_next_candidates():
    rules = text_of(rules_of(make_table({"allreduce": {(4, 1): PAPER}})))
    for size in (64, 3000, 1 << 20):
        assert sorted(applying(rules, "allreduce", 4, 1, size)) == ["A", "B", "C"]


def test_t7_a_candidate_that_could_not_run_has_no_rule():
    table = make_table({"allreduce": {(4, 1): {64: {"A": CANNOT, "B": 9}}}})
    assert candidates_for(table, "allreduce", World(4, 1), 64) == ("B",)


def test_t7_a_candidate_with_wrong_results_at_any_size_never_runs():
    table = make_table({"allreduce": {(4, 1): {64: {"A": 1, "B": 9}, 4096: {"A": WRONG, "B": 9}}}})
    assert [str(rule) for rule in rules_of(table)] == ["allreduce,cpu,2-ranks,1hosts=B"]


def test_a_layout_that_no_candidate_can_run_counts_as_unmeasured(tmp_path, warnings):
    table = make_table({"allreduce": {(2, 1): {64: {"A": 1}}, (4, 1): {64: {"B": WRONG, "C": CANNOT}}}})
    assert candidates_for(table, "allreduce", World(4, 1), 64) == ("A",)
    table_rules(saved(tmp_path, table), ranks=4, hosts=1, here=HERE)
    assert any("allreduce on 4 ranks on 1 host; those on 2 ranks on 1 host decide" in line for line in warnings())


# ---- the job's rules


def full(worlds=((2, 1),)):
    return {op: {world: {64: {"shm/auto": 1}} for world in worlds} for op in lookup.OPERATIONS}


def test_a_table_that_fits_gives_its_rules_without_a_warning(tmp_path, warnings):
    path = saved(tmp_path, make_table(full()))
    rules = table_rules(path, ranks=2, hosts=1, here=HERE)
    assert len(rules.split(";")) == 8 and warnings() == []


def test_t9_the_core_reads_the_rules(tmp_path):
    short = {
        "allreduce": {(4, 1): {1024: {"shm/oneshot": 1, "shm/twoshot": 2}, 4096: {"shm/oneshot": 2, "shm/twoshot": 1}}},
        "allgather": {(2, 2): {64: {"mpi/native": 1}}, (8, 2): {64: {"mpi/twolevel": 1}}, (2, 1): {64: {"shm": 1}}},
    }
    rules = table_rules(saved(tmp_path, make_table(short)), here=HERE)
    assert _core.parse_knobs({"select": rules})["select"][0] == rules
    assert "allreduce,cpu,2-ranks,1hosts:0-2048=shm/oneshot" in rules.split(";")


def test_t3_each_layout_that_stands_for_the_jobs_is_one_warning(tmp_path, warnings):
    short = full() | {"reduce": {(8, 1): {64: {"shm/auto": 1}}}}
    assert table_rules(saved(tmp_path, make_table(short)), ranks=3, hosts=1, here=HERE)
    first, second = warnings()
    assert (
        "has no times of allreduce, allgather, broadcast, reducescatter, alltoall, gather, scatter on 3 ranks" in first
    )
    assert "those on 2 ranks on 1 host decide" in first
    assert "has no times of reduce on 3 ranks on 1 host; those on 8 ranks on 1 host decide" in second


def test_t3_an_unknown_number_of_hosts_is_no_reason_to_warn(tmp_path, warnings):
    path = saved(tmp_path, make_table(full(((2, 1), (4, 2)))))
    assert table_rules(path, ranks=4, here=HERE) and warnings() == []
    assert table_rules(path, ranks=5, here=HERE) and len(warnings()) == 1


def test_t3_operations_without_times_are_one_warning(tmp_path, warnings):
    path = saved(tmp_path, make_table({"allreduce": {(2, 1): {64: {"shm/auto": 1}}}}))
    assert table_rules(path, ranks=2, hosts=1, here=HERE) == "allreduce,cpu,2-ranks=shm/auto"
    [warning] = warnings()
    assert "no times of allgather, broadcast," in warning and "the selector's defaults decide" in warning


def test_t3_an_empty_table_has_no_rules_and_is_one_warning(tmp_path, warnings):
    assert table_rules(saved(tmp_path, make_table({})), ranks=3, hosts=1, here=HERE) == ""
    assert len(warnings()) == 1 and "allreduce, allgather" in warnings()[0]


def test_t3_several_hosts_without_times_are_one_warning(tmp_path, warnings):
    rules = table_rules(saved(tmp_path, make_table(full())), ranks=4, hosts=2, here=HERE)
    assert applying(rules, "allreduce", 4, 2, 64) == []
    assert applying(rules, "allreduce", 2, 1, 64) == ["shm/auto"]  # a process set inside one of the hosts
    [warning] = warnings()
    assert "on 4 ranks on 2 hosts; the selector's defaults decide there" in warning


def test_t3_an_absent_table_is_one_warning_and_with_strict_an_error(tmp_path, warnings):
    assert table_rules(tmp_path / "none.json", ranks=3) == ""
    [warning] = warnings()
    assert f"{tmp_path}/none.json does not exist" in warning
    with pytest.raises(InvalidArgumentError, match="does not exist"):
        table_rules(tmp_path / "none.json", strict=True)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (fingerprint_of("Intel Xeon", 8, 32, "6.1.0"), "cpu AMD EPYC, not Intel Xeon"),
        (fingerprint_of("AMD EPYC", 2, 32, "6.1.0"), "cores 8, not 2"),
        (fingerprint_of("AMD EPYC", 8, 64, "6.2.0"), "memory_gib 32, not 64; kernel 6.1.0, not 6.2.0"),
        (HERE.__class__("AMD EPYC", 8, 32, "6.1.0", "sha256:0"), "hash sha256:"),
    ],
)
def test_t6_a_table_of_another_host_is_one_warning_and_with_strict_an_error(tmp_path, warnings, host, said):
    path = saved(tmp_path, make_table(full(), host))
    assert table_rules(path, ranks=2, hosts=1, here=HERE)
    [warning] = warnings()
    assert "measured on another host" in warning and said in warning
    with pytest.raises(InvalidArgumentError, match="measured on another host"):
        table_rules(path, ranks=2, hosts=1, here=HERE, strict=True)


def test_a_layout_without_a_usable_candidate_has_no_band():
    assert (
        bands_of(
            "allreduce",
            Layout(2, 1, make_table({"reduce": {(2, 1): {64: {"A": WRONG}}}}).operations[0].layouts[0].sizes),
        )
        == []
    )
