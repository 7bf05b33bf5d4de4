"""Communicators and the ranks of a job, without MPI: fake objects with the methods of mpi4py."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import horocache as hc
from horocache.core.mpi import Job, is_communicator, job_of, ranks_of_communicator
from horocache.core.process_set import parts_at_one_place

UNDEFINED = -32766


class FakeGroup:
    """The operations of ``MPI.Group``, on numbers of processes."""

    def __init__(self, processes):
        self.processes = processes

    def Incl(self, ranks):
        return FakeGroup([self.processes[rank] for rank in ranks])

    def Translate_ranks(self, ranks, other):
        return [
            other.processes.index(self.processes[rank]) if self.processes[rank] in other.processes else UNDEFINED
            for rank in ranks
        ]


class FakeComm:
    """The part of ``MPI.Comm`` that horocache uses; mpi4py has ``Get_group`` and a property ``group``."""

    def __init__(self, processes, rank=0):
        self.group = FakeGroup(processes)
        self._rank = rank

    def Get_rank(self):
        return self._rank

    def Get_size(self):
        return len(self.group.processes)

    def Get_group(self):
        return self.group


class NullComm(FakeComm):
    def __init__(self):
        super().__init__([])

    def __bool__(self):
        return False


class GroupOnly:
    """A communicator of a library that has only the property."""

    def __init__(self, comm):
        self.group, self.Get_rank, self.Get_size = comm.group, comm.Get_rank, comm.Get_size


def test_ranks_of_a_communicator_become_ranks_of_the_job():
    job = FakeComm([40, 41, 42, 43])
    assert ranks_of_communicator(FakeComm([43, 41]), Job(job)) == [3, 1]
    assert ranks_of_communicator(GroupOnly(FakeComm([42])), Job(job)) == [2]
    assert ranks_of_communicator(job, Job(job)) == [0, 1, 2, 3]


class TwoGroups(FakeComm):
    def Is_inter(self):
        return True


def test_an_intercommunicator_raises():
    with pytest.raises(hc.InvalidArgumentError, match="intercommunicator"):
        ranks_of_communicator(TwoGroups([1, 2]), Job(FakeComm([1, 2])))
    with pytest.raises(hc.InvalidArgumentError, match="Merge"):
        job_of(TwoGroups([1, 2]))


def test_a_communicator_with_processes_outside_the_job_raises():
    job = FakeComm([40, 41])
    with pytest.raises(hc.InvalidArgumentError, match=r"own ranks \[1, 2\] of 3"):
        ranks_of_communicator(FakeComm([41, 7, 8]), Job(job))


def test_a_communicator_without_mpi4py_raises(monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(hc.InvalidArgumentError, match=r"mpi4py\.MPI is not loaded"):
        ranks_of_communicator(FakeComm([0]))


def test_a_process_set_takes_a_communicator_if_mpi4py_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(COMM_WORLD=FakeComm([7, 8, 9])))
    comm = FakeComm([9, 7])
    made = hc.ProcessSet(comm)
    assert made.ranks == [0, 2] and made.process_set_id is None
    assert made.mpi_comm is comm and hc.ProcessSet([0]).mpi_comm is None
    assert is_communicator(FakeComm([1])) and not is_communicator([1]) and not is_communicator(made)


def test_init_takes_no_argument_a_communicator_or_a_list_of_ranks(monkeypatch):
    comm = FakeComm([3, 5, 4])
    module = SimpleNamespace(_handleof=lambda given: 1000 + given.Get_size(), COMM_WORLD=FakeComm([3, 4, 5, 6]))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    assert job_of(None) == Job()
    assert (job_of(comm).handle, job_of(comm).ranks) == (1003, [])
    assert (job_of([2, 0]).handle, job_of([2, 0]).ranks) == (0, [2, 0])
    for wrong in (object(), "01", 3, NullComm()):
        with pytest.raises(hc.InvalidArgumentError, match="comm"):
            job_of(wrong)
    monkeypatch.delattr(module, "_handleof")
    with pytest.raises(hc.UnsupportedError, match="mpi4py 4"):
        job_of(comm)


def test_a_process_set_has_the_ranks_of_the_job(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(COMM_WORLD=FakeComm([3, 4, 5, 6])))
    made = hc.ProcessSet(FakeComm([5, 3]))
    assert made.ranks == [0, 2]
    made.count_in(Job(FakeComm([5, 3, 4])))
    assert made.ranks == [0, 1]
    made.count_in(Job(ranks=[3, 2, 0]))
    assert made.ranks == [1, 2]


def test_parts_of_the_ranks_are_registered_in_the_order_of_their_lowest_ranks():
    odd, even = [1, 3], [0, 2]
    assert parts_at_one_place([even, odd, even, odd]) == [even, odd]
    assert parts_at_one_place([[0, 3]] * 4) == [[0, 3]], "ranks outside the set name it, too"
    assert parts_at_one_place([[], [1, 3], [], [1, 3]]) == [odd], "ranks 0 and 2 name no set"
    assert parts_at_one_place([[], [1], [2, 3], [2, 3]]) == [[1], [2, 3]]


@pytest.mark.parametrize(
    "named",
    [
        [[], []],
        [[0, 1], [1, 2], [0, 2]],  # they overlap
        [[0, 1], [0, 1], [0, 1], [2]],  # rank 2 is not in the part that it names
        [[1], [1], []],  # rank 0 is not in the part that it names
    ],
)
def test_lists_of_ranks_that_are_no_partition_give_none(named):
    assert parts_at_one_place(named) is None


def test_a_set_of_a_null_communicator_gets_the_ranks_from_its_members():
    made = hc.ProcessSet(NullComm())
    made.count_in(Job())
    assert made.ranks == []
    assert [each.ranks for each in made.part_of([[1, 3], [2]])] == [[1, 3], [2]] and made.ranks == [1, 3]
