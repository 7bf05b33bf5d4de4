"""Errors in TensorFlow programs: every rank raises TensorFlow's exception with horocache's message, in time."""

import os
import signal
import threading
import time

import horocache.tensorflow as hvd
import horocache.torch as hvd_torch
import keras
import pytest
import tensorflow as tf
import torch
from ranks import signal_in_a_wait

from .tensorflow_ranks import on_tensorflow_ranks, run


@on_tensorflow_ranks(2)
def test_mismatches_raise_on_all_ranks_and_the_job_goes_on():
    me = hvd.rank()
    in_function = tf.function(lambda x: hvd.allreduce(x, name="shapes"))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 0 submitted shape \[1\]"):
        in_function(tf.ones([me + 1]))
    first, last = tf.Variable(tf.ones([2])), tf.Variable(tf.ones([me + 1]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(first) + tf.reduce_sum(last)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 0 submitted shape \[1\]"):
        hvd.DistributedGradientTape(tape).gradient(loss, [first, last])  # this call waits for both gradients
    with pytest.raises(tf.errors.FailedPreconditionError, match="float32"):
        hvd.allreduce(tf.ones([1], [tf.float32, tf.float64][me]), name="types")
    with pytest.raises(hvd.HorocacheError, match="op parameter supersedes average"):
        hvd.allreduce(tf.ones([1]), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="invalid root rank 7"):
        hvd.broadcast(tf.ones([1]), 7)
    with pytest.raises(tf.errors.UnimplementedError, match="allgather, tensor 0: elements of type string cannot"):
        hvd.allgather(tf.constant(["text"]))
    before = hvd.metrics()["cache_misses"]
    words = [tf.Variable(1.0), tf.Variable("word", name="vocabulary")]
    with pytest.raises(tf.errors.UnimplementedError, match=r"variable 'vocabulary:0': .*string.*broadcast_object"):
        hvd.broadcast_variables(words, root_rank=0)
    hvd.allreduce(tf.ones([1]), name="nothing")
    assert hvd.metrics()["cache_misses"] == before + 1, "a valid variable was submitted before the error"
    with pytest.raises(tf.errors.InvalidArgumentError, match="add up to 4 rows, but the tensor has 2"):
        hvd.alltoall(tf.ones([2]), splits=[2, 2])
    with pytest.raises(hvd.HorocacheError, match="cannot be compiled by XLA"):
        tf.function(hvd.allreduce, jit_compile=True)(tf.ones([1]))
    assert hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="after").numpy()[0] == 2.0


# The limits are hours: an operation ends early only if it can certainly never complete.
@on_tensorflow_ranks(2, knobs={"stall_check_time_seconds": 3600, "stall_shutdown_time_seconds": 7200})
def test_ranks_that_wait_for_each_other_in_functions_raise_at_once():
    me = hvd.rank()
    never = pytest.raises(tf.errors.DeadlineExceededError, match="It can never complete")
    hvd.broadcast_variables([tf.Variable(1.0)], root_rank=0)

    # Each rank first waits for the operation that the other submits after a local computation of one second.
    def slow_then(x, first, second):
        later = tf.py_function(lambda: time.sleep(1.0) or 1.0, [], tf.float32)
        return hvd.allreduce(x, op=hvd.Sum, name=first), hvd.allreduce(x * later, op=hvd.Sum, name=second)

    order = ("first", "second") if me == 0 else ("second", "first")
    assert [float(each[0]) for each in tf.function(slow_then)(tf.ones([1]), *order)] == [2.0, 2.0]

    with never:
        tf.function(lambda x: hvd.allreduce(x, name=f"of rank {me} alone"))(tf.ones([1]))
    with never:  # rank 1 in eager mode
        alone = lambda x: hvd.allreduce(x, name=f"eager {me}")  # noqa: E731
        (tf.function(alone) if me == 0 else alone)(tf.ones([1]))

    weight, extra = tf.Variable([1.0], name="weight"), tf.Variable([1.0], name="extra")

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weight * extra if me == 0 else weight
        return hvd.DistributedGradientTape(tape).gradient(loss, [weight, extra])

    # Rank 1 has no gradient for `extra` and goes on to its next step.
    lacking = ["1.extra", "0.weight"][me] + f"' was submitted by rank {me} .*never complete"
    with pytest.raises(tf.errors.DeadlineExceededError, match=lacking):
        for _ in range(2):
            step()

    class Metric(keras.layers.Layer):
        def call(self, x):
            return x * hvd.allreduce(tf.reduce_mean(x), name=f"metric of rank {me}")

    model = keras.Sequential([keras.layers.Input((2,)), Metric(), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with never:
        model.fit(tf.ones([4, 2]), tf.ones([4, 1]), 2, 1, verbose=0)

    # Ranks wait for a thread that submits later, even if it sleeps first.
    results = {}

    def call(name, after):
        time.sleep(after)
        results[name] = float(tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name=name))(tf.ones([1]))[0])

    threads = [threading.Thread(target=call, args=(f"thread {i}", 1.0 * (i != me))) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"thread 0": 2.0, "thread 1": 2.0}


def test_a_killed_rank_raises_in_the_functions_of_the_other_ranks():
    def reduce_while_rank_1_dies():
        hvd.init()

        @tf.function
        def step(x):
            return hvd.allreduce(x, name="gradient")

        step(tf.ones([1]))
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(tf.errors.UnknownError, match=r"rank 1 .* was killed by signal 9"):
            for _ in range(1000):
                step(tf.ones([1]))
        return True

    outcomes = run(reduce_while_rank_1_dies, 3, check=False)
    assert [outcome.value for outcome in outcomes] == [True, None, True], [o.describe() for o in outcomes]


@on_tensorflow_ranks(2, init=False)
def test_operations_raise_before_init_and_after_shutdown():
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
        step(tf.ones([1]))
    hvd.init()
    assert step(tf.ones([1])).numpy() == [2.0]
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
        step(tf.ones([1]))
    hvd.init()
    assert (step(tf.ones([1])).numpy()[0], hvd.size_op().numpy()) == (2.0, 2)


@on_tensorflow_ranks(2, init=False)
def test_torch_and_tensorflow_in_one_process_share_one_runtime():
    hvd_torch.init()
    assert hvd.rank() == hvd_torch.rank() == int(os.environ["HOROCACHE_RANK"])
    # Operations of both frameworks are in flight at once: one runtime serves both.
    handle = hvd_torch.allreduce_async(torch.ones(2), name="torch", op=hvd_torch.Sum)
    by_tensorflow = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="tensorflow")
    assert by_tensorflow.numpy().tolist() == [2.0, 2.0]
    assert hvd_torch.synchronize(handle).tolist() == [2.0, 2.0]


