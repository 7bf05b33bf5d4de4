"""horocache.jax in JAX's transformations: compiled, differentiated, batched, checkpointed, on several devices."""

import os
import threading
import time

import horocache.jax as hvd
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ranks import on_ranks

from horocache.errors import InvalidArgumentError, UnsupportedError


def _gradients(x):
    """For each operation, the gradient of the sum of squares of its result; ``x`` has 4 elements on each rank."""
    root = 1

    def of(operation):
        return jax.grad(lambda x: (operation(x) ** 2).sum())

    return {
        "sum": of(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5))(x),
        "average": of(lambda x: hvd.allreduce(x, name="mean"))(x),
        "group": of(lambda x: hvd.grouped_allreduce([x, jnp.arange(2)], op=hvd.Sum)[0])(x),
        "broadcast": of(lambda x: hvd.broadcast(x, root))(x),
        "allgather": of(hvd.allgather)(x),
        "scalar": of(hvd.allgather)(x[0]),
        "alltoall": of(hvd.alltoall)(x[:3]),
        "reducescatter": of(lambda x: hvd.reducescatter(x, op=hvd.Sum))(x),
    }


def _expected_gradients(x, me):
    """The same gradients, computed from the values of all ranks, with the scaling of the other frameworks."""
    total = x.sum(axis=0)
    columns = x[:, :3].T  # row r is the result of alltoall on rank r
    return {
        "sum": 2 * 0.5 * 0.5 * total * 3,
        "average": 2 * total / 3,
        "group": 2 * total * 3,
        "broadcast": 2 * x[1] * (me == 1),
        "allgather": 2 * x[me],
        "scalar": 2 * x[me][0],
        "alltoall": 2 * columns.T[me],
        "reducescatter": 2 * total * 3,
    }


@on_ranks(3, timeout=120)
def test_gradients_are_scaled_as_in_the_other_frameworks():
    me = hvd.rank()
    x = np.float32([[1, 2, 3, 4], [2, 0, 1, 5], [3, 3, 7, 2]])
    found = jax.jit(_gradients)(jnp.asarray(x[me]))
    for name, expected in _expected_gradients(x, me).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, err_msg=name)

    def total(x):
        return hvd.allreduce(x, op=hvd.Sum)

    own = jnp.asarray(x[me])
    # Forward mode, second derivatives, and a result without a gradient through which none is requested.
    values, tangents = jax.jit(lambda x: jax.jvp(total, (x,), (jnp.ones(4) * (me + 1),)))(own)
    assert values.tolist() == x.sum(axis=0).tolist() and tangents.tolist() == [6.0] * 4
    second = jax.jit(jax.hessian(lambda x: (total(x) ** 2).sum()))(own)
    np.testing.assert_allclose(second, 2 * 9 * np.eye(4))
    with_maximum = jax.value_and_grad(lambda x: (x.sum(), hvd.allreduce(x, op=hvd.Max)), has_aux=True)
    assert jax.jit(with_maximum)(own)[0][1].tolist() == x.max(axis=0).tolist()
    with pytest.raises(UnsupportedError, match=r"gradient for Average and Sum only.*stop_gradient"):
        jax.jit(jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum()))(own)
    with pytest.raises(UnsupportedError, match="reduce_gradients has no gradient"):
        jax.jit(jax.grad(lambda x: hvd.reduce_gradients([x])[0].sum()))(own)


