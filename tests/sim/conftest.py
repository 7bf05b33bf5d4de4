"""Settings of the simulated jobs: fixed seeds, so that every run tests the same jobs."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "simulation",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("simulation")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "large: 1,024 ranks; runs only with HC_TEST_LARGE=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("HC_TEST_LARGE") == "1":
        return
    skip = pytest.mark.skip(reason="set HC_TEST_LARGE=1 to simulate 1,024 ranks")
    for item in items:
        if "large" in item.keywords:
            item.add_marker(skip)
