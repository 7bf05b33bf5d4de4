"""Names of calls without a name: equal calls meet on all ranks, whatever the timing; see call_names.py."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque

import pytest

from horocache.errors import DuplicateNameError, MismatchError
from horocache.mcr_dl.call_names import Backlog, Sequence


class FakeCore:
    """Matches the ranks' operations by name, as the coordinator does, and ends them at random moments."""

    def __init__(self, ranks, seed):
        self.random = random.Random(seed)
        self.in_flight = [{} for _ in range(ranks)]  # per rank: name -> call
        self.waiting = defaultdict(dict)  # name -> {rank: call}
        self.agreed = []  # (rank, name) of operations that have run on all ranks, and not ended on this one
        self.met = []  # calls that ran as one
        self.refused = 0  # submissions whose name was in flight
        self.lock = threading.Lock()

    def submit(self, rank, name, call):
        with self.lock:
            if name in self.in_flight[rank]:
                self.refused += 1
                raise DuplicateNameError(name)
            self.in_flight[rank][name] = call
            waiting = self.waiting[name]
            assert rank not in waiting
            waiting[rank] = call
            if len(waiting) == len(self.in_flight):
                self.met.append(tuple(waiting[each] for each in range(len(self.in_flight))))
                del self.waiting[name]
                self.agreed += [(each, name) for each in range(len(self.in_flight))]
            return len(self.met)

    def end_some(self, most):
        """End operations in any order: a rank's own end is later than the agreement."""
        with self.lock:
            for _ in range(min(most, len(self.agreed))):
                rank, name = self.agreed.pop(self.random.randrange(len(self.agreed)))
                del self.in_flight[rank][name]


class Rank:
    """One rank's sequences and backlog."""

    def __init__(self, core, number):
        self.sequences = {label: Sequence(f"mcr_dl/{label}", label) for label in ("shm", "mpi", "auto")}
        self.backlog = Backlog()
        self.core, self.number = core, number

    def submit(self, name, identity, by_this_thread=False):
        return self.backlog.submit(name, lambda: self.core.submit(self.number, name, identity), by_this_thread)

    def call(self, label, key, identity):
        def start(name):
            return self.submit(name, identity)

        return self.sequences[label].submit(key, start)


def program(seed):
    """Calls of a random program with loops of several lengths: (sequence, key), per sequence in the same order."""
    common = random.Random(seed)
    calls = []
    for _ in range(common.randrange(3, 8)):
        step = [
            (common.choice(["shm", "mpi", "auto"]), common.randrange(4)) for _ in range(common.choice([1, 2, 7, 40]))
        ]
        calls += step * common.choice([1, 3, 30, 200])
    return calls[:3000]


@pytest.mark.parametrize("seed", range(40))
def test_equal_calls_meet_whatever_the_ranks_orders_and_the_moments_when_operations_end(seed):
    ranks, calls = 2 + seed % 3, program(seed)
    core = FakeCore(ranks, seed)
    identities = defaultdict(list)
    for label, key in calls:
        identities[label].append((key, f"{label} {len(identities[label])}"))
    everybody = [Rank(core, number) for number in range(ranks)]
    left = [{label: deque(of) for label, of in identities.items()} for _ in range(ranks)]
    timing = random.Random(seed + 1000)
    while any(any(queues.values()) for queues in left):
        number = timing.randrange(ranks)
        labels = [label for label, queue in left[number].items() if queue]  # any backend may come first on a rank
        if labels:
            label = timing.choice(labels)
            everybody[number].call(label, *left[number][label].popleft())
        core.end_some(timing.choice([0, 0, 1, 5]))
    limit = time.monotonic() + 30
    while len(core.met) < len(calls):  # the backlogs' threads submit what has waited
        core.end_some(1000)
        time.sleep(0.0005)
        assert time.monotonic() < limit, f"{len(calls) - len(core.met)} calls never met"
    assert all(len(set(met)) == 1 for met in core.met)
    assert sorted(met[0] for met in core.met) == sorted(identity for of in identities.values() for _, identity in of)


