"""Machine models: latency, bandwidth and message gap of the links between ranks.

The model is the alpha-beta model with the gap between messages of LogGP (Alexandrov et al., SPAA 1995).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from horocache.lang.errors import UsageError


@dataclass(frozen=True)
class Link:
    """One direction of the link between two ranks, or of a host's network card.

    Attributes:
        latency_us: microseconds from the end of a message's transfer to its arrival; latencies of messages overlap.
        gb_per_s: bytes that pass in a nanosecond; messages pass one after the other.
        gap_us: least microseconds from the end of a message's transfer to the start of the next one.
    """

    latency_us: float
    gb_per_s: float
    gap_us: float = 0.0

    def sound(self) -> bool:
        """True if the numbers are valid for a link."""
        numbers = (self.latency_us, self.gb_per_s, self.gap_us)
        return all(math.isfinite(number) and number >= 0 for number in numbers) and self.gb_per_s > 0


@dataclass(frozen=True)
class Machine:
    """A machine of identical hosts.

    Attributes:
        num_hosts: number of hosts; rank ``r`` is on host ``r // per_host``.
        per_host: number of ranks of a host.
        inside: link of each pair of ranks of a host, in each direction.
        between: link of each network card, for messages to ranks of other hosts.
        cards: number of network cards of a host; local rank ``l`` sends through card ``l % cards``.
    """

    num_hosts: int
    per_host: int
    inside: Link
    between: Link
    cards: int = 1

    @property
    def ranks(self) -> int:
        """Number of ranks of all hosts."""
        return self.num_hosts * self.per_host

    def ports(self) -> tuple[list[tuple[float, float, float]], list[int]]:
        """The ports through which messages pass, and the port of each pair of ranks.

        Returns:
            The ports, each with its latency in ns, ns per byte and gap in ns. For each ``sender * ranks + receiver``
            the number of its port; -1 for a rank and itself.
        """
        ports: list[tuple[float, float, float]] = []
        port_of = [-1] * self.ranks**2

        def add(link: Link) -> int:
            ports.append((link.latency_us * 1e3, 1 / link.gb_per_s, link.gap_us * 1e3))
            return len(ports) - 1

        cards = [[add(self.between) for _ in range(self.cards)] for _ in range(self.num_hosts)]
        for sender in range(self.ranks):
            host, local = divmod(sender, self.per_host)
            for receiver in range(self.ranks):
                if receiver // self.per_host != host:
                    port_of[sender * self.ranks + receiver] = cards[host][local % self.cards]
                elif receiver != sender:
                    port_of[sender * self.ranks + receiver] = add(self.inside)
        return ports, port_of


def parse_machine(text: str, ranks: int) -> Machine:
    """Parse the text form of a machine, such as ``2x4,inside=1/50,between=10/3``.

    Args:
        text: ``HOSTSxPER_HOST,inside=US/GBS[/GAP_US],between=US/GBS[/GAP_US][,cards=N]``.
        ranks: number of ranks that the machine must have.

    Raises:
        UsageError: the text does not have this form, or the machine has another number of ranks.
    """
    shape, _, rest = text.partition(",")
    try:
        hosts, per_host = (int(number) for number in shape.split("x"))
        named = dict(part.split("=", 1) for part in rest.split(",") if part)
        links = {name: Link(*(float(value) for value in named[name].split("/", 2))) for name in ("inside", "between")}
        machine = Machine(hosts, per_host, cards=int(named.get("cards", "1")), **links)
        good = set(named) <= {"inside", "between", "cards"} and min(hosts, per_host, machine.cards) > 0
        good = good and all(link.sound() for link in links.values())
    except (ValueError, KeyError, TypeError):
        good = False
    if not good:
        raise UsageError(
            f"{text!r} is not a machine; write HOSTSxPER_HOST,inside=US/GBS,between=US/GBS, with the latency in "
            "microseconds and the bandwidth in GB/s of links inside a host and of a host's card, and, if messages "
            "have one, the gap between them in microseconds: 2x4,inside=1/50,between=10/3/1."
        )
    if machine.ranks != ranks:
        raise UsageError(f"the machine {text!r} has {machine.ranks} ranks, and the program {ranks}.")
    return machine
