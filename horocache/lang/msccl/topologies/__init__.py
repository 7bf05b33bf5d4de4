"""``msccl.topologies``: the topologies of msccl-tools."""

from __future__ import annotations

import re
import subprocess

from horocache.lang.frontend.topology import Topology, dgx1, from_links, fully_connected, line, ring
from horocache.lang.frontend.topology import star as star_of
from horocache.lang.msccl.topologies.distributed import distributed_fully_connected, distributed_hub_and_spoke

__all__ = [
    "Topology",
    "amd4",
    "amd8",
    "binarize_topology",
    "dgx1",
    "dgx_a100",
    "distributed_fully_connected",
    "distributed_hub_and_spoke",
    "fully_connected",
    "hub_and_spoke",
    "line",
    "nvlink_only",
    "reverse_topology",
    "ring",
    "star",
]


def star(num_nodes: int, non_blocking: bool = True) -> Topology:
    """Rank 0 is connected to every other rank. If not ``non_blocking``, its links share one capacity per direction."""
    made = star_of(num_nodes)
    points = list(range(1, num_nodes))
    switches = [] if non_blocking else [([0], points, 1, "to_points"), (points, [0], 1, "from_points")]
    return Topology(made.name, made.links, switches)


def hub_and_spoke(num_nodes: int) -> Topology:
    """Every rank is connected to every other rank. The links of a rank share one capacity per direction."""
    switches = []
    for node in range(num_nodes):
        others = [other for other in range(num_nodes) if other != node]
        switches += [([node], others, 1, f"node_{node}_out"), (others, [node], 1, f"node_{node}_in")]
    return Topology(f"HubAndSpoke(n={num_nodes})", fully_connected(num_nodes).links, switches)


def dgx_a100() -> Topology:
    """The eight GPUs of a DGX A100, each connected to every other by switches, with a capacity of twelve links."""
    links = [(a, b, 12) for a in range(8) for b in range(8) if a != b]
    return from_links("DGX_A100", 8, links)


def amd4() -> Topology:
    """Four GPUs in a ring."""
    return from_links("AMD4", 4, [(a, b, 1) for a in range(4) for b in range(4) if a ^ b in (1, 2)])


def amd8() -> Topology:
    """Eight GPUs, each connected to every other; some pairs have a higher capacity."""
    close = {(0, 2), (0, 3), (0, 5), (1, 4), (1, 6), (1, 7), (2, 3), (2, 5), (3, 5), (4, 6), (4, 7), (6, 7)}
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    return from_links("AMD8", 8, [(a, b, 6 if (min(a, b), max(a, b)) in close else 5) for a, b in pairs])


def nvlink_only(nvidia_smi_topo: str | None = None) -> Topology:
    """The NVLinks between this machine's GPUs.

    Args:
        nvidia_smi_topo: output of ``nvidia-smi topo -m``; when omitted, this function runs the command.

    Raises:
        OSError: the command cannot be run.
        subprocess.CalledProcessError: the command failed.
        BadReferenceError: the output does not name a GPU.
    """
    if nvidia_smi_topo is None:
        nvidia_smi_topo = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True
        ).stdout
    rows = [line.split("\t")[1:] for line in nvidia_smi_topo.splitlines() if line.startswith("GPU")]
    links = [[_links(cell) for cell in row[: len(rows)]] for row in rows]
    return Topology("NVLinkOnly", links)


def _links(cell: str) -> int:
    match = re.fullmatch(r"NV(\d+)", cell.strip())
    return int(match[1]) if match else 0


def reverse_topology(topology: Topology) -> Topology:
    """The topology with the direction of every link reversed."""
    size = topology.num_nodes()
    links = [[topology.links[source][destination] for source in range(size)] for destination in range(size)]
    switches = [(destinations, sources, bw, name) for sources, destinations, bw, name in topology.switches]
    return Topology(f"Reverse{topology.name}", links, switches)


def binarize_topology(topology: Topology) -> Topology:
    """The topology with a capacity of 1 for every link, and without switches."""
    return Topology(f"Binarized{topology.name}", [[int(link > 0) for link in row] for row in topology.links])
