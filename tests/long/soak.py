"""Random operations of every kind from several threads of each rank, for SOAK_SECONDS; every result is checked exactly.

``horocacherun -np 4 python tests/long/soak.py``, or under mpiexec; an argument such as ``0011`` is the layout of
simulated hosts. SEED is the first seed; a failure names seed, phase, thread and step, and ``SEED=... PHASE=...`` starts
at that phase.

All ranks draw the same operations from the same seed. In a phase, every thread first runs its own steps under its own
names. Then the main thread runs the operations for which the rank's other threads must be idle: joins, process sets
that are added and removed, operations without names. Values are small whole numbers, so that sums are exact in every
type.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

if len(sys.argv) > 1:
    launched = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    os.environ["HOROCACHE_HOST_ID"] = f"host {sys.argv[1][launched]}"

import numpy as np

import horocache as hc

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SEED, PHASE = int(os.environ.get("SEED", "0")), int(os.environ.get("PHASE", "0"))
THREADS, STEPS = 3, 40
DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8", "int8", "bool"]
COUNTS = [0, 1, 2, 7, 64, 1_000, 4_097, 70_000, 300_000]

Array = np.ndarray[Any, Any]
Draw = random.Random


def values(rank: int, count: int, dtype: str, salt: int) -> Array:
    """A rank's values; sums over 8 ranks are below 128, and exact in every type but bool."""
    return ((np.arange(count) + 3 * rank + salt) % 13).astype(dtype)


def draw_values(draw: Draw) -> tuple[int, str, int]:
    return draw.choice(COUNTS), draw.choice(DTYPES[:-1]), draw.randrange(100)


def same(got: Any, wanted: Array, what: str) -> None:
    assert got.dtype == wanted.dtype, f"{what}: dtype {got.dtype}, not {wanted.dtype}"
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, not {wanted.shape}"
    wrong = np.flatnonzero(got.reshape(-1) != wanted.reshape(-1))
    assert not wrong.size, (
        f"{what}: {wrong.size} of {wanted.size} are wrong, the first at {wrong[0]}: "
        f"{got.reshape(-1)[wrong[0]]}, not {wanted.reshape(-1)[wrong[0]]}"
    )


REDUCTIONS: list[tuple[int, Callable[[list[Array]], Array]]] = [
    (hc.Sum, lambda parts: functools.reduce(lambda a, b: (a + b).astype(a.dtype), parts)),
    (hc.Max, lambda parts: functools.reduce(np.maximum, parts)),
    (hc.Min, lambda parts: functools.reduce(np.minimum, parts)),
]


