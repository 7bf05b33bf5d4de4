"""A tensor goes to the other rank and back: the cost of a message, and the bandwidth of a large one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate, check

TITLE = "A message there and back (ping-pong)"
_SMALL = (4, 1 << 10, 16 << 10)
_LARGE = (1 << 18, 1 << 22, 1 << 26)

PingPong = Callable[[Any, Any], None]


def jobs(quick: bool) -> list[Job]:
    """All sizes in one job."""
    sizes = [4, 1 << 22] if quick else [*_SMALL, *_LARGE]
    return [Job("messages", 2, {"sizes": sizes, "budget_s": 0.7 if quick else 3.0})]


def measure(rank: Rank, sizes: list[int], budget_s: float) -> list[Series]:
    """Measure the time of both ways for small messages, and the bytes per second of both ways for large ones."""
    series = []
    for size in sizes:
        contestants = _contestants(rank, size)
        wrong = check(rank.page, contestants)
        times = alternate(rank.page, contestants, repetitions=40, budget_s=budget_s, warm_up=3)
        for impl, one in times.items():
            unit, amount = ("us", 1.0) if size in _SMALL else ("GB/s", 2.0 * size)
            detail = {"bytes": size, "wrong": wrong[impl]}
            series.append(
                Series(f"{size:,} B", impl, unit, one.seconds, amount, cpu_seconds=one.cpu_seconds, detail=detail)
            )
    return series


def _contestants(rank: Rank, size: int) -> list[Contestant]:
    import torch

    pattern = torch.arange(size // 4, dtype=torch.float32).remainder_(1021.0)
    tensor, back = torch.empty_like(pattern), torch.empty_like(pattern)

    def prepare() -> None:
        # Rank 1 returns the received data, so that an error on either way shows on rank 0.
        tensor.copy_(pattern) if rank.rank == 0 else tensor.zero_()
        back.zero_()

    def wrong() -> int:
        return int(((back if rank.rank == 0 else tensor) != pattern).sum())

    def bind(run: PingPong) -> Callable[[], None]:
        return lambda: run(tensor, back)

    inner = 20 if size <= 1 << 14 else 1
    return [Contestant(name, bind(run), prepare, inner, wrong) for name, run in _ping_pong(rank).items()]


def _ping_pong(rank: Rank) -> dict[str, PingPong]:
    """Return, for each contestant: rank 0 sends and receives, rank 1 receives and sends the same data back."""
    found: dict[str, PingPong] = {}
    first, peer = rank.rank == 0, 1 - rank.rank
    if rank.has("horocache"):
        hvd = rank.horocache()
        found["horocache"] = _order(first, lambda t: hvd.send(t, peer), lambda t: hvd.recv(t, peer))
    if rank.has("gloo"):
        dist = rank.gloo()
        found["gloo"] = _order(first, lambda t: dist.send(t, peer), lambda t: dist.recv(t, peer))
    if rank.has("mpi4py"):
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        found["mpi4py"] = _order(first, lambda t: world.Send(t.numpy(), peer), lambda t: world.Recv(t.numpy(), peer))
    return found


def _order(first: bool, send: Callable[[Any], Any], recv: Callable[[Any], Any]) -> PingPong:
    def there_and_back(tensor: Any, back: Any) -> None:
        send(tensor)
        recv(back)

    def back_again(tensor: Any, back: Any) -> None:
        recv(tensor)
        send(tensor)

    return there_and_back if first else back_again
