"""The library of algorithms. Each function writes a program for any suitable number of ranks.

Every function returns a :class:`~horocache.lang.Program`, which :func:`~horocache.lang.compile_program` compiles.
It passes other keyword arguments on to ``Program`` (instances, protocol, slots, topology).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from horocache.lang.frontend.chunk_ref import Buffer, Ref, chunk
from horocache.lang.frontend.collectives import AllGather, AllReduce, AllToAll, AllToNext
from horocache.lang.frontend.topology import dgx1, hosts
from horocache.lang.frontend.trace import Program

_I, _O = Buffer.input, Buffer.output


def ring(ranks: int, **options: Any) -> Program:
    """Allreduce on a ring: a reduce-scatter, then an allgather (Patarasu and Yuan, 2009).

    The sum of chunk i starts at rank i + 1, goes around the ring and is complete at rank i. From there the result goes
    around the ring once more. With 3 ranks, the sum of chunk 0 goes from rank 1 to 2 to 0, and the result from rank 0
    to 1 to 2.
    """
    with Program("ring", AllReduce(ranks, ranks, inplace=True), **options) as program:
        _ring_reduce_scatter(list(range(ranks)), 0, 1)
        _ring_allgather(list(range(ranks)), 0, 1)
    return program


def _ring_reduce_scatter(ring_of: list[int], first: int, count: int) -> None:
    """Rank i of the ring gets the sums of ``count`` chunks, from ``first + i * count`` on."""
    size = len(ring_of)
    for step in range(size - 1):
        for part in range(size):
            source, target = ring_of[(part + 1 + step) % size], ring_of[(part + 2 + step) % size]
            index = first + part * count
            chunk(target, _I, index, count).reduce(chunk(source, _I, index, count))


def _ring_allgather(ring_of: list[int], first: int, count: int) -> None:
    """Every rank gets the ``count`` chunks of each rank i of the ring, from ``first + i * count`` on."""
    size = len(ring_of)
    for step in range(size - 1):
        for part in range(size):
            source, target = ring_of[(part + step) % size], ring_of[(part + 1 + step) % size]
            chunk(source, _I, first + part * count, count).copy(target, _I, first + part * count)


def all_pairs(ranks: int, **options: Any) -> Program:
    """Allreduce: rank i sums up chunk i of all ranks, in rank order, and sends it to all (MSCCLang, section 7.1)."""
    with Program("all_pairs", AllReduce(ranks, ranks, inplace=True), **options) as program:
        for owner in range(ranks):
            total = chunk(0, _I, owner)
            if owner != 0:
                total = total.copy(owner, "sum", 0)
            for other in range(1, ranks):
                total.reduce(chunk(other, _I, owner))
            for other in range(ranks):
                total.copy(other, _I, owner)
    return program


def halving_doubling(ranks: int, **options: Any) -> Program:
    """Allreduce by recursive halving and doubling (Rabenseifner, 2004).

    In each halving step, a rank adds half of its partner's sums to its own, until it has the sum of one chunk. In each
    doubling step, partners copy their results to each other. With 4 ranks, rank 0 adds chunks 0 and 1 of rank 2, then
    chunk 0 of rank 1. Its chunk 0 is then complete. It gets chunk 1 from rank 1, then chunks 2 and 3 from rank 2.

    If ``ranks`` is not a power of two, let p be the largest power below it. Each rank r >= p adds its data to rank
    r - p at the start, and gets the result from it at the end.
    """
    power = 1 << (ranks.bit_length() - 1)
    with Program("halving_doubling", AllReduce(ranks, power, inplace=True), **options) as program:
        for extra in range(power, ranks):
            chunk(extra - power, _I, 0, power).reduce(chunk(extra, _I, 0, power))
        half = power // 2
        while half:
            for rank in range(power):
                keep = rank - rank % half
                chunk(rank, _I, keep, half).reduce(chunk(rank ^ half, _I, keep, half))
            half //= 2
        size = 1
        while size < power:
            for rank in range(power):
                have = rank - rank % size
                chunk(rank, _I, have, size).copy(rank ^ size, _I, have)
            size *= 2
        for extra in range(power, ranks):
            chunk(extra - power, _I, 0, power).copy(extra, _I, 0)
    return program


def binary_tree(ranks: int, chunks: int = 1, **options: Any) -> Program:
    """Allreduce on a binary tree with root 0: sums go up the tree, results go down. ``chunks``: chunks of the data."""
    with Program("binary_tree", AllReduce(ranks, chunks, inplace=True), **options) as program:
        for part in range(chunks):
            for rank in range(ranks - 1, 0, -1):
                chunk((rank - 1) // 2, _I, part).reduce(chunk(rank, _I, part))
            for rank in range(1, ranks):
                chunk((rank - 1) // 2, _I, part).copy(rank, _I, part)
    return program


def hierarchical(num_hosts: int, per_host: int, **options: Any) -> Program:
    """Allreduce by rings within hosts and across hosts, in one program of four phases (MSCCLang, section 2).

    1. A reduce-scatter within each host: local rank l gets the host's sums of its share, which is ``num_hosts`` chunks.
    2. A reduce-scatter of this share across the hosts, among the ranks with local rank l: each gets one final sum.
    3. An allgather across the hosts: each rank gets the final sums of its share.
    4. An allgather within each host: each rank gets all final sums.
    """
    size = num_hosts * per_host
    options.setdefault("topology", hosts(num_hosts, per_host))
    with Program("hierarchical", AllReduce(size, size, inplace=True), **options) as program:
        within = [[host * per_host + local for local in range(per_host)] for host in range(num_hosts)]
        across = [[host * per_host + local for host in range(num_hosts)] for local in range(per_host)]
        for ranks in within:
            _ring_reduce_scatter(ranks, 0, num_hosts)
        for local, ranks in enumerate(across):
            _ring_reduce_scatter(ranks, local * num_hosts, 1)
        for local, ranks in enumerate(across):
            _ring_allgather(ranks, local * num_hosts, 1)
        for ranks in within:
            _ring_allgather(ranks, 0, num_hosts)
    return program


def direct_alltoall(ranks: int, **options: Any) -> Program:
    """Alltoall: every rank sends each chunk directly to its destination."""
    with Program("direct", AllToAll(ranks, 1), **options) as program:
        for source in range(ranks):
            for target in range(ranks):
                chunk(source, _I, target).copy(target, _O, source)
    return program


def _leaving(num_hosts: int, per_host: int) -> Iterator[tuple[Ref, int, int, int, int]]:
    """Copy the chunks whose destination is on the same host, and yield the others.

    Yields:
        A chunk, its source's host and local rank, and its destination's host and local rank.
    """
    for source in range(num_hosts * per_host):
        home, place = divmod(source, per_host)
        for target in range(num_hosts * per_host):
            there, local = divmod(target, per_host)
            part = chunk(source, _I, target)
            if there == home:
                part.copy(target, _O, source)
            else:
                yield part, home, place, there, local


def two_step_alltoall(num_hosts: int, per_host: int, **options: Any) -> Program:
    """Alltoall: each host collects its chunks for a rank of another host, and sends them at once.

    The rank with the destination's local rank collects and sends them (MSCCLang, section 7.3).
    """
    size, options = num_hosts * per_host, {"topology": hosts(num_hosts, per_host), **options}
    with Program("two_step", AllToAll(size, 1), **options) as program:
        for part, home, place, there, local in _leaving(num_hosts, per_host):
            part.copy(home * per_host + local, f"to{there}", place)
        for source in range(size):
            home, local = divmod(source, per_host)
            for there in range(num_hosts):
                if there != home:
                    chunk(source, f"to{there}", 0, per_host).copy(there * per_host + local, _O, home * per_host)
    return program


def three_step_alltoall(num_hosts: int, per_host: int, **options: Any) -> Program:
    """Alltoall: each host collects its chunks for another host and sends them at once; the other distributes them.

    Host a collects its chunks for host b at local rank ``b % per_host`` and sends them to local rank ``a % per_host``.
    """
    size, options = num_hosts * per_host, {"topology": hosts(num_hosts, per_host), **options}
    with Program("three_step", AllToAll(size, 1), **options) as program:
        for part, home, place, there, local in _leaving(num_hosts, per_host):
            part.copy(home * per_host + there % per_host, f"to{there}", local * per_host + place)
        for home, there in permutations(range(num_hosts), 2):
            leaving, arriving = home * per_host + there % per_host, there * per_host + home % per_host
            chunk(leaving, f"to{there}", 0, per_host**2).copy(arriving, f"from{home}", 0)
            for local in range(per_host):
                together = chunk(arriving, f"from{home}", local * per_host, per_host)
                together.copy(there * per_host + local, _O, home * per_host)
    return program


def all_to_next(num_hosts: int, per_host: int, **options: Any) -> Program:
    """Every rank sends its data to the next rank; between hosts, over the links of all ranks (MSCCLang, section 7.4).

    The last rank of a host spreads its chunks over the ranks of its host. Each of these sends one chunk to the same
    local rank of the next host, which passes it on to the first rank of that host.
    """
    size = num_hosts * per_host
    options.setdefault("topology", hosts(num_hosts, per_host))
    with Program("all_to_next", AllToNext(size, per_host), **options) as program:
        for rank in range(size - 1):
            host, local = divmod(rank, per_host)
            if local < per_host - 1:
                chunk(rank, _I, 0, per_host).copy(rank + 1, _O, 0)
                continue
            for part in range(per_host):
                piece = chunk(rank, _I, part)
                if part != local:
                    piece = piece.copy(host * per_host + part, "leaving", 0)
                if part != 0:
                    piece = piece.copy((host + 1) * per_host + part, "arriving", 0)
                piece.copy(rank + 1, _O, part)
    return program


# For each rank the transfers "source>target" of its chunk, first those of step 1, then those of step 2 (SCCL, Cai et
# al., PPoPP 2021).
_SCCL_122 = (
    "0>1 0>2 0>3 0>4 1>5 2>6 3>7",
    "1>0 1>2 1>5 0>4 1>3 2>6 5>7",
    "2>1 2>3 2>6 1>0 6>4 6>5 6>7",
    "3>0 3>7 0>2 0>4 3>1 7>5 7>6",
    "4>0 4>6 4>7 0>1 4>5 6>2 7>3",
    "5>1 5>6 5>7 1>0 1>2 1>3 5>4",
    "6>2 6>5 6>7 2>0 2>3 5>1 7>4",
    "7>3 7>5 7>6 3>0 3>1 5>4 6>2",
)


def sccl_allgather_122(**options: Any) -> Program:
    """Allgather of one chunk per rank in two steps and two rounds on a DGX-1, as found by SCCL's solver."""
    options.setdefault("topology", dgx1())
    with Program("sccl_122", AllGather(8, 1, inplace=True), **options) as program:
        for owner, sends in enumerate(_SCCL_122):
            for send in sends.split():
                source, target = map(int, send.split(">"))
                chunk(source, _O, owner).copy(target, _O, owner)
    return program
