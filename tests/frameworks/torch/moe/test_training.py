"""A small model trains although tokens are lost, and equal seeds give equal losses."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import torch
from horocache.torch.moe import MoELayer
from ranks import on_ranks

from horocache.moe.exchanges import EarlyExit, Outcome, make_exchange

HIDDEN, CLASSES, STEPS = 8, 4, 60


class LosesBatches:
    """An exchange that loses the batches for other ranks with a chance, drawn from a seed."""

    def __init__(self, options, chance):
        self.inner = make_exchange("one_sided", dataclasses.replace(options, early_exit=EarlyExit()))
        self.own, self.chance = options.process_set.rank(), chance
        self.random = np.random.default_rng([7, self.own])
        self.close, self.fail = self.inner.close, self.inner.fail

    def run(self, call):
        if call.lossless:
            return self.inner.run(call)
        lost = self.random.random(len(call.rows)) < self.chance
        lost[self.own] = False
        take = call.take
        call.take = lambda peer, result: None if lost[peer] else take(peer, result)
        report = self.inner.run(call)
        for peer, rows in enumerate(call.rows):
            if rows and lost[peer]:
                report.outcomes[peer] = Outcome.OWN_TIMEOUT
        return report


def losses_of(exchange, **early_exit):
    """Train a classifier of points by their quadrant; return the mean loss of each step, and sent and dropped slots."""
    import horocache.torch as hvd

    torch.manual_seed(1)
    layer = MoELayer(HIDDEN, partial(torch.nn.Linear, HIDDEN, HIDDEN), 6, 2, exchange=exchange, **early_exit)
    model = torch.nn.ModuleList([torch.nn.Linear(2, HIDDEN), layer, torch.nn.Linear(HIDDEN, CLASSES)])
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.02), model.named_parameters())
    random = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for _ in range(STEPS):
        points = torch.randn(24, 2, generator=random)
        optimizer.zero_grad()
        x = torch.relu(model[0](points))
        output, auxiliary, _ = layer(x)
        loss = torch.nn.functional.cross_entropy(model[2](x + output), (points > 0).long() @ torch.tensor([1, 2]))
        (loss + 0.01 * auxiliary).backward()
        optimizer.step()
        losses.append(float(hvd.allreduce(loss.detach(), name="loss")))
    counted = layer.statistics()
    layer.close()
    return losses, counted.sent, sum(counted.dropped.values())


@on_ranks(3)
def test_m19_a_model_trains_with_lost_batches_and_equal_seeds_give_equal_losses():
    import horocache.torch as hvd

    whole, sent, dropped = losses_of("one_sided")
    assert dropped == 0 and losses_of("alltoall") == (whole, sent, 0)
    assert whole[-1] < whole[0] / 3
    for fraction in (0.05, 0.2):
        exchange = partial(LosesBatches, chance=fraction * 3 / 2)
        losses, sent, dropped = losses_of(exchange, tau=0.0)
        assert losses_of(exchange, tau=0.0) == (losses, sent, dropped)
        assert losses != whole and losses[-1] < losses[0] / 3
        totals = hvd.allreduce(torch.tensor([float(sent), float(dropped)]), op=hvd.Sum, name="counts")
        assert 0.5 * fraction < float(totals[1] / totals[0]) < 1.5 * fraction
