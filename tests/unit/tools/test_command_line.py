"""``horocache``: invalid arguments and failures are one line."""

from __future__ import annotations

import pytest

from horocache import _core
from horocache.cli import entry_point
from horocache.doctor import report, system


def one_line(capsys, *arguments):
    code = entry_point.main(arguments)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("horocache: ")
    return code, lines[0]


def test_the_control_benchmark_limits_tensors_to_half_of_the_largest_cache(capsys):
    (capacity,) = (knob for knob in _core.knob_table() if knob["name"] == "cache_capacity")
    most = int(capacity["maximum"]) // 2
    options = entry_point.build_parser().parse_args(["bench", "control", "--tensors", f"1,{most}"])
    assert options.tensors == [1, most]
    code, line = one_line(capsys, "bench", "control", "--tensors", f"1,{most + 1}")
    assert code == 2 and f"{most + 1} tensors are too many; the most are {most}" in line


@pytest.mark.parametrize("what", ["allreduce", "alltoall"])
def test_a_buffer_that_is_larger_than_the_memory_is_an_error(capsys, monkeypatch, what):
    monkeypatch.setattr(system, "memory_bytes", lambda: 1 << 30)
    code, line = one_line(capsys, "bench", what, "-e", "2G")
    assert code == 2 and f"{2 << 30} bytes" in line and f"{1 << 30}" in line and "-e" in line


def test_a_failed_allocation_is_one_line(capsys, monkeypatch):
    def run(*, as_json):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(report, "run", run)
    assert one_line(capsys, "doctor") == (1, "horocache: there is not enough memory: Unable to allocate 9 TiB")


def test_the_memory_of_a_container_is_its_limit(monkeypatch):
    monkeypatch.setattr(system, "memory_limit", lambda: 1 << 20)
    assert system.memory_bytes() == 1 << 20
    monkeypatch.setattr(system, "memory_limit", lambda: None)
    assert system.memory_bytes() > 1 << 20
