"""horocache.jax: operations outside and inside of ``jax.jit``, a training step, and the count of steps."""

import functools

import horocache.jax as hvd
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ranks import on_ranks

DTYPES = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


@on_ranks(3, timeout=120)
def test_operations_on_every_dtype():
    jax.config.update("jax_enable_x64", True)
    me, n = hvd.rank(), hvd.size()
    for name in DTYPES:
        values = (np.arange(6).reshape(3, 2) + me).astype(jnp.dtype(name))  # by NumPy: JAX would compile each operation
        x, first = jnp.asarray(values), jnp.asarray(values[0])
        total = sum(np.arange(6).reshape(3, 2) + rank for rank in range(n)).astype(jnp.dtype(name))
        got = hvd.allreduce(x, op=hvd.Sum)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, total)
        np.testing.assert_array_equal(hvd.grouped_allreduce([x, first], op=hvd.Sum)[1], total[0])
        np.testing.assert_array_equal(hvd.broadcast(x, 1), (np.arange(6).reshape(3, 2) + 1).astype(x.dtype))
        np.testing.assert_array_equal(
            hvd.allgather(values[: me + 1]),
            np.concatenate([np.arange(2 * (r + 1)).reshape(r + 1, 2) + r for r in range(n)]).astype(x.dtype),
        )
        np.testing.assert_array_equal(hvd.reducescatter(x, op=hvd.Sum), total[me : me + 1])
        rows, counts = hvd.alltoall(np.full(n * (me + 1), me, x.dtype), splits=[me + 1] * n)
        np.testing.assert_array_equal(rows, np.repeat(range(n), range(1, n + 1)).astype(x.dtype))
        assert counts.tolist() == list(range(1, n + 1))
    assert hvd.allgather(jnp.array([me == 0])).tolist() == [True, False, False]
    assert hvd.allreduce(jnp.float32(me)).shape == ()
    with pytest.raises(hvd.HorocacheError, match=r"expected a jax\.Array, got builtins\.str"):
        hvd.allgather("text")
    with pytest.raises(hvd.HorocacheError, match=r"rank \d submitted shape"):
        hvd.allreduce(jnp.ones(me + 1), name="shapes")


@on_ranks(2, timeout=120)
def test_operations_inside_of_jit():
    jax.config.update("jax_enable_x64", True)
    me = hvd.rank()

    @jax.jit
    def step(x):
        total = hvd.allreduce(x, op=hvd.Sum)
        first, second = hvd.grouped_allreduce([x, total.astype(jnp.bfloat16)], op=hvd.Max)
        looped = jax.lax.fori_loop(0, 3, lambda i, y: hvd.allreduce(y, op=hvd.Sum, name="looped"), x)
        return total, first, second, hvd.broadcast(x * 2, 1), looped

    for _ in range(3):
        results = step(jnp.full(3, float(me)))
    assert [float(result[0]) for result in results] == [1.0, 1.0, 1.0, 2.0, 4.0]
    assert results[2].dtype.name == "bfloat16"


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
@on_ranks(2, timeout=120)
def test_training_equals_one_process_on_the_joint_batch(compiled):
    jax.config.update("jax_enable_x64", True)
    me, n = hvd.rank(), hvd.size()
    generator = np.random.default_rng(7)
    x, y = generator.normal(size=(5, n, 4, 3)), generator.normal(size=(5, n, 4, 2))

    def loss(parameters, x, y):
        return jnp.mean((jnp.tanh(x @ parameters["hidden"]) @ parameters["out"] - y) ** 2)

    def train(x, y, reduce, parameters):
        def step(parameters, x, y):
            gradients = reduce(jax.grad(loss)(parameters, x, y))
            return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, parameters, gradients)

        step = jax.jit(step) if compiled else step
        for number in range(len(x)):
            parameters = step(parameters, x[number], y[number])
        return parameters

    generator = np.random.default_rng(me)
    own = {"hidden": jnp.asarray(generator.normal(size=(3, 5))), "out": jnp.asarray(generator.normal(size=(5, 2)))}
    begin = hvd.broadcast_parameters(own, root_rank=1)
    in_one_group = functools.partial(hvd.reduce_gradients, num_groups=1)
    for reduce in (hvd.reduce_gradients, in_one_group):
        ours = train(x[:, me], y[:, me], reduce, begin)
        alone = train(x.reshape(5, -1, 3), y.reshape(5, -1, 2), lambda gradients: gradients, begin)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), ours, alone)
    half = hvd.reduce_gradients(own, compression=hvd.Compression.bf16)
    assert half["out"].dtype == own["out"].dtype
    first, second = hvd.allgather_object([np.asarray(ours[name]).tobytes() for name in ("hidden", "out")])
    assert first == second


@on_ranks(2)
def test_overlap_counts_steps_inside_of_jit():
    step = jax.jit(lambda x: hvd.reduce_gradients({"w": x}))
    for _ in range(3):
        jax.block_until_ready(step(jnp.ones(4)))
    assert hvd.overlap().steps == 3


@on_ranks(2, timeout=120)
def test_codecs_are_refused_in_and_outside_of_compiled_functions():
    from horocache.collectives.codecs import Int8

    codec, array = Int8(), jnp.ones(4)
    calls = {
        "allreduce": lambda x: hvd.allreduce(x, compression=codec),
        "group": lambda x: hvd.grouped_allreduce([x], compression=codec),
        "reducescatter": lambda x: hvd.reducescatter(x, compression=codec),
        "gradients": lambda x: hvd.reduce_gradients({"x": x}, compression=codec),
    }
    for call in calls.values():
        for run in (call, jax.jit(call)):
            with pytest.raises(hvd.UnsupportedError, match=r"Compression.int8.*only allreduce of horocache and"):
                run(array)
    assert hvd.allreduce(array, op=hvd.Sum).tolist() == [2] * 4
