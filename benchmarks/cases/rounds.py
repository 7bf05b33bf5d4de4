"""One round of the control plane over MPI, with every rank the leader of a host: a cached allreduce without elements.

Compared with MPI_Allreduce of as many words as a round sends, which is the least that the fast path needs.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate

TITLE = "A round between leaders over MPI"
_STRATEGIES = ("leaders", "tree", "coordinator")
_INNER = 20


def jobs(quick: bool) -> list[Job]:
    """2 and 4 leaders, with each strategy."""
    strategies = _STRATEGIES[:1] if quick else _STRATEGIES
    budget_s = 1.0 if quick else 4.0
    return [
        Job("rounds", ranks, {"agreement": agreement, "budget_s": budget_s}, needs_mpi=True)
        for ranks in (2, 4)
        for agreement in strategies
    ]


def measure(rank: Rank, agreement: str, budget_s: float) -> list[Series]:
    """Measure blocks of rounds, alternated with blocks of calls."""
    import numpy as np
    from mpi4py import MPI

    hc = rank.horocache_as_launched(host_id=f"host {rank.rank}", agreement=agreement)
    nothing = np.empty(0, np.float32)

    def one_round() -> None:
        hc.allreduce_(nothing, op=hc.Sum, name="round")

    words = np.full(_words_of(one_round, hc), -1)
    contestants = [
        Contestant("horocache", one_round, inner=_INNER),
        Contestant("mpi4py", lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, words, MPI.BAND), inner=_INNER),
    ]
    rounds = -hc.metrics()["rounds"]
    times = alternate(rank.page, contestants, repetitions=60, budget_s=budget_s, warm_up=5)
    rounds += hc.metrics()["rounds"]
    calls = _INNER * (len(times["horocache"].seconds) + 5)
    detail = {"words": len(words), "rounds_per_call": round(rounds / calls, 2)}
    return [
        Series(f"{agreement}, {len(words)} words", name, "us", one.seconds, cpu_seconds=one.cpu_seconds, detail=detail)
        for name, one in times.items()
    ]


def _words_of(one_round: Callable[[], None], hc: object) -> int:
    """Return the number of 8-byte words that a rank sends in a cached round; the largest over the ranks."""
    import numpy as np
    from mpi4py import MPI

    for _ in range(20):
        one_round()
    before = hc.metrics()  # type: ignore[attr-defined]
    for _ in range(100):
        one_round()
    grown = hc.metrics().since(before)  # type: ignore[attr-defined]
    sent = grown["control_bytes"] / grown["rounds"]
    most = np.array([-(-sent // 8)])
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
    return max(1, int(most[0]))