class Operations:
    """The operations of one thread, or of one process set, under names of its own."""

    def __init__(self, scope: str, members: list[int], process_set: Any) -> None:
        self.scope, self.members, self.set = scope, members, process_set
        self.kinds: list[Callable[[Draw, str], None]] = [
            self.allreduce, self.allreduce_in_place, self.grouped_allreduce, self.asynchronous, self.allgather,
            self.broadcast, self.broadcast_in_place, self.alltoall, self.reducescatter, self.reduce, self.gather,
            self.scatter, self.barrier, self.objects, self.messages, self.many_small, self.grouped_others,
        ]  # fmt: skip

    def name(self, what: str, *parts: object) -> str:
        """A name; equal operations have equal names, which hit the cache."""
        return ".".join([self.scope, what, *map(str, parts)])

    def step(self, draw: Draw) -> None:
        kind = draw.choice(self.kinds)
        kind(draw, kind.__name__)

    def parts(self, count: int, dtype: str, salt: int) -> tuple[Array, list[Array]]:
        return values(hc.rank(), count, dtype, salt), [values(rank, count, dtype, salt) for rank in self.members]

    def allreduce(self, draw: Draw, what: str) -> None:
        (count, dtype, salt), (op, reduced) = draw_values(draw), draw.choice(REDUCTIONS)
        mine, all_ = self.parts(count, dtype, salt)
        before = mine.copy()
        got = hc.allreduce(mine, op=op, name=self.name(what, count, dtype, op), process_set=self.set)
        same(got, reduced(all_), what)
        same(mine, before, f"the input of {what}")

    def allreduce_in_place(self, draw: Draw, what: str) -> None:
        (count, dtype, salt), (op, reduced) = draw_values(draw), draw.choice(REDUCTIONS)
        mine, all_ = self.parts(count, dtype, salt)
        if draw.random() < 0.5:
            shared = hc.empty(count, dtype=dtype)
            shared[...] = mine
            mine = shared
        hc.allreduce_(mine, op=op, name=self.name(what, count, dtype, op), process_set=self.set)
        same(mine, reduced(all_), what)

    def grouped_allreduce(self, draw: Draw, what: str) -> None:
        drawn = [draw_values(draw) for _ in range(draw.randrange(1, 6))]
        op, reduced = draw.choice(REDUCTIONS)
        pairs = [self.parts(*one) for one in drawn]
        name = self.name(what, op, *[f"{count}{dtype}" for count, dtype, _ in drawn])
        got = hc.grouped_allreduce([mine for mine, _ in pairs], op=op, name=name, process_set=self.set)
        for i, (_, all_) in enumerate(pairs):
            same(got[i], reduced(all_), f"{what} {i}")

    def asynchronous(self, draw: Draw, what: str) -> None:
        """Each rank submits in its own order."""
        drawn = [draw_values(draw) for _ in range(draw.randrange(1, 12))]
        order = list(range(len(drawn)))
        random.Random(draw.randrange(10**9) + hc.rank()).shuffle(order)
        handles, pairs = {}, [self.parts(*one) for one in drawn]
        for i in order:
            name = self.name(what, i, drawn[i][0], drawn[i][1])
            handles[i] = hc.allreduce_async(pairs[i][0], op=hc.Sum, name=name, process_set=self.set)
        for i in reversed(order):
            same(hc.synchronize(handles[i]), REDUCTIONS[0][1](pairs[i][1]), f"{what} {i}")

    def many_small(self, draw: Draw, what: str) -> None:
        for i in range(draw.randrange(1, 30)):
            mine, all_ = self.parts(draw.choice([1, 2, 8]), "float32", i)
            got = hc.allreduce(mine, op=hc.Sum, name=self.name(what, mine.size), process_set=self.set)
            same(got, REDUCTIONS[0][1](all_), f"{what} {i}")

    def allgather(self, draw: Draw, what: str) -> None:
        _, dtype, salt = draw_values(draw)
        rows = [draw.choice([0, 1, 5, 1_000, 20_000]) for _ in self.members]
        all_ = [values(rank, 2 * n, dtype, salt).reshape(n, 2) for rank, n in zip(self.members, rows, strict=True)]
        mine = all_[self.members.index(hc.rank())]
        same(hc.allgather(mine, name=self.name(what, dtype), process_set=self.set), np.concatenate(all_), what)

    def broadcast(self, draw: Draw, what: str) -> None:
        (count, _, salt), dtype, root = draw_values(draw), draw.choice(DTYPES), draw.choice(self.members)
        got = hc.broadcast(
            values(hc.rank(), count, dtype, salt), root, name=self.name(what, count, dtype, root), process_set=self.set
        )
        same(got, values(root, count, dtype, salt), what)

    def broadcast_in_place(self, draw: Draw, what: str) -> None:
        (count, _, salt), dtype, root = draw_values(draw), draw.choice(DTYPES), draw.choice(self.members)
        mine = values(hc.rank(), count, dtype, salt)
        hc.broadcast_(mine, root, name=self.name(what, count, dtype, root), process_set=self.set)
        same(mine, values(root, count, dtype, salt), what)

    def alltoall(self, draw: Draw, what: str) -> None:
        _, dtype, salt = draw_values(draw)
        n = len(self.members)
        splits = [[draw.choice([0, 1, 3, 500, 9_000]) for _ in range(n)] for _ in range(n)]
        at = self.members.index(hc.rank())
        sent = [values(rank, sum(splits[i]), dtype, salt) for i, rank in enumerate(self.members)]
        got, received = hc.alltoall(
            sent[at], np.array(splits[at], dtype="int32"), name=self.name(what, dtype), process_set=self.set
        )
        cuts = [np.cumsum([0, *splits[i]]) for i in range(n)]
        same(got, np.concatenate([sent[i][cuts[i][at] : cuts[i][at + 1]] for i in range(n)]), what)
        assert list(received) == [splits[i][at] for i in range(n)], f"{what}: splits {received}"

    def reducescatter(self, draw: Draw, what: str) -> None:
        count, dtype, salt = draw_values(draw)
        mine, all_ = self.parts(count, dtype, salt)
        whole = REDUCTIONS[0][1](all_)
        got = hc.reducescatter(mine, op=hc.Sum, name=self.name(what, count, dtype), process_set=self.set)
        n, at = len(self.members), self.members.index(hc.rank())
        size, more = divmod(count, n)
        begin = at * size + min(at, more)
        same(got, whole[begin : begin + size + (at < more)], what)

    def reduce(self, draw: Draw, what: str) -> None:
        (count, dtype, salt), root = draw_values(draw), draw.choice(self.members)
        mine, all_ = self.parts(count, dtype, salt)
        got = hc.reduce(mine, root_rank=root, op=hc.Sum, name=self.name(what, count, dtype, root), process_set=self.set)
        if hc.rank() == root:
            same(got, REDUCTIONS[0][1](all_), what)

    def gather(self, draw: Draw, what: str) -> None:
        (count, dtype, salt), root = draw_values(draw), draw.choice(self.members)
        mine, all_ = self.parts(count, dtype, salt)
        got = hc.gather(mine, root_rank=root, name=self.name(what, count, dtype, root), process_set=self.set)
        if hc.rank() == root:
            same(got, np.concatenate(all_), what)

    def scatter(self, draw: Draw, what: str) -> None:
        _, dtype, salt = draw_values(draw)
        root, each, n = draw.choice(self.members), draw.choice([0, 1, 100, 30_000]), len(self.members)
        got = hc.scatter(
            values(hc.rank(), n * each, dtype, salt), root_rank=root, name=self.name(what, each, dtype, root),
            process_set=self.set)  # fmt: skip
        at = self.members.index(hc.rank())
        same(got, values(root, n * each, dtype, salt)[at * each : (at + 1) * each], what)

    def grouped_others(self, draw: Draw, what: str) -> None:
        drawn = [draw_values(draw) for _ in range(draw.randrange(1, 4))]
        pairs = [self.parts(*one) for one in drawn]
        names = "-".join(f"{count}{dtype}" for count, dtype, _ in drawn)
        mine = [one for one, _ in pairs]
        got = hc.grouped_allgather(mine, name=self.name(what, "gather", names), process_set=self.set)
        for i, (_, all_) in enumerate(pairs):
            same(got[i], np.concatenate(all_), f"{what} allgather {i}")
        root = draw.choice(self.members)
        got = hc.grouped_broadcast(mine, root, name=self.name(what, "broadcast", names, root), process_set=self.set)
        for i, one in enumerate(drawn):
            same(got[i], values(root, *one), f"{what} broadcast {i}")

    def barrier(self, draw: Draw, what: str) -> None:
        del what
        if self.scope == "main":  # without a name, so that barriers of several threads would be mixed up
            hc.barrier(process_set=self.set)
        time.sleep(draw.random() * 2e-3)

    def objects(self, draw: Draw, what: str) -> None:
        salt, root = draw.randrange(1000), draw.choice(self.members)
        mine = {"rank": hc.rank(), "text": "x" * draw.choice([0, 10, 100_000]), "salt": salt}
        got = hc.allgather_object(mine, name=self.name(what, "all"), process_set=self.set)
        assert got == [{**mine, "rank": rank} for rank in self.members], f"{what}: allgather_object"
        got = hc.broadcast_object(
            mine if hc.rank() == root else None, root, name=self.name(what, root), process_set=self.set
        )
        assert got == {**mine, "rank": root}, f"{what}: broadcast_object"

    def messages(self, draw: Draw, what: str) -> None:
        """Messages around the ring, in both directions at once; each thread has its own tags."""
        n, at, tag = len(self.members), self.members.index(hc.rank()), sum(map(ord, self.scope))
        if n == 1:
            return
        count, dtype, salt = draw_values(draw)
        mine = values(hc.rank(), count, dtype, salt)
        right, left = self.members[(at + 1) % n], self.members[(at - 1) % n]
        from_left, from_right = np.empty_like(mine), np.empty_like(mine)
        handles = [
            hc.irecv(from_left, left, 2 * tag, process_set=self.set),
            hc.irecv(from_right, right, 2 * tag + 1, process_set=self.set),
            hc.isend(mine, right, 2 * tag, process_set=self.set),
            hc.isend(mine, left, 2 * tag + 1, process_set=self.set),
        ]
        draw.shuffle(handles)
        for handle in handles:
            hc.synchronize(handle)
        same(from_left, values(left, count, dtype, salt), f"{what} from the left")
        same(from_right, values(right, count, dtype, salt), f"{what} from the right")


