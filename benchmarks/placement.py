"""The quality of the placement of experts: the heuristic against the optimum, on random clusters, without ranks.

``python benchmarks/placement.py`` prints a row for each number of devices; with ``--large``, also the times for many.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence

import numpy as np

from horocache.moe.placement import PlacementError, Topology, Workload, shard

KINDS = ("every link another one", "three hosts", "equal links")
SIZES = (4, 5, 6, 7, 8, 10, 12)


def instance(seed: int, devices: int) -> tuple[Topology, Workload]:
    """Return a random cluster and its work; about a quarter of the small ones cannot hold all experts.

    Args:
        seed: of the random numbers; ``seed % 3`` is the kind of links.
        devices: the number of devices.
    """
    rng = np.random.default_rng([seed, devices])
    kind = KINDS[seed % len(KINDS)]
    shape = (devices, devices)
    if kind == "every link another one":
        alpha, beta = rng.uniform(1e-6, 1e-4, shape), 10 ** rng.uniform(-10.5, -8, shape)
    elif kind == "three hosts":
        host = rng.integers(0, 3, devices)
        inside = host[:, None] == host[None, :]
        alpha = np.where(inside, 2e-6, 3e-5) * rng.uniform(0.8, 1.2, shape)
        beta = np.where(inside, 1e-10, 1e-9) * rng.uniform(0.8, 1.2, shape)
    else:
        alpha, beta = np.full(shape, 10 ** rng.uniform(-6, -4)), np.full(shape, 10 ** rng.uniform(-10, -8.5))
    experts = int(rng.integers(1, 17))
    most = (experts // devices + 1, experts, 2 * experts)[int(rng.integers(0, 3))]
    memory = rng.integers(0 if rng.random() < 0.5 else most // 2, most + 1, devices)
    rates = rng.uniform(1, 5, devices) * 10 ** rng.uniform(2, 4)
    work = Workload(experts, 10 ** rng.uniform(4, 7.5), int(rng.integers(1, 9)), 10 ** rng.uniform(5, 9))
    return Topology(alpha, beta, rates, memory), work


def row(devices: int, instances: int) -> str:
    """Return the figures of one number of devices as a row of a table."""
    ratios, exact_s, heuristic_s = [], [], []
    for seed in range(instances):
        topology, work = instance(seed, devices)
        started = time.perf_counter()
        try:
            best = shard(topology, work, "exact")
        except PlacementError:
            continue
        between = time.perf_counter()
        ratios.append(shard(topology, work, "heuristic").objective / best.objective)
        heuristic_s.append(time.perf_counter() - between)
        exact_s.append(between - started)
    ratio = np.array(ratios)
    figures = (
        f"{devices}",
        f"{len(ratio)}",
        f"{np.count_nonzero(ratio < 1 + 1e-9)}",
        f"{ratio.mean():.4f}",
        f"{np.percentile(ratio, 95):.3f}",
        f"{ratio.max():.2f}",
        f"{1e3 * np.median(exact_s):.3g}",
        f"{1e3 * np.median(heuristic_s):.3g}",
    )
    return f"| {' | '.join(figures)} |"


def large(devices: int) -> str:
    """Return the time of the heuristic for many devices as a row of a table."""
    figures = [f"{devices}"]
    for kind in range(len(KINDS)):
        solvable = (
            found
            for found in (instance(seed, devices) for seed in itertools.count(kind, len(KINDS)))
            if np.sum(found[0].memory) >= found[1].experts
        )
        topology, work = next(solvable)
        started = time.perf_counter()
        found = shard(topology, work, "heuristic")
        figures.append(f"{time.perf_counter() - started:.2f} s, {found.evaluated} groups")
    return f"| {' | '.join(figures)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=200, help="random clusters of each size (200)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of devices, at most 12")
    parser.add_argument("--large", type=int, nargs="*", default=(), help="numbers of devices to time")
    options = parser.parse_args(arguments)
    print("| devices | solvable | optimal | mean ratio | p95 | largest | exact, ms | heuristic, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for devices in options.sizes:
        print(row(devices, options.instances), flush=True)
    if options.large:
        print(f"\n| devices | {' | '.join(KINDS)} |\n|---|---|---|---|")
    for devices in options.large:
        print(large(devices), flush=True)


if __name__ == "__main__":
    main()