@on_ranks(3, timeout=120)
def test_operations_in_batches_loops_branches_and_checkpoints():
    me = hvd.rank()
    x = jnp.arange(12.0).reshape(3, 4) + me
    sums = np.arange(12.0).reshape(3, 4) * 3 + 3

    def total(x):
        return hvd.allreduce(x, op=hvd.Sum)

    before = hvd.metrics()["operations"]
    np.testing.assert_array_equal(jax.jit(jax.vmap(total))(x), sums)
    np.testing.assert_array_equal(jax.jit(jax.vmap(total, in_axes=1, out_axes=1))(x), sums)
    assert hvd.metrics()["operations"] - before == 2, "a batch is one operation"
    rows = np.stack([np.arange(12.0).reshape(3, 4) + rank for rank in range(3)], axis=1)
    np.testing.assert_array_equal(jax.jit(jax.vmap(hvd.allgather))(x), rows.reshape(3, 12))
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.vmap(hvd.allgather)))(x), np.moveaxis(rows, 1, 2))
    scattered = jax.jit(jax.vmap(lambda x: hvd.reducescatter(x, op=hvd.Sum)))(x)
    np.testing.assert_array_equal(scattered, [np.array_split(row, 3)[me] for row in sums])
    gradient = jax.jit(jax.vmap(jax.grad(lambda x: (total(x) ** 2).sum())))(x)
    np.testing.assert_array_equal(gradient, 2 * 3 * sums)
    with pytest.raises(UnsupportedError, match=r"reduce_gradients cannot be inside of jax\.vmap"):
        jax.jit(jax.vmap(lambda x: hvd.reduce_gradients([x])[0]))(x)
    with pytest.raises(InvalidArgumentError, match="scalar"):
        jax.jit(jax.vmap(hvd.reducescatter))(x[0])

    def step(x, _):
        return jnp.sin(total(x)), x.sum()

    def loss(x, step=step):
        return jax.lax.scan(step, x, None, length=4)[0].sum()

    plain = jax.jit(jax.grad(loss))(x)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: loss(x, jax.checkpoint(step))))(x), plain, rtol=1e-5)
    looped = jax.jit(lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 1e3, total, x))(x)
    np.testing.assert_array_equal(looped, sums * 3**6)
    # Ranks take different branches: operations without a name are matched in program order.
    branch = jax.jit(
        lambda x: jax.lax.cond(x[0, 0] == 1, lambda x: hvd.broadcast(x, 1), lambda x: hvd.broadcast(-x, 1), x)
    )
    np.testing.assert_array_equal(branch(x), np.arange(12.0).reshape(3, 4) + 1)

    @jax.custom_vjp
    def halved(x):
        return total(x) / 2

    halved.defvjp(lambda x: (halved(x), None), lambda _, grad: (total(grad),))
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: halved(x).sum()))(x), np.full((3, 4), 3.0))


@on_ranks(3, timeout=120)
def test_grad_and_vmap_outside_of_jit():
    me = hvd.rank()
    x = jnp.asarray(np.float32([[1, 2, 3], [2, 0, 1], [3, 3, 7]])[me])

    def squares(x):
        return (hvd.reducescatter(hvd.allreduce(x, op=hvd.Sum), op=hvd.Sum) ** 2).sum()

    # Each rank squares 3 times its element of the total. The gradient of each of the two sums is a sum over 3 ranks.
    assert jax.grad(squares)(x).tolist() == [2 * 3 * 3 * 3 * total for total in (6, 5, 11)]
    assert jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Sum))(x).tolist() == [6, 5, 11]
    with pytest.raises(UnsupportedError, match="gradient for Average and Sum only"):
        jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum())(x)
    with pytest.raises(UnsupportedError, match="reduce_gradients has no gradient"):
        jax.grad(lambda x: hvd.reduce_gradients([x])[0].sum())(x)


