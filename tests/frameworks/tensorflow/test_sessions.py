"""Graphs and sessions of TensorFlow 1: a session runs the operations that it fetches and no other operation."""

import horocache.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from .tensorflow_ranks import on_tensorflow_ranks


@on_tensorflow_ranks(2, init=False)
def test_a_session_broadcasts_variables_when_it_runs_the_operation():
    v1 = tf.compat.v1
    hvd.init()
    me = hvd.rank()
    for use_resource in (True, False):
        with tf.Graph().as_default(), v1.Session() as session:
            floats = v1.get_variable("a", initializer=tf.constant(me + 1.0), use_resource=use_resource)
            number = v1.get_variable("b", initializer=tf.constant([me + 5]), use_resource=use_resource)
            together = hvd.broadcast_variables([number, floats], root_rank=0)
            of_one = hvd.broadcast_([floats, number], root_rank=1)
            everything = hvd.broadcast_global_variables(1)
            session.run(v1.global_variables_initializer())
            assert session.run([floats, number]) == [me + 1.0, [me + 5]], "nothing has run yet"
            session.run(together)
            assert session.run([floats, number]) == [1.0, [5]]
            session.run([floats.assign_add(me), number.assign_add([me])])
            assert session.run(of_one) == [2.0, [6]]
            assert session.run([floats, number]) == [2.0, [6]]
            session.run(floats.assign_add(me))
            session.run(everything)
            assert session.run(floats) == 3.0
            assert hvd.broadcast_object(me, root_rank=1, session=session) == 1


@on_tensorflow_ranks(3, init=False)
def test_a_session_runs_only_the_fetched_operations():
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    me = hvd.rank()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant([me + 1.0])
        total = hvd.allreduce(x, op=hvd.Sum)
        gathered = hvd.allgather(x)
        unused = hvd.allreduce(2.0 * x)
        if pair.included():
            of_two = hvd.allreduce(x, op=hvd.Sum, process_set=pair)
            hvd.barrier(process_set=pair)
            assert session.run(of_two) == [4.0]
        results = [session.run(total).tolist(), session.run(gathered).tolist()]
        both = [each.tolist() for each in session.run([gathered, total])]
    assert results == [[6.0], [1.0, 2.0, 3.0]]
    assert unused is not None and both == results[::-1]
    assert hvd.metrics().get("op_count.allreduce") == (2 if me == 1 else 3)
    assert hvd.metrics().get("op_count.barrier", 0) == 0


@on_tensorflow_ranks(2)
def test_a_monitored_session_trains_with_an_optimizer_of_tensorflow_1():
    v1 = tf.compat.v1
    me = hvd.rank()
    with tf.Graph().as_default():
        x = tf.constant(np.arange(8, dtype="float32").reshape(4, 2) * (me + 1))
        weight = v1.get_variable("weight", initializer=tf.constant([[me + 1.0], [0.5]]))
        table = v1.get_variable("table", initializer=tf.ones([5, 2]) * me)
        v1.get_variable("unused", initializer=tf.zeros([2]))
        rows = tf.nn.embedding_lookup(table, tf.constant([me, 2]))
        loss = tf.reduce_mean(tf.square(x @ weight)) + tf.reduce_sum(tf.square(rows - 1.0))
        plain = v1.train.MomentumOptimizer(0.001, 0.9)
        optimizer = hvd.DistributedOptimizer(plain)
        with pytest.raises(ValueError, match="is distributed already"):
            hvd.DistributedOptimizer(optimizer)
        with pytest.raises(hvd.HorocacheError, match="backward_passes_per_step is not supported"):
            hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
        step = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
        assert optimizer.get_slot_names() == ["momentum"]
        hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=4)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                _, *values = session.run([step, weight, table])
    with pytest.raises(hvd.HorocacheError, match="use broadcast_variables"):
        hvd.broadcast_global_variables(0)
    first, second = hvd.allgather_object([value.tobytes() for value in values])
    assert first == second
    assert values[0][0, 0] < 1.0
