"""Plans: arguments, the order of measurements, candidates, fingerprints."""

from __future__ import annotations

import pytest

from horocache.base.usage import UsageError
from horocache.tuning.fingerprint import fingerprint_here, fingerprint_of
from horocache.tuning.lookup import World
from horocache.tuning.measure import JobBackend, candidates_of
from horocache.tuning.plan import (
    Unit,
    Wish,
    by_bisection,
    check_memory,
    parse_backends,
    parse_ops,
    parse_sizes,
    parse_worlds,
)
from horocache.tuning.table import OPERATIONS


def wish(**fields):
    given = {"ops": ("allreduce",), "sizes": (64, 256), "worlds": (World(2, 1),), "backends": ()}
    return Wish(**{**given, "overlap": 4, "repetitions": 20, **fields})


# ---- arguments


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1K:1M:x4", [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20]),
        ("1k:5K:X2", [1024, 2048, 4096]),
        ("64:256", [64, 128, 256]),
        ("64", [64]),
        ("4096, 1K,4K", [1024, 4096]),
        ("1K,64:256:x4", [64, 256, 1024]),
    ],
)
def test_sizes_are_lists_and_ranges(text, sizes):
    assert list(parse_sizes(text)) == sizes


WRONG_SIZES = [
    "",
    "K",
    "1Q",
    "-4",
    "3",
    "0",
    "4.5",
    "2049G",
    "9" * 400,
    "1K;2K",
    "\N{ARABIC-INDIC DIGIT FOUR}",
    "4\x1b",
]
WRONG_RANGES = [
    "1K:",
    ":4K",
    "1K:4K:",
    "1K:4K:x1",
    "1K:4K:4",
    "1K:4K:x",
    "4K:1K",
    "1K:4K:x2:x2",
    "1K:4K:x\N{SUPERSCRIPT TWO}",
]


@pytest.mark.parametrize("text", [*WRONG_SIZES, *WRONG_RANGES])
def test_t9_a_wrong_size_is_an_error_that_quotes_it(text):
    with pytest.raises(UsageError) as raised:
        parse_sizes(f"64,{text},1M")
    assert f"'{text[:80]}'" in str(raised.value)


def test_too_many_sizes_are_an_error():
    with pytest.raises(UsageError, match="300 sizes are too many"):
        parse_sizes(",".join(str(4 * size) for size in range(1, 301)))


def test_names_of_operations_may_have_underscores():
    assert parse_ops("all_reduce,all_gather,reduce_scatter,all_to_all") == (
        "allreduce",
        "allgather",
        "reducescatter",
        "alltoall",
    )
    assert parse_ops("Broadcast, broadcast,gather") == ("broadcast", "gather")


@pytest.mark.parametrize("text", ["allsum", "", "allreduce,,gather", "barrier", "all reduce"])
def test_t9_an_unknown_operation_is_an_error_that_lists_the_known_ones(text):
    with pytest.raises(UsageError, match=r"is not an operation that can be tuned; there are allreduce, allgather"):
        parse_ops(text)


def test_layouts_are_worlds_on_one_host_and_hosts_times_ranks():
    assert parse_worlds("2,4", "1,2x2") == (World(2, 1), World(4, 1), World(4, 2))
    assert parse_worlds("9", "2x2,3X1") == (World(3, 3), World(4, 2))
    assert parse_worlds("4,2,4", "1,1x4") == (World(2, 1), World(4, 1))


@pytest.mark.parametrize(
    ("ranks", "layouts", "quoted"),
    [
        ("1", "1", "'1' is not a number of ranks from 2"),
        ("2,x", "1", "'x' is not a number of ranks"),
        ("-2", "1", "'-2'"),
        ("1025", "1", "'1025'"),
        ("9" * 300, "1", "'999"),
        ("2", "2", "'2' is not a layout"),
        ("2", "", "'' is not a layout"),
        ("2", "2x", "'' is not a number of ranks of a host"),
        ("2", "0x2", "'0' is not a number of hosts"),
        ("2", "1x1", "'1x1' has 1 ranks"),
        ("2", "64x64", "'64x64' has 4096 ranks"),
        ("2", "2x2x2", "'2x2' is not a number"),
    ],
)
def test_t9_a_wrong_layout_is_an_error_that_quotes_it(ranks, layouts, quoted):
    with pytest.raises(UsageError, match=quoted):
        parse_worlds(ranks, layouts)


def test_names_of_backends_may_have_an_algorithm():
    assert parse_backends("shm, mpi/fold,shm") == ("shm", "mpi/fold")
    assert parse_backends("") == ()