def test_a_call_whose_name_is_in_flight_does_not_wait_and_keeps_its_place():
    core = FakeCore(2, 0)
    everybody = [Rank(core, number) for number in range(2)]
    for number in range(500):  # rank 1 comes much later
        everybody[0].call("shm", "key", str(number))
    assert core.refused > 0 and not everybody[0].backlog.empty
    for number in range(500):
        everybody[1].call("shm", "key", str(number))
    limit = time.monotonic() + 30
    while len(core.met) < 500:
        core.end_some(1000)
        time.sleep(0.0005)
        assert time.monotonic() < limit
    assert sorted(core.met) == sorted((str(number), str(number)) for number in range(500))
    while not all(rank.backlog.empty for rank in everybody):
        time.sleep(0.0005)


def test_a_request_that_depends_on_its_thread_waits_there():
    core = FakeCore(1, 0)
    rank = Rank(core, 0)
    assert rank.submit("one", "first") == 1
    ended = threading.Timer(0.05, core.end_some, (10,))
    ended.start()
    assert rank.submit("one", "second", by_this_thread=True) == 2
    ended.join()
    assert rank.backlog.empty and core.refused > 0


def names_of(sequence, keys):
    return [sequence.submit(key, lambda name: name)[0] for key in keys]


def test_a_loop_gets_its_names_again():
    step = [("all_reduce", size) for size in range(50)] + ["bcast"]
    keys = step * 40
    names = names_of(Sequence("s", "s"), keys)
    of_name = defaultdict(set)
    for name, key in zip(names[len(names) // 2 :], keys[len(names) // 2 :], strict=True):
        of_name[name].add(key)
    assert all(len(found) == 1 for found in of_name.values()), "the response cache would miss"
    assert len(of_name) < 200


def test_the_first_different_call_has_one_name_and_ranks_begin_anew_together():
    sequences = [Sequence("s", "backend 'shm'") for _ in range(2)]
    for sequence, different in zip(sequences, ("all_reduce", "bcast"), strict=True):
        names_of(sequence, ["a", "b", "c"] * 20)
        name, of_call = sequence.submit(different, lambda name: name)
        assert (name, of_call.number) == ("s.0.60", 61)
        of_call.disagreed()
    first, second = (names_of(sequence, ["a", "b"] * 5) for sequence in sequences)
    assert first == second and all(name.startswith("s@61.") for name in first)


def test_a_rank_that_went_on_after_a_mismatch_refuses_further_calls():
    sequence = Sequence("s", "backend 'shm'")
    _, different = sequence.submit("all_reduce", lambda name: name)
    names_of(sequence, ["bcast"])
    different.disagreed()
    with pytest.raises(MismatchError, match=r"on backend 'shm' differed between ranks in call 1.*another group"):
        names_of(sequence, ["bcast"])


def test_a_call_that_fails_before_it_is_submitted_does_not_count():
    def fails(name):
        raise ValueError(name)

    sequences = [Sequence("s", "s") for _ in range(2)]
    for sequence in sequences:
        names_of(sequence, ["a", "b"])
    with pytest.raises(ValueError, match=r"s\.0\.2"):
        sequences[0].submit("c", fails)
    assert names_of(sequences[0], ["b", "a"]) == names_of(sequences[1], ["b", "a"])


def test_names_of_groups_and_threads_stay_apart_after_a_mismatch():
    sequences = [Sequence(prefix, "s") for prefix in ("mcr_dl/shm", "mcr_dl/shm@g1", "mcr_dl/shm@g1#loader")]
    for sequence in sequences:
        sequence.submit("a", lambda name: name)[1].disagreed()
    assert len({name for sequence in sequences for name in names_of(sequence, ["a"])}) == 3
