"""The fixtures ``launcher`` (see harness.py) and ``needs_torch``."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).resolve().parents[2]))  # benchmarks is a package beside the tests

from harness import Launcher, launching


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    """Starts jobs; fails the test if a job leaves a process, a socket, a file or shared memory behind."""
    with launching() as made:
        yield made


@pytest.fixture
def needs_torch() -> None:
    """Skip with a reason where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