@pytest.mark.parametrize("text", ["shm,,mpi", "a/b/c", "shm;*=mpi", "x\ny", "/", "shm/"])
def test_t9_a_wrong_backend_is_an_error(text):
    with pytest.raises(UsageError, match="is not the name of a backend"):
        parse_backends(text)


def test_sets_that_do_not_fit_into_memory_are_an_error():
    check_memory([1 << 20], [World(2, 1), World(4, 1)], 4, 64 << 20)
    with pytest.raises(UsageError, match=r"4 overlapped operations of 1048577 bytes on 4 ranks need 33554464 bytes"):
        check_memory([1 << 20, (1 << 20) + 1], [World(2, 1), World(4, 1)], 4, 64 << 20)


# ---- order


@pytest.mark.parametrize(
    ("count", "order"),
    [(0, []), (1, [0]), (2, [0, 1]), (3, [0, 2, 1]), (5, [0, 4, 2, 1, 3]), (9, [0, 8, 4, 2, 6, 1, 3, 5, 7])],
)
def test_by_bisection_the_beginning_is_spread_over_all(count, order):
    assert by_bisection(count) == order


def test_bisection_has_each_number_once():
    assert all(sorted(by_bisection(count)) == list(range(count)) for count in range(100))


def test_all_layouts_have_their_extreme_sizes_before_any_has_the_rest():
    sizes = tuple(64 << i for i in range(7))
    worlds = tuple(World(ranks, 1) for ranks in (2, 4, 8))
    stages = list(wish(ops=("allreduce", "gather"), sizes=sizes, worlds=worlds).stages())
    assert [world.ranks for world, _ in stages] == [2, 8, 4, 2, 8, 4]
    assert stages[0][1][:4] == (
        Unit("allreduce", 64),
        Unit("gather", 64),
        Unit("allreduce", 4096),
        Unit("gather", 4096),
    )
    assert {unit.bytes for unit in stages[0][1]} == {64, 512, 4096}
    assert {unit.bytes for unit in stages[3][1]} == {128, 256, 1024, 2048}


def test_mpiexec_is_needed_between_hosts_and_for_mpi():
    assert not wish().needs_mpiexec(World(4, 1)) and wish().needs_mpiexec(World(4, 2))
    assert wish(backends=("shm", "mpi/fold")).needs_mpiexec(World(4, 1))
    assert not wish(backends=("shm", "mpix")).needs_mpiexec(World(4, 1))


def test_larger_sizes_and_more_ranks_are_estimated_to_take_longer():
    estimates = [wish().seconds_of(World(r, 1), Unit("allreduce", b)) for r, b in ((2, 64), (4, 64), (4, 1 << 20))]
    assert estimates == sorted(estimates) and estimates[0] > 0


# ---- candidates

BACKENDS = [JobBackend("shm", ("auto", "oneshot"), OPERATIONS), JobBackend("gloo", (), ("allreduce", "broadcast"))]


def test_all_backends_and_algorithms_are_candidates():
    assert candidates_of("allreduce", BACKENDS, ()) == (["shm/auto", "shm/oneshot", "gloo"], [])


def test_backends_that_lack_the_operation_are_kept_with_the_reason():
    names, [refused] = candidates_of("gather", BACKENDS, ())
    assert names == ["shm/auto", "shm/oneshot"]
    assert (refused.name, refused.reason) == ("gloo", "gloo does not run gather")


def test_wanted_backends_that_the_job_lacks_are_kept_with_the_reason():
    names, [first, second] = candidates_of("allreduce", BACKENDS, ("shm/oneshot", "mpi", "shm/twoshot"))
    assert names == ["shm/oneshot"]
    assert first.name == "mpi" and first.reason == "the job does not have it; it has shm/auto, shm/oneshot, gloo"
    assert second.name == "shm/twoshot"


# ---- fingerprints


def test_the_fingerprint_of_this_host_is_stable():
    assert fingerprint_here() == fingerprint_here()
    assert fingerprint_here().differences(fingerprint_here()) == []


def test_the_fingerprint_reads_processor_and_quota(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nmodel name\t: A \x1b[31mCPU\nmodel name : B\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text("1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("100000 100000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{3 << 30}\n")
    found = fingerprint_here(tmp_path)
    assert (found.cpu, found.cores, found.memory_gib) == (r"A \x1b[31mCPU", 1, 3)
    assert found == fingerprint_of(found.cpu, 1, 3, found.kernel)


def test_a_host_without_names_of_processors_has_a_fingerprint(tmp_path):
    assert fingerprint_here(tmp_path).cpu
