"""Finds the real NCCL, and the fake driver's test jobs, in ``tests/fake_gpu``."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fake_gpu"))


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The folder into which NVIDIA's wheel is installed; its name is in NCCL_WHEEL."""
    return Path(os.environ["NCCL_WHEEL"])


@pytest.fixture(scope="session")
def library(wheel: Path) -> Path:
    """NCCL's library."""
    return wheel / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