class Soak:
    """All threads of this rank."""

    def __init__(self) -> None:
        all_ranks = list(range(hc.size()))
        self.threads = [Operations(f"thread{i}", all_ranks, hc.world) for i in range(THREADS)]
        self.main = Operations("main", all_ranks, hc.world)
        self.failures: list[str] = []
        self.operations = 0

    def run_steps(self, operations: Operations, seed: str, steps: int) -> None:
        draw = random.Random(seed)
        for step in range(steps):
            try:
                operations.step(draw)
                self.operations += 1
            except Exception:
                self.failures.append(f"seed {seed}, step {step} on rank {hc.rank()}:\n{traceback.format_exc()}")
                hc.abort(self.failures[-1])
                return

    def phase(self, number: int) -> None:
        seed = f"{SEED}.{number}"
        running = [
            threading.Thread(target=self.run_steps, args=(operations, f"{seed}.{i}", STEPS))
            for i, operations in enumerate(self.threads)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if not self.failures:
            self.run_alone(seed)

    def run_alone(self, seed: str) -> None:
        draw = random.Random(seed)
        try:
            self.run_steps(self.main, f"{seed}.main", 10)
            self.process_sets(draw, seed)
            self.join(draw)
        except Exception:
            self.failures.append(f"seed {seed} on rank {hc.rank()}:\n{traceback.format_exc()}")
            hc.abort(self.failures[-1])

    def process_sets(self, draw: Draw, seed: str) -> None:
        """Two sets that may overlap are added, used at the same time by a thread each, and removed."""
        made: dict[int, tuple[list[int], Any]] = {}
        for i in range(2):
            members = sorted(draw.sample(range(hc.size()), draw.randrange(1, hc.size())))
            if members not in [listed for listed, _ in made.values()]:
                made[i] = members, hc.add_process_set(members)
        running = []
        for i, (members, process_set) in made.items():
            if process_set.included():
                operations = Operations(f"set{i}.{'-'.join(map(str, members))}", members, process_set)
                running.append(threading.Thread(target=self.run_steps, args=(operations, f"{seed}.set{i}", 15)))
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        for _, process_set in made.values():
            assert self.failures or hc.remove_process_set(process_set)

    def join(self, draw: Draw) -> None:
        """Ranks have different numbers of batches; a rank without more batches contributes nothing."""
        batches = [draw.randrange(4) for _ in range(hc.size())]
        for batch in range(batches[hc.rank()]):
            working = [rank for rank in range(hc.size()) if batches[rank] > batch]
            got = hc.allreduce(np.full(1_000, 1 << hc.rank()), op=hc.Sum, name=f"join.{batch}")
            same(got, np.full(1_000, sum(1 << rank for rank in working)), f"batch {batch} before join")
        last = hc.join()
        assert batches[last] == max(batches), f"join says that rank {last} was last, with batches {batches}"

    def run(self) -> None:
        until, phase = time.monotonic() + SECONDS, PHASE
        over = False
        while not over and not self.failures:
            self.phase(phase)
            phase += 1
            if not self.failures:
                over = bool(hc.allreduce(np.array([time.monotonic() > until]), op=hc.Max, name="over")[0])
        if not self.failures:
            print(f"soak: rank {hc.rank()}: {self.operations} steps in {phase - PHASE} phases were right", flush=True)


def main() -> int:
    hc.init()
    soak = Soak()
    soak.run()
    for failure in soak.failures[:3]:
        print(f"soak: {failure}", file=sys.stderr, flush=True)
    hc.shutdown()
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
