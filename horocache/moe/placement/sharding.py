"""Topology-aware expert parallelism: the devices in groups of which each holds all experts (Aristos, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horocache.errors import InvalidArgumentError
from horocache.moe.placement import exact, heuristic, mixed_integer
from horocache.moe.placement.model import Group, GroupCost, Model
from horocache.moe.placement.topology import Integers, Topology, Workload

SOLVERS = ("auto", "exact", "milp", "heuristic")
MOST_DEVICES = {"exact": 12, "milp": 12}  # the work of both grows exponentially


@dataclass(frozen=True)
class Sharding:
    """Devices in expert-parallel groups, and the experts of each device.

    Attributes:
        groups: disjoint groups of devices, each in ascending order; every device is in one of them.
        experts: for each device the experts that it holds, in ascending order.
        idle: devices that hold no expert: they only send the tokens of their data.
        costs: computation and communication of each group, in seconds per step.
        allreduce: T_rho, the allreduce of the experts' gradients between groups, in seconds per step.
        solver: ``exact``, ``milp`` or ``heuristic``.
        optimal: True if no sharding has a smaller objective (for ``milp``, up to a millionth of it).
        evaluated: groups whose cost the solver computed.
    """

    groups: tuple[Group, ...]
    experts: tuple[tuple[int, ...], ...]
    idle: tuple[int, ...]
    costs: tuple[GroupCost, ...]
    allreduce: float
    solver: str
    optimal: bool
    evaluated: int

    @property
    def bottleneck(self) -> int:
        """The number of the group that costs most, of which the objective's parts are."""
        return max(range(len(self.costs)), key=lambda each: self.costs[each].seconds)

    @property
    def computation(self) -> float:
        """Kappa * pi of the group that costs most, in seconds per step."""
        return self.costs[self.bottleneck].computation

    @property
    def communication(self) -> float:
        """Kappa * the largest C_i of the group that costs most, in seconds per step."""
        return self.costs[self.bottleneck].communication

    @property
    def objective(self) -> float:
        """Equation 1: computation, communication and allreduce, in seconds per step."""
        return self.costs[self.bottleneck].seconds + self.allreduce

    def expert_map(self, group: int) -> Integers:
        """Return the device of each expert in a group.

        Args:
            group: the number of the group in ``groups``.

        Returns:
            int64, shape (experts,): device numbers of the topology.

        Raises:
            InvalidArgumentError: there is no such group.
        """
        if not 0 <= group < len(self.groups):
            raise InvalidArgumentError(f"group is {group}; the sharding has the groups 0 to {len(self.groups) - 1}.")
        devices = self.groups[group]
        found = np.empty(sum(len(self.experts[i]) for i in devices), np.int64)
        for i in devices:
            found[list(self.experts[i])] = i
        return found


def shard(topology: Topology, workload: Workload, solver: str = "auto") -> Sharding:
    """Divide devices into groups that each hold all experts, so that a training step is as short as possible.

    The objective is equation 1 of Aristos (Aimuyo, section 4): the cost of the most expensive group, for its experts
    and for its exchange of tokens, and the allreduce between groups. Equation 2, each group can hold all experts, is a
    condition. Every device is in a group, because it has data of its own. Equal arguments give equal results on every
    machine, apart from ``milp``, where SciPy's version may decide between equally good shardings.

    Args:
        topology: n devices and their links.
        workload: the work of a step.
        solver: ``exact`` finds the optimum by dynamic programming over sets of devices, for n <= 12. ``milp`` finds it
            by mixed-integer programming with HiGHS (SciPy), for n <= 12. ``heuristic`` merges devices along fast links
            and improves the groups by local search. ``auto`` is ``exact`` for n <= 12, else ``heuristic``.

    Returns:
        The sharding. Its attribute ``optimal`` says whether it is proved to be the best.

    Raises:
        PlacementError: the devices cannot hold all experts; the message names the missing memory.
        InvalidArgumentError: the solver is unknown, or there are too many devices for it.
        UnsupportedError: ``milp`` needs SciPy, which is not installed.
    """
    if not isinstance(topology, Topology) or not isinstance(workload, Workload):
        found = f"{type(topology).__name__} and {type(workload).__name__}"
        raise InvalidArgumentError(f"shard takes a Topology and a Workload, not {found}.")
    if solver not in SOLVERS:
        raise InvalidArgumentError(f"solver is {solver!r}; it must be one of {', '.join(SOLVERS)}.")
    devices = topology.devices
    if devices > MOST_DEVICES.get(solver, devices):
        raise InvalidArgumentError(
            f"solver {solver!r} takes at most {MOST_DEVICES[solver]} devices, not {devices}; use 'heuristic'."
        )
    if solver == "auto":
        solver = "exact" if devices <= MOST_DEVICES["exact"] else "heuristic"
    model = Model(topology, workload)
    if solver == "exact":
        groups = exact.solve(model)
    else:
        groups = heuristic.solve(model)
        if solver == "milp":
            groups = mixed_integer.solve(model, groups)
    return _sharding(model, sorted(groups), solver)


def _sharding(model: Model, groups: list[Group], solver: str) -> Sharding:
    experts: list[tuple[int, ...]] = [()] * model.devices
    for group in groups:
        first = 0
        for i, count in zip(group, model.counts(group), strict=True):
            experts[i] = tuple(range(first, first + count))
            first += count
    return Sharding(
        groups=tuple(groups),
        experts=tuple(experts),
        idle=tuple(i for i, each in enumerate(experts) if not each),
        costs=tuple(model.cost(group) for group in groups),
        allreduce=model.allreduce(groups),
        solver=solver,
        optimal=solver != "heuristic",
        evaluated=model.evaluated,
    )
