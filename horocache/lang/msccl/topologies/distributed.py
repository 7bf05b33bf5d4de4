"""``msccl.topologies.distributed``: copies of a topology that are connected to each other."""

from __future__ import annotations

from horocache.lang.frontend.topology import Topology


def _copies(name: str, local: Topology, num_copies: int, remote_bw: int) -> tuple[str, list[list[int]]]:
    size = local.num_nodes()
    ranks = range(size * num_copies)

    def link(source: int, destination: int) -> int:
        inside = source // size == destination // size
        return local.link(source % size, destination % size) if inside else remote_bw

    links = [[link(source, destination) for source in ranks] for destination in ranks]
    return f"{name}(local={local.name},copies={num_copies},bw={remote_bw})", links


def distributed_fully_connected(local_topology: Topology, num_copies: int, remote_bw: int) -> Topology:
    """Copies of a topology; every rank is connected to every rank of the other copies."""
    return Topology(*_copies("DistributedFullyConnected", local_topology, num_copies, remote_bw))


def distributed_hub_and_spoke(local_topology: Topology, num_copies: int, remote_bw: int) -> Topology:
    """Copies of a topology; every rank is connected to every rank of the other copies.

    All links out of a copy share one capacity, and so do all links into a copy.
    """
    name, links = _copies("DistributedHubAndSpoke", local_topology, num_copies, remote_bw)
    size = local_topology.num_nodes()
    switches = []
    for copy in range(num_copies):
        inside = list(range(copy * size, (copy + 1) * size))
        outside = [rank for rank in range(size * num_copies) if rank not in inside]
        switches += [
            (inside, outside, remote_bw, f"copy_{copy}_out_remote"),
            (outside, inside, remote_bw, f"copy_{copy}_in_remote"),
        ]
    return Topology(name, links, switches)