@on_ranks(3, timeout=120)
def test_compiled_functions_require_the_sizes_known_at_tracing():
    me = hvd.rank()
    x = jnp.arange(4.0) + 10 * me
    assert jax.jit(hvd.allgather)(x).tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert jax.jit(hvd.allgather)(x[0]).tolist() == [0, 10, 20]
    assert jax.jit(hvd.alltoall)(x[:3]).tolist() == [me, 10 + me, 20 + me]
    assert jax.jit(hvd.reducescatter)(x).tolist() == [[10, 11], [12], [13]][me]
    one, two = jax.jit(lambda x: (hvd.allgather(x, process_set=hvd.global_process_set), hvd.alltoall(x[:3])))(x)
    assert one.shape == (12,) and two.shape == (3,)
    for function in (jax.jit(hvd.allgather), jax.grad(lambda x: hvd.allgather(x).sum())):
        with pytest.raises(Exception, match=r"sizes that are known when it is traced.*There came \[1, 2, 3\]"):
            jax.block_until_ready(function(jnp.ones(me + 1)))
    assert hvd.allgather(jnp.ones(me + 1)).shape == (6,), "sizes may differ outside of jit"
    with pytest.raises(InvalidArgumentError, match="evenly among 3 ranks"):
        jax.jit(hvd.alltoall)(x)
    with pytest.raises(UnsupportedError, match="alltoall with splits"):
        jax.jit(lambda x: hvd.alltoall(x, splits=[2, 1, 1]))(x)

    @jax.jit
    def around(x):  # sends x to the next rank, twice
        return jax.lax.fori_loop(0, 2, lambda _, x: exchanged(x), x)

    def exchanged(x):
        hvd.send(x, (me + 1) % 3)
        return hvd.recv(x, (me + 2) % 3)

    assert around(x).tolist() == [10.0 * ((me + 1) % 3) + i for i in range(4)]
    received = hvd.recv(jax.ShapeDtypeStruct((2,), jnp.bfloat16), 0) if me == 1 else None
    if me == 0:
        hvd.send(jnp.ones(2, jnp.bfloat16), 1)
    assert received is None or received.tolist() == [1, 1]
    # Operations on constants run at every call and not during tracing: another trace would run them again.
    before = hvd.metrics()["operations"]
    constant = jax.jit(lambda: (hvd.barrier(), hvd.allreduce(np.float32(me), op=hvd.Sum))[1])
    assert [float(constant()) for _ in range(3)] == [3, 3, 3]
    assert hvd.metrics()["operations"] - before == 6


@on_ranks(3, timeout=120)
def test_compiled_operations_are_never_matched_with_eager_ones():
    me, n = hvd.rank(), hvd.size()

    def submitted():
        return sum(hvd.metrics()[each] for each in ("cache_hits", "cache_misses", "cache_changed"))

    operations = [
        (lambda x: hvd.allreduce(x, op=hvd.Sum), n),
        (lambda x: hvd.allreduce(x, op=hvd.Sum, name="loss"), n),
        (lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0], n),
        (lambda x: hvd.broadcast(x, 0), 1),
        (lambda x: hvd.allgather(x).sum(), n),
        (lambda x: hvd.reduce_gradients([x])[0], 1),
    ]
    one, hundred = jnp.float32(1), jnp.float32(100)
    for number, (operation, factor) in enumerate(operations):
        compiled = jax.jit(operation)
        assert float(compiled(one)) == factor
        results = {}
        # JAX runs a compiled function when its input is ready: on one rank before the next call of the program, on
        # another rank after it.
        running = threading.Thread(target=lambda c=compiled, r=results: r.update(compiled=float(c(one))))
        early = number % n == me
        if early:
            before = submitted()
            running.start()
            while submitted() == before:
                time.sleep(0.001)
        results["eager"] = float(operation(hundred))
        if not early:
            running.start()
        running.join()
        assert results == {"compiled": factor, "eager": 100 * factor}, number
    # A rank that traces a function again submits the same operations.
    if me == 1:
        jax.clear_caches()
    assert float(compiled(one)) == 1


