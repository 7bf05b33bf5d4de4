"""The sharding problem and the placement of experts as mixed-integer programs, solved by HiGHS through SciPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from horocache.moe.placement.errors import no_scipy
from horocache.moe.placement.exact import members, subset_costs
from horocache.moe.placement.model import Group, Model
from horocache.moe.placement.topology import Floats, Integers

_NODES_OF_PLACEMENT = 5_000  # of the search tree; a count, so that the result does not depend on the machine's speed
_SLACK = 1e-6  # HiGHS meets constraints up to this


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse  # noqa: PLC0415  (an optional library)
    except ImportError as missing:
        raise no_scipy() from missing
    return optimize, sparse


def solve(model: Model, start: list[Group]) -> list[Group]:
    """Return a partition whose objective is the smallest, up to a millionth.

    For each number K of groups there is one program. Its columns are the feasible sets S of devices, each with a binary
    z_S, the cost t of the most expensive group and the time r of the allreduce::

        minimise  t + r
        sum of z_S over the sets with device i  =  1    for each device i
        sum of z_S  =  K
        t  >=  sum of cost_S z_S over the sets with device i    for each device i
        r  >=  T_e (1 - sum of z_S over the sets with both ends of e)    for each link e of Model.worst_links

    Args:
        model: the costs.
        start: a feasible partition; sets that cost more than its objective are left out.

    Raises:
        UnsupportedError: SciPy is not installed.
    """
    optimize, sparse = _scipy()
    costs = subset_costs(model)
    best, objective = start, model.objective(start)
    everything = [tuple(range(model.devices))]
    if model.objective(everything) < objective:
        best, objective = everything, model.objective(everything)
    for groups in range(2, model.devices + 1):
        # Columns may cost as much as the best objective so far, so that rounding does not lose a better partition.
        allreduce = float(model.worst_links(groups).seconds.min())
        columns = np.flatnonzero(costs + allreduce <= objective * (1 + _SLACK))
        found = _groups_of(optimize, sparse, model, groups, columns, costs[columns], objective)
        if found and model.objective(found) < objective:
            best, objective = found, model.objective(found)
    return best


def _groups_of(
    optimize: Any, sparse: Any, model: Model, groups: int, columns: Integers, costs: Floats, scale: float
) -> list[Group]:
    """The best partition into this number of groups of these sets; nothing if there is none. ``scale``: its unit."""
    n = model.devices
    holds = (columns[None, :] >> np.arange(n)[:, None] & 1).astype(float)  # (devices, columns)
    if not holds.any(axis=1).all():
        return []
    links = model.worst_links(groups)
    scale = scale or 1.0
    # A time of 2 units is more than any partition may cost; larger coefficients would only cost precision.
    times = np.minimum(links.seconds / scale, 2.0)
    both = holds[links.ends[0]] * holds[links.ends[1]]
    rows = np.block(
        [
            [holds, np.zeros((n, 2))],
            [np.ones((1, len(columns))), np.zeros((1, 2))],
            [-holds * (costs / scale), np.repeat([[1.0, 0.0]], n, axis=0)],
            [both * times[:, None], np.repeat([[0.0, 1.0]], len(times), axis=0)],
        ]
    )
    low = np.concatenate([np.ones(n), [groups], np.zeros(n), times])
    high = np.concatenate([np.ones(n), [groups], np.full(n + len(times), math.inf)])
    width = len(columns) + 2
    result = optimize.milp(
        np.concatenate([np.zeros(width - 2), [1.0, 1.0]]),
        integrality=np.concatenate([np.ones(width - 2), [0, 0]]),
        bounds=optimize.Bounds(np.zeros(width), np.concatenate([np.ones(width - 2), [math.inf, math.inf]])),
        constraints=optimize.LinearConstraint(sparse.csr_matrix(rows), low, high),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        return []
    return [members(int(columns[i])) for i in np.flatnonzero(result.x[:-2] > 0.5)]


def place(loads: Floats, rates: Floats, memory: Integers) -> tuple[Integers | None, bool]:
    """Return the device of each expert with the smallest time of the last device, and whether that is proved.

    The search ends after a fixed number of nodes; then the best placement that it has found is returned, or None.

    Args:
        loads: float64, shape (experts,), at least one above 0.
        rates: float64, shape (n,). Load that each device computes in a second.
        memory: int64, shape (n,). Experts that each device can hold; enough together.

    Raises:
        UnsupportedError: SciPy is not installed.
    """
    optimize, sparse = _scipy()
    experts, n = len(loads), len(rates)
    ideal = float(loads.sum() / rates.sum())  # seconds; the unit of the program
    identity, ones = sparse.identity(n), sparse.csr_matrix(np.ones((1, n)))
    by_expert = sparse.kron(sparse.identity(experts), ones)  # variable e * n + i: expert e is on device i
    by_device = sparse.kron(sparse.csr_matrix(np.ones((1, experts))), identity)
    seconds = sparse.kron(sparse.csr_matrix(loads[None, :]), sparse.diags(1.0 / (rates * ideal)))
    zeros, last = sparse.csr_matrix((experts, 1)), sparse.csr_matrix(np.full((n, 1), -1.0))
    rows = sparse.bmat(
        [[by_expert, zeros], [by_device, sparse.csr_matrix((n, 1))], [seconds, last]],
        format="csr",
    )
    low = np.concatenate([np.ones(experts), np.full(2 * n, -math.inf)])
    high = np.concatenate([np.ones(experts), memory.astype(float), np.zeros(n)])
    choices = experts * n
    result = optimize.milp(
        np.concatenate([np.zeros(choices), [1.0]]),
        integrality=np.concatenate([np.ones(choices), [0]]),
        bounds=optimize.Bounds(np.zeros(choices + 1), np.concatenate([np.ones(choices), [math.inf]])),
        constraints=optimize.LinearConstraint(rows, low, high),
        options={"mip_rel_gap": 0.0, "node_limit": _NODES_OF_PLACEMENT},
    )
    if result.x is None:
        return None, False
    return np.argmax(result.x[:-1].reshape(experts, n), axis=1).astype(np.int64), result.status == 0