@on_tensorflow_ranks(2)
def test_ctrl_c_ends_an_eager_wait(tmp_path):
    interrupted = tmp_path / "interrupted"

    if hvd.rank() == 0:
        published = hvd.metrics()["flushes"]
        with pytest.raises(KeyboardInterrupt):
            signal_in_a_wait(lambda: hvd.metrics()["flushes"] > published, signal.SIGINT)
            hvd.allreduce(tf.ones([1]), name="waited for")
        interrupted.touch()
    else:
        while not interrupted.exists():
            time.sleep(0.01)
        hvd.allreduce(tf.ones([1]), name="waited for")
    assert float(hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="after")[0]) == 2.0


@on_tensorflow_ranks(1)
def test_errors_at_tracing_name_the_operation():
    @tf.function(jit_compile=True)
    def step(x):
        return hvd.allreduce(x, name="loss")

    with pytest.raises(hvd.HorocacheError, match=r"the operation 'step/allreduce\.loss' cannot be compiled by XLA"):
        step(tf.ones([1]))
    with pytest.raises(tf.errors.UnimplementedError, match=r"allreduce\.words, tensor 0: .* qint8 cannot be sent"):
        hvd.allreduce(tf.cast([1.0], tf.qint8), name="words")
    table = tf.Variable(tf.zeros([4, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1]))
    first, second = (hvd.DistributedGradientTape(tape, op=op) for op in (hvd.Adasum, hvd.Sum))
    # The options of the first tape do not change the second one.
    assert isinstance(second.gradient(loss, table), tf.IndexedSlices)
    assert type(first).__name__ == "GradientTape"


