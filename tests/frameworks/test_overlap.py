"""``overlap()``: its bounds, agreement with the core's counters, reset, and equal values in every binding."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.errors import NotInitializedError
from horocache.testing import run_ranks as run


@on_ranks(2)
def test_it_is_zero_before_anything_ran_and_stays_in_bounds_and_begins_anew_after_a_reset():
    import numpy as np

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
    assert hc.metrics()["lane_busy_ns"] > 0, "counters go on"


@on_ranks(2)
def test_who_does_nothing_but_wait_hides_nothing_and_who_never_waits_hides_all():
    import numpy as np

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
def test_the_steps_of_torchs_optimizers_are_counted():
    import torch

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


def test_the_steps_of_tensorflows_tapes_are_counted_where_a_function_runs_not_where_it_is_made():
    pytest.importorskip("tensorflow")
    from . import tensorflow_ranks

    def body():
        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        variable = tf.Variable([1.0, 2.0])

        def step():
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(variable * variable)
            return tape.gradient(loss, [variable])[0]

        step()
        step()
        eager = hvd.overlap(reset=True).steps
        compiled = tf.function(step)
        for _ in range(3):
            compiled()
        return eager, hvd.overlap().steps

    assert tensorflow_ranks.run(body, 2) == [(2, 3)] * 2


def test_the_steps_of_jax_are_counted_inside_of_jit():
    pytest.importorskip("jax")

    def body():
        import horocache.jax as hvd
        import jax
        import jax.numpy as jnp

        hvd.init()
        step = jax.jit(lambda x: hvd.reduce_gradients({"w": x}))
        for _ in range(3):
            jax.block_until_ready(step(jnp.ones(4)))
        return hvd.overlap().steps

    assert run(body, 2) == [3] * 2


def test_it_needs_a_session():
    import horocache as hc

    with pytest.raises(NotInitializedError):
        hc.overlap()


@pytest.mark.parametrize("binding", ["native", "cffi"])
@on_ranks(2, init=False)
def test_both_routes_to_the_core_count_alike(binding):
    import numpy as np

    hc.init(binding=binding)
    hc.allreduce(np.ones(4), name="x")
    handle = hc.allreduce_async_(np.ones(4), name="y", priority=3)
    hc.synchronize(handle)
    names = {"lane_busy_ns", "blocked_ns", "coordinator_cpu_ns", "steps"}
    assert (names <= set(hc.metrics()), hc.overlap().busy_s > 0) == (True, True)
