"""The benchmark of the placement of experts."""

from __future__ import annotations

from benchmarks import placement


def test_a_small_run_has_a_row_for_each_number_of_devices(capsys):
    placement.main(["--instances", "6", "--sizes", "3", "4", "--large", "14"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("| ")] == ["devices", "3", "4", "devices", "14"]


def test_the_clusters_are_the_same_in_every_run():
    (one, work), (other, same_work) = placement.instance(4, 6), placement.instance(4, 6)
    assert work == same_work
    assert (one.alpha_s == other.alpha_s).all() and (one.memory == other.memory).all()
