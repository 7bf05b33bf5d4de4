"""Topologies: the links between ranks and their capacities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from horocache.lang.errors import BadReferenceError, caller


@dataclass(frozen=True)
class Topology:
    """Links between ranks.

    Attributes:
        name: name in messages.
        links: ``links[destination][source]``, as in msccl-tools: the chunks that the link carries per step; 0 if the
            ranks are not connected.
        switches: groups of links that share a capacity: (sources, destinations, capacity, name), as in msccl-tools. The
            compiler does not use them.
    """

    name: str
    links: Sequence[Sequence[int]]
    switches: Sequence[tuple[Sequence[int], Sequence[int], int, str]] = ()

    def __post_init__(self) -> None:
        size = len(self.links)
        if size == 0 or any(len(row) != size for row in self.links):
            raise BadReferenceError(f"the links of topology {self.name!r} are not a square table.", caller())

    def num_nodes(self) -> int:
        """Number of ranks."""
        return len(self.links)

    def link(self, source: int, destination: int) -> int:
        """Capacity of the link from one rank to another; 0 if they are not connected."""
        return self.links[destination][source]


def _table(size: int, connected: Callable[[int, int], int]) -> list[list[int]]:
    return [[connected(source, destination) for source in range(size)] for destination in range(size)]


def fully_connected(size: int) -> Topology:
    """Every rank is connected to every other rank."""
    return Topology(f"FullyConnected(n={size})", _table(size, lambda s, d: int(s != d)))


def ring(size: int) -> Topology:
    """Every rank is connected to the rank before and the rank after it."""
    return Topology(f"Ring(n={size})", _table(size, lambda s, d: int(s != d and (s - d) % size in (1, size - 1))))


def line(size: int) -> Topology:
    """A ring without the link between the last and the first rank."""
    return Topology(f"Line(n={size})", _table(size, lambda s, d: int(abs(s - d) == 1)))


def star(size: int) -> Topology:
    """Rank 0 is connected to every other rank; the others are not connected to each other."""
    return Topology(f"Star(n={size})", _table(size, lambda s, d: int(s != d and 0 in (s, d))))


def hosts(num_hosts: int, per_host: int) -> Topology:
    """Hosts of ``per_host`` ranks each; every rank is connected to every other rank."""
    links = fully_connected(num_hosts * per_host).links
    return Topology(f"Hosts(hosts={num_hosts},ranks={per_host})", links)


def from_links(name: str, size: int, links: Iterable[tuple[int, int, int]]) -> Topology:
    """A topology with the given links (source, destination, capacity)."""
    table = _table(size, lambda s, d: 0)
    for source, destination, capacity in links:
        table[destination][source] = capacity
    return Topology(name, table)


def dgx1() -> Topology:
    """The hybrid cube mesh of the eight GPUs of a DGX-1, in which some links are double."""
    double = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
    single = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}
    links = [(a, b, 2) for a, b in double] + [(a, b, 1) for a, b in single]
    return from_links("DGX1", 8, links + [(b, a, n) for a, b, n in links])
