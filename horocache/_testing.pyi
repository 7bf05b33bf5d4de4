"""The simulation of the control plane, for tests and benchmarks; not a part of the package."""

from collections.abc import Mapping
from typing import Any

def simulate(scenario: Mapping[str, Any]) -> dict[str, Any]: ...  # "violation" is empty if every property holds
def bench_control(
    strategy: str, ranks: int, tensors: int, cache: bool, steps: int = 5, radix: int = 4, ranks_per_host: int = 8
) -> dict[str, float]: ...  # cost of agreement per step, with all ranks in one thread
