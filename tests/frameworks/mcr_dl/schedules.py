"""Random schedules on the ranks of a job: operations on several backends, blocking and not, on groups, with messages.

Every rank makes the same operations. Those of one sequence (backend and group) are in the same order on all ranks. How
a rank mixes its sequences, and when it waits, is different on each rank: without a coordinator such a program stops for
ever.
"""

from __future__ import annotations

import random
import sys
from collections import deque

import numpy as np

import horocache.mcr_dl as mcr_dl


class Operation:
    """One operation of a schedule, the same on all its ranks."""

    def __init__(self, common, way, group):
        self.way, self.group = way, group
        kinds = ["all_reduce", "all_reduce", "bcast", "all_gather", "all_to_all", "reduce_scatter"]
        self.kind = common.choice(kinds if "/" not in way else kinds[:1])  # algorithms are for all_reduce
        self.count = common.choice([1, 7, 300, 20_000])
        self.salt = common.randrange(50)

    def start(self, rank, async_op):
        """Start it on this rank, whose rank in the group is ``rank``; returns the handle, the result and its value."""
        ranks = mcr_dl.get_all_ranks_from_group(self.group)
        size, how = len(ranks), {"async_op": async_op, "group": self.group}
        values = [float(self.salt + each) for each in range(size)]
        mine = np.full(self.count, values[rank])
        if self.kind == "all_reduce":
            return mcr_dl.all_reduce(self.way, mine, **how), mine, [sum(values)]
        if self.kind == "bcast":
            root = self.salt % size
            return mcr_dl.bcast(self.way, mine, ranks[root], **how), mine, [values[root]]
        if self.kind == "all_gather":
            output = np.zeros(size * self.count)
            return mcr_dl.all_gather(self.way, output, mine, **how), output, values
        if self.kind == "all_to_all":
            output = np.zeros(size * self.count)
            sent = np.repeat(mine, size)
            return mcr_dl.all_to_all_single(self.way, output, sent, **how), output, values
        output = np.zeros(self.count)
        work = mcr_dl.reduce_scatter(self.way, output, input=np.repeat(mine, size), **how)
        return work, output, [sum(values)]


def check(result, values):
    parts = result.reshape(len(values), -1)
    assert all(np.all(part == value) for part, value in zip(parts, values, strict=True)), (result[:3], values)


def run_schedule(seed, ways, groups):
    """One schedule; messages around a ring go on meanwhile."""
    common = random.Random(seed)
    rank, size = mcr_dl.get_rank(), mcr_dl.get_size()
    sequences = {}
    for _ in range(common.randrange(4, 24)):
        way, group = common.choice(ways), common.choice(groups)
        sequences.setdefault((way, group), deque()).append(Operation(common, way, group))
    mine = {key: queue for key, queue in sequences.items() if mcr_dl.get_rank(group=key[1]) >= 0}
    blocking = common.random() < 0.5
    own = random.Random(f"{seed} {rank}")
    got, after, before = np.zeros(common.choice([1, 30_000])), (rank + 1) % size, (rank - 1) % size
    sent = np.full(got.size, float(rank))
    messages = [mcr_dl.irecv(ways[0], got, before, tag=seed), mcr_dl.isend(ways[-1], sent, after, tag=seed)]
    pending = []
    for key, operation in order_of(mine, own, common, blocking, seed):
        # A blocking call waits for the other ranks, so before it everything that they may need has been called.
        waits = blocking and key is None
        handle, result, values = operation.start(mcr_dl.get_rank(group=operation.group), not waits)
        if waits:
            check(result, values)
        else:
            pending.append((handle, result, values))
        if pending and own.random() < 0.2 and not blocking:
            pending[own.randrange(len(pending))][0].is_completed()
    own.shuffle(pending)
    for handle, result, values in pending:
        handle.wait(60)
        check(result, values)
    own.shuffle(messages)
    for message in messages:
        message.wait(60)
    assert np.all(got == before)


def order_of(mine, own, common, blocking, seed):
    """This rank's order of its operations: (sequence, operation); the sequence is None for those that block.

    Without blocking calls any mix of the sequences will do. With them, the ranks agree on the blocking ones, which come
    in the same order on all; the others are started in any order before.
    """
    queues = {key: deque(queue) for key, queue in mine.items()}
    if blocking:
        blocks = [
            key for key in sorted(queues, key=str) if key[1] is None and random.Random(f"{seed} {key}").random() < 0.5
        ]
        for key, operation in mix({key: queue for key, queue in queues.items() if key not in blocks}, own):
            yield key, operation
        for key in blocks:
            for operation in queues[key]:
                yield None, operation
    else:
        yield from mix(queues, own)


def mix(queues, own):
    while queues := {key: queue for key, queue in queues.items() if queue}:
        key = own.choice(list(queues))
        yield key, queues[key].popleft()


def run(backends, ways, schedules, first_seed=0):
    """Run schedules on this rank."""
    mcr_dl.init(backends)
    size = mcr_dl.get_size()
    groups = [
        None,
        mcr_dl.new_group(range(0, size, 2)),
        mcr_dl.new_group(range(max(0, size - 2), size)),
        mcr_dl.new_group(),
    ]
    for seed in range(first_seed, first_seed + schedules):
        run_schedule(seed, ways, groups)
    mcr_dl.synchronize()
    print(f"schedules {mcr_dl.get_rank()} {schedules}", flush=True)
    mcr_dl.finalize()


if __name__ == "__main__":
    run(sys.argv[1].split(","), sys.argv[2].split(","), int(sys.argv[3]))
