"""``overlap()``: its bounds, agreement with the core's counters, reset, and the steps that torch optimizers count."""

from __future__ import annotations

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

import horocache as hc
from horocache.errors import NotInitializedError

from .bindings import both_bindings


@on_ranks(2)
def test_overlap_starts_at_zero_stays_in_bounds_and_can_be_reset():
    nothing = hc.overlap()
    assert nothing[:3] == (0.0, 0.0, 0.0)
    assert nothing.steps == 0
    assert nothing.cpu_s_per_step == 0.0
    array = np.ones(1 << 18, np.float32)
    seen = [nothing]
    for step in range(3):
        handles = [hc.allreduce_async_(array, op=hc.Max, name=f"x{i}", priority=i) for i in range(3)]
        for handle in handles:
            hc.synchronize(handle)
        seen.append(hc.overlap())
        for before, now in zip(seen[-2][1:], seen[-1][1:], strict=True):
            assert now >= before, (step, seen)
        assert 0.0 <= seen[-1].overlap <= 1.0
    assert seen[-1].busy_s > 0
    assert seen[-1].cpu_s >= seen[-1].daemon_cpu_s > 0
    last = hc.overlap(reset=True)
    assert last.busy_s == seen[-1].busy_s  # nothing ran since
    after = hc.overlap()
    assert after[:3] == (0.0, 0.0, 0.0)
    assert after.cpu_s < last.cpu_s
    assert hc.metrics()["lane_busy_ns"] > 0, "the reset has changed the counters"


@on_ranks(2)
def test_blocking_calls_count_as_blocked_and_polling_overlaps_fully():
    array = np.ones(1 << 20, np.float32)
    for _ in range(3):
        hc.allreduce(array, op=hc.Max, name="x")
    waits = hc.overlap(reset=True)
    handle = hc.allreduce_async(array, op=hc.Max, name="y")
    while not hc.poll(handle):
        pass
    hc.synchronize(handle)
    polls = hc.overlap()
    assert (waits.blocked_s > 0, polls.blocked_s, polls.overlap, polls.busy_s > 0) == (True, 0.0, 1.0, True)


@on_ranks(1, 2)
def test_steps_of_torch_optimizers_are_counted():
    model = torch.nn.Linear(4, 4)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), num_groups=1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    result = hvd.overlap()
    assert result.cpu_s_per_step == result.cpu_s / 4
    assert result.steps == 4


def test_overlap_before_init_raises():
    with pytest.raises(NotInitializedError):
        hc.overlap()


@both_bindings
@on_ranks(2, init=False)
def test_both_bindings_update_the_counters(binding):
    hc.init(binding=binding)
    hc.allreduce(np.ones(4), name="x")
    handle = hc.allreduce_async_(np.ones(4), name="y", priority=3)
    hc.synchronize(handle)
    names = {"lane_busy_ns", "blocked_ns", "progress_cpu_ns", "steps"}
    assert (names <= set(hc.metrics()), hc.overlap().busy_s > 0) == (True, True)
