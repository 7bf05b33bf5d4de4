"""Operations while some ranks have joined: rank s has data in the steps 0 to s, and then joins."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import calls
import numpy as np

# Small tensors, and one that backends cut into pieces. Every step uses the same names, so that later steps come from
# the cache. Where ranks share cores, shared memory folds the large tensor one-shot or two-shot, depending on its type
# (the limit is 256 KiB).
COUNTS = (1, 7, 70_001)
DTYPES = ("float32", "float16", "int32")
FOLDS = {"Sum": np.add, "Min": np.minimum, "Max": np.maximum, "Product": np.multiply}


class Steps:
    """The operations of one step, among the ``live`` ranks."""

    def __init__(self, hc: ModuleType, backend: str | None, divide_by: str) -> None:
        self.hc, self.backend, self.divide_by = hc, backend, divide_by
        self.rank, self.ranks = hc.rank(), hc.size()
        self.checks = 0

    def call(self, operation: str, *arguments: Any, case: object = "", **options: Any) -> Any:
        name = f"joined.{self.divide_by}.{operation}.{case}"
        function = getattr(self.hc, operation)
        return function(**calls.by_name(function, arguments), name=name, backend=self.backend, **options)

    def same(self, got: Any, expected: Any, what: str, tolerance: float = 0.0) -> None:
        assert np.shape(got) == np.shape(expected), f"{what}: shape {np.shape(got)}, not {np.shape(expected)}"
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=f"rank {self.rank}: {what}")
        self.checks += 1

    def reductions(self, live: Sequence[int]) -> None:
        last = self.ranks - 1
        divisor = len(live) if self.divide_by == "active" else self.ranks
        for dtype in DTYPES:
            for count in COUNTS:
                parts = {rank: calls.values(rank, (count,), dtype) for rank in live}
                for reduction, fold in FOLDS.items():
                    case = f"{dtype}.{count}.{reduction}"
                    options = {"op": calls.REDUCTIONS[reduction], "case": case}
                    total = functools.reduce(fold, parts.values())
                    self.same(self.call("allreduce", parts[self.rank], **options), total, f"{case} among {live}")
                    reduced = self.call("reduce", parts[self.rank], last, **options)
                    if self.rank == last:
                        self.same(reduced, total, f"reduce {case} among {live}")
                    self.scattered(parts[self.rank], total, case, options)
                if dtype != "int32":
                    mean = self.call("allreduce", parts[self.rank], case=f"{dtype}.{count}.mean")
                    expected = sum(part.astype(np.float64) for part in parts.values()) / divisor
                    self.same(mean, expected, f"average of {dtype} among {live}", calls.EPSILON[dtype])

    def scattered(self, part: Any, total: Any, case: str, options: dict[str, Any]) -> None:
        """Joined ranks keep their share of the rows; no rank receives it."""
        shares = np.array_split(total, self.ranks)
        got = self.call("reducescatter", part, **options)
        self.same(got, shares[self.rank], f"reducescatter {case}")
        rows = [len(share) for share in reversed(shares)]
        first = sum(rows[: self.rank])
        got = self.call("reducescatterv", part, rows, **options)
        self.same(got, total[first : first + rows[self.rank]], f"reducescatterv {case}")

    def moves(self, live: Sequence[int], fewest: int) -> None:
        """Operations that move rows; rank r has ``fewest + r`` rows."""
        last = self.ranks - 1
        rows = [fewest + rank for rank in range(self.ranks)]
        mine = np.full((rows[self.rank], 2), self.rank, np.int32)
        all_rows = np.concatenate([np.full((rows[rank], 2), rank, np.int32) for rank in live])
        self.same(self.call("allgather", mine, case=fewest), all_rows, f"allgather among {live}")
        gathered = self.call("gather", mine, last, case=fewest)
        if self.rank == last:
            self.same(gathered, all_rows, f"gather among {live}")
        array = np.full((fewest, 3), self.rank)
        got = self.call("broadcast", array, last, case=fewest)
        self.same(got, np.full((fewest, 3), last), f"broadcast among {live}")
        whole = np.repeat(np.arange(self.ranks), rows)
        given = self.call("scatterv", whole, last, rows if self.rank == last else None, case=fewest)
        self.same(given, np.full(rows[self.rank], self.rank), f"scatterv among {live}")
        swapped, counts = self.call("alltoall", whole * 10 + self.rank, rows, case=fewest)
        share = rows[self.rank]
        self.same(swapped, np.repeat(np.array(live) + 10 * self.rank, share), f"alltoall among {live}")
        self.same(counts, [share if rank in live else 0 for rank in range(self.ranks)], "rows of alltoall")
        self.hc.barrier(backend=self.backend)

    def joined_roots(self, live: Sequence[int]) -> None:
        """An operation whose root has joined raises an error."""
        for root in set(range(self.ranks)) - set(live):
            for operation in ("broadcast", "reduce", "gather", "scatter"):
                try:
                    self.call(operation, np.ones(self.ranks), root, case=f"root {root}")
                except self.hc.UnsupportedError as error:
                    assert f"root, rank {root}, has joined" in str(error), error
                else:
                    raise AssertionError(f"{operation} from rank {root}, which has joined, among {live}")
                self.checks += 1


def check(hc: ModuleType, backend: str | None) -> int:
    """Run every operation while 0, 1, ... and all but one ranks have joined, for both divisors."""
    checks = 0
    for divide_by in ("all", "active"):
        steps = Steps(hc, backend, divide_by)
        for step in range(steps.rank + 1):
            live = range(step, steps.ranks)
            steps.reductions(live)
            for fewest in (1, 6_000):
                steps.moves(live, fewest)
            steps.joined_roots(live)
        last = hc.join(divide_by=divide_by)
        assert last == steps.ranks - 1, f"rank {steps.rank}: join() says {last} was the last"
        checks += steps.checks
    # Ranks that joined early made fewer checks. All return the number of the last rank, which is the largest.
    return int(hc.allreduce(np.array([checks]), op=hc.Max, name="joined.checks", backend=backend)[0])
