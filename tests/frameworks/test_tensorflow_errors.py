"""What goes wrong in TensorFlow programs: every rank gets TensorFlow's error with horocache's message, in time."""

import os
import signal

import pytest

from .tensorflow_ranks import run


def test_mismatches_are_errors_on_all_ranks_and_the_job_goes_on():
    def body():
        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        me = hvd.rank()
        # Before any function: of TensorFlow's own threads, which run those, nobody knows whether they submit more.
        with pytest.raises(tf.errors.DeadlineExceededError, match="It can never complete"):
            hvd.allreduce(tf.ones([1]), name=f"of rank {me} alone")
        in_function = tf.function(lambda x: hvd.allreduce(x, name="shapes"))
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 0 submitted shape \[1\]"):
            in_function(tf.ones([me + 1]))
        with pytest.raises(tf.errors.FailedPreconditionError, match="float32"):
            hvd.allreduce(tf.ones([1], [tf.float32, tf.float64][me]), name="types")
        with pytest.raises(hvd.HorocacheError, match="op parameter supersedes average"):
            hvd.allreduce(tf.ones([1]), average=True, op=hvd.Sum)
        with pytest.raises(ValueError, match="invalid root rank 7"):
            hvd.broadcast(tf.ones([1]), 7)
        with pytest.raises(tf.errors.UnimplementedError, match="cannot be sent"):
            hvd.allreduce(tf.constant(["text"]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="add up to 4 rows, but the tensor has 2"):
            hvd.alltoall(tf.ones([2]), splits=[2, 2])
        with pytest.raises(hvd.HorocacheError, match="cannot be compiled by XLA"):
            tf.function(hvd.allreduce, jit_compile=True)(tf.ones([1]))
        return hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="after").numpy()[0]

    assert run(body, 2) == [2.0, 2.0]


def test_a_killed_rank_is_an_error_in_the_others_functions():
    def body():
        import horocache.tensorflow as hvd
        import tensorflow as tf

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

    outcomes = run(body, 3, check=False)
    assert [outcome.value for outcome in outcomes] == [True, None, True], [o.describe() for o in outcomes]


def test_before_init_after_shutdown_and_in_a_second_session():
    def body():
        import horocache.tensorflow as hvd
        import tensorflow as tf

        step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
        with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
            step(tf.ones([1]))
        hvd.init()
        assert step(tf.ones([1])).numpy() == [2.0]
        hvd.shutdown()
        with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
            step(tf.ones([1]))
        hvd.init()
        return step(tf.ones([1])).numpy()[0], hvd.size_op().numpy()

    assert run(body, 2) == [(2.0, 2)] * 2


def test_torch_and_tensorflow_in_one_process_share_one_daemon():
    def body():
        import horocache.tensorflow as hvd_tf
        import horocache.torch as hvd_torch
        import tensorflow as tf
        import torch

        hvd_torch.init()
        me = hvd_tf.rank()
        # Each rank waits in another framework first: one runtime serves both.
        handle = hvd_torch.allreduce_async(torch.ones(2), name="torch", op=hvd_torch.Sum)
        by_tensorflow = hvd_tf.allreduce(tf.ones([2]), op=hvd_tf.Sum, name="tensorflow")
        return me, by_tensorflow.numpy().tolist(), hvd_torch.synchronize(handle).tolist()

    assert run(body, 2) == [(0, [2.0, 2.0], [2.0, 2.0]), (1, [2.0, 2.0], [2.0, 2.0])]


def test_ctrl_c_ends_an_eager_wait(tmp_path):
    def body(interrupted):
        import threading
        import time
        from pathlib import Path

        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        if hvd.rank() == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                hvd.allreduce(tf.ones([1]), name="waited for")
            Path(interrupted).touch()
        else:
            while not Path(interrupted).exists():
                time.sleep(0.01)
            hvd.allreduce(tf.ones([1]), name="waited for")
        return float(hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="after")[0])

    assert run(body, 2, args=(str(tmp_path / "interrupted"),)) == [2.0, 2.0]


def test_errors_while_a_graph_is_made_name_the_operation():
    def body():
        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()

        @tf.function(jit_compile=True)
        def step(x):
            return hvd.allreduce(x, name="loss")

        with pytest.raises(hvd.HorocacheError, match=r"the operation 'step/allreduce\.loss' cannot be compiled by XLA"):
            step(tf.ones([1]))
        with pytest.raises(
            tf.errors.UnimplementedError, match=r"'allreduce\.words', tensor 0: elements of TF_DataType 7"
        ):
            hvd.allreduce(tf.constant(["a"]), name="words")
        table = tf.Variable(tf.zeros([4, 2]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1]))
        first, second = (hvd.DistributedGradientTape(tape, op=op) for op in (hvd.Adasum, hvd.Sum))
        assert isinstance(second.gradient(loss, table), tf.IndexedSlices)  # each has options of its own
        return type(first).__name__

    assert run(body, 1) == ["GradientTape"]


def test_adasum_of_slices_is_refused():
    def body():
        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        table = tf.Variable(tf.zeros([4, 2]))

        def gradient(**options):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [hvd.rank()]))
            return hvd.DistributedGradientTape(tape, op=hvd.Adasum, **options).gradient(loss, table)

        with pytest.raises(hvd.HorocacheError, match="use sparse_as_dense=True"):
            gradient()
        return gradient(sparse_as_dense=True).numpy()[:2].tolist()

    assert run(body, 2) == [[[1.0, 1.0], [1.0, 1.0]]] * 2


def test_a_forked_child_gets_errors_and_its_parent_goes_on():
    def body():
        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        hvd.allreduce(tf.ones([1]), name="before")
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                text = str(hvd.allreduce(tf.ones([1]), name="of the child"))
            except tf.errors.FailedPreconditionError as error:
                text = error.message
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        said = os.read(reader, 10000).decode()
        os.waitpid(child, 0)
        return "The child of a fork cannot use its parent's" in said, float(hvd.allreduce(tf.ones([1]), op=hvd.Sum)[0])

    assert run(body, 2) == [(True, 2.0)] * 2