@on_ranks(3, timeout=120, init=False)
def test_operations_run_once_per_rank_not_once_per_device():
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"  # JAX reads this at the first use of a device
    hvd.init()
    me = hvd.rank()
    assert jax.local_device_count() == 2
    mesh = Mesh(np.array(jax.devices()), ("d",))
    grid = Mesh(np.array(jax.devices()).reshape(1, 2), ("a", "b"))
    split, whole = PartitionSpec("d"), PartitionSpec()
    x = jnp.arange(4.0) + me

    def total(x):
        return hvd.allreduce(x, op=hvd.Sum)

    refused = [
        jax.pmap(total),
        jax.pmap(lambda x: hvd.reduce_gradients({"x": x})),
        jax.pmap(lambda x: hvd.allreduce(x, name="x")),
        jax.shard_map(total, mesh=mesh, in_specs=split, out_specs=split),
        jax.jit(jax.shard_map(jax.grad(lambda x: total(x).sum()), mesh=mesh, in_specs=split, out_specs=split)),
        jax.shard_map(total, mesh=grid, in_specs=PartitionSpec("a"), out_specs=PartitionSpec("a"), axis_names={"a"}),
    ]
    for function in refused:
        with pytest.raises(UnsupportedError, match=r"inside of shard_map or pmap.*call it outside"):
            function(x.reshape(2, 2))
    for where in (NamedSharding(mesh, split), NamedSharding(mesh, whole), jax.devices()[1]):
        placed = jax.device_put(x, where)
        assert jax.jit(total)(placed).tolist() == [3, 6, 9, 12]
        assert jax.jit(jax.grad(lambda x: (total(x) ** 2).sum()))(placed).tolist() == [18, 36, 54, 72]
        assert hvd.broadcast_parameters(placed, root_rank=2).tolist() == [2, 3, 4, 5]
    summed = jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=split, out_specs=whole)
    assert jax.jit(lambda x: total(summed(x)))(x).tolist() == [12, 18]
    alone = jax.shard_map(total, mesh=Mesh(np.array(jax.devices()[:1]), ("d",)), in_specs=split, out_specs=split)
    assert jax.jit(alone)(x).tolist() == [3, 6, 9, 12]
    batches = jax.vmap(lambda x: total(x) + jax.lax.psum(x, "i"), axis_name="i")
    assert jax.jit(batches)(x).tolist() == [3 + 6 + 4 * me, 6 + 6 + 4 * me, 9 + 6 + 4 * me, 12 + 6 + 4 * me]


@on_ranks(2, timeout=120)
def test_broadcast_parameters_accepts_keys_numbers_and_functions():
    me = hvd.rank()
    state = {
        "array": jnp.full(2, me, jnp.bfloat16),
        "key": jax.random.key(me),
        "keys": jax.random.split(jax.random.key(me, impl="rbg"), 3),
        "activation": jnp.tanh,
        "name": f"rank {me}",
        "none": None,
        "count": 2**40 + me,
        "rate": 0.5 + me,
        "numpy": np.full(2, 0.1 + me),
    }
    root = hvd.broadcast_parameters(state, root_rank=1)
    assert root["array"].tolist() == [1, 1] and root["array"].dtype == jnp.bfloat16
    assert root["key"] == jax.random.key(1) and root["keys"].dtype == state["keys"].dtype
    assert (root["keys"] == jax.random.split(jax.random.key(1, impl="rbg"), 3)).all()
    assert (root["activation"], root["name"], root["none"]) == (jnp.tanh, f"rank {me}", None)
    assert (root["count"], root["rate"]) == (2**40 + 1, 1.5)
    assert root["numpy"].dtype == np.float64 and root["numpy"].tolist() == [1.1, 1.1]
    in_jit = jax.jit(hvd.broadcast_parameters)({"key": state["key"], "array": state["array"]})
    assert in_jit["key"] == jax.random.key(0) and in_jit["array"].tolist() == [0, 0]
    with pytest.raises(InvalidArgumentError, match="key_data"):
        hvd.broadcast(state["key"], 0)

    weights = {"w": jnp.full(2, float(me)), "i": jnp.arange(2)}
    gradients = jax.grad(lambda p: (p["w"] ** 2).sum(), allow_int=True)(weights)
    reduced = hvd.reduce_gradients(gradients)
    assert reduced["w"].tolist() == [1, 1] and reduced["i"].dtype == jax.dtypes.float0
