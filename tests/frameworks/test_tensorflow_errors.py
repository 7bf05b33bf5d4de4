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