@on_tensorflow_ranks(2)
def test_reducescatter_of_a_scalar_raises():
    def single(x):
        return hvd.reducescatter(x, op=hvd.Sum)

    def grouped(x):
        return hvd.grouped_reducescatter([tf.ones([2]), x], op=hvd.Sum)

    for function in (single, grouped):
        compiled = tf.function(function)
        of_any_shape = tf.function(function, input_signature=[tf.TensorSpec(None, tf.float32)])
        for call in (function, compiled, of_any_shape):
            with pytest.raises(tf.errors.InvalidArgumentError, match="does not support scalar inputs"):
                call(tf.constant(5.0))
        assert tf.nest.flatten(of_any_shape(tf.ones([4])))[-1].numpy().tolist() == [2.0, 2.0]


@on_tensorflow_ranks(2)
def test_adasum_of_indexed_slices_raises():
    table = tf.Variable(tf.zeros([4, 2]))

    def gradient(**options):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank()]))
        return hvd.DistributedGradientTape(tape, op=hvd.Adasum, **options).gradient(loss, table)

    with pytest.raises(hvd.HorocacheError, match="use sparse_as_dense=True"):
        gradient()
    assert gradient(sparse_as_dense=True).numpy()[:2].tolist() == [[1.0, 1.0], [1.0, 1.0]]


@on_tensorflow_ranks(2, init=False)
def test_a_forked_child_gets_errors_and_its_parent_goes_on():
    hvd.init(process_sets=[[1]])
    hvd.allreduce(tf.ones([1]), name="before")
    reader, writer = os.pipe()
    queries = (hvd.rank_op, hvd.size_op, hvd.local_rank_op, lambda: hvd.size_op(1), hvd.process_set_included_op)
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, f"{[int(query()) for query in queries]} ".encode())
            text = str(hvd.allreduce(tf.ones([1]), name="of the child"))
        except tf.errors.FailedPreconditionError as error:
            text = error.message
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    numbers, _, error = answer.partition("] ")
    assert numbers == f"[{hvd.rank()}, 2, {hvd.rank()}, 1, 1", "the child's answers differ from its parent's"
    assert "The child of a fork cannot use its parent's" in error
    assert float(hvd.allreduce(tf.ones([1]), op=hvd.Sum)[0]) == 2.0


@on_tensorflow_ranks(2)
def test_codecs_are_refused():
    from horocache.collectives.codecs import Int8, Zfp

    codec, tensor = Int8(), tf.ones([4])
    variable = tf.Variable(tensor)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))

    def tape():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable)
        return hvd.DistributedGradientTape(tape, compression=codec).gradient(loss, variable)

    calls = (
        lambda: hvd.allreduce(tensor, compression=codec),
        lambda: hvd.allreduce(slices, compression=codec),
        lambda: hvd.allreduce(tensor, compression=codec, op=hvd.Adasum),
        lambda: hvd.grouped_allreduce([tensor, slices], compression=codec),
        lambda: hvd.reducescatter(tensor, compression=codec),
        lambda: hvd.grouped_reducescatter([tensor], compression=codec),
        lambda: hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), compression=codec),
        tape,
    )
    for call in calls:
        with pytest.raises(hvd.UnsupportedError, match=r"Compression.int8.*only allreduce of horocache and"):
            call()
    with pytest.raises(hvd.UnsupportedError, match="only allreduce of horocache and"):
        tf.function(calls[0])()
    with pytest.raises(hvd.InvalidArgumentError, match="lacks its parameters"):
        hvd.allreduce(tensor, compression=Zfp)
    assert hvd.allreduce(tensor, op=hvd.Sum).numpy().tolist() == [2] * 4
