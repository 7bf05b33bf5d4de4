"""The slow link of the benchmarks: rate and delay."""

import os

import pytest

from benchmarks.relay import Direction


def test_packets_leave_one_after_the_other_and_arrive_later_by_the_delay() -> None:
    source, packets_in = os.pipe()
    arrived, target = os.pipe()
    direction = Direction(source, target, delay_s=0.5, bytes_per_s=100.0)
    os.write(packets_in, b"x" * 100)
    direction.take(now=10.0)
    os.write(packets_in, b"y" * 50)
    direction.take(now=10.2)  # waits for the first packet, which takes a second
    assert direction.deliver(now=11.4) == pytest.approx(11.5)
    assert direction.deliver(now=11.5) == pytest.approx(12.0)
    assert os.read(arrived, 1000) == b"x" * 100
    assert direction.deliver(now=12.0) > 12.0
    assert os.read(arrived, 1000) == b"y" * 50
    for end in (source, packets_in, arrived, target):
        os.close(end)
