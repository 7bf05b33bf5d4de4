"""Programs that import horovod: with the launcher, with the compat module, and with worker processes."""

import sys
import textwrap

import pytest

PROGRAM = """
import os, sys
import torch
import horovod
import horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce, gpu_available, num_rank_is_power_2, Sum
from horovod.torch.optimizer import split_list
from horovod.common.util import extension_available
from horovod.common.exceptions import HorovodInternalError
from horovod.runner import run
import horovod.torch.compression
from horovod.torch.compression import Compressor, FP16Compressor, NoneCompressor

hvd.init()
names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
ours = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
if "HOROVOD_RANK" in os.environ:
    assert [os.environ["HOROVOD_" + name] for name in names] == [str(x) for x in ours]
    assert os.environ["HOROVOD_HOSTNAME"]
assert horovod.__version__ == "0.28.1"
assert hvd.mpi_ops.allreduce is hvd.allreduce and hvd.Compression.fp16 is FP16Compressor
assert hvd.Average == 0 and HorovodInternalError is hvd.HorovodInternalError
assert [len(part) for part in split_list(range(5), 2)] == [3, 2]
assert num_rank_is_power_2(4) and not gpu_available("torch") and callable(hvd.check_extension)
assert extension_available("torch") and not extension_available("mxnet")
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
print("sum", allreduce(torch.ones(1), op=Sum).item(), "arguments", sys.argv[1:])
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


def test_the_launcher_runs_an_unchanged_program(launcher, program):
    finished = launcher.run("-np", "2", "--horovod", sys.executable, str(program), "--lr", "3")
    assert finished.code == 0, finished.report()
    for rank in range(2):
        assert "sum 2.0 arguments ['--lr', '3']" in finished.of_rank(rank)


def test_the_compat_module_runs_an_unchanged_program(launcher, program):
    finished = launcher.run("-np", "2", sys.executable, "-m", "horocache.compat", str(program), "x")
    assert finished.code == 0, finished.report()
    assert "sum 2.0 arguments ['x']" in finished.of_rank(1)


@pytest.mark.parametrize("option", [[], ["--horovod"]])
def test_the_launcher_says_how_to_install_the_name_horovod(launcher, option):
    # Python ignores PYTHONPATH here, as it does in scripts that replace it.
    finished = launcher.run("-np", "1", *option, sys.executable, "-E", "-c", "import horovod")
    assert finished.code == 1
    assert "No module named 'horovod'" in finished.stderr
    assert "run 'horocache compat --install' once" in finished.stderr, finished.report()


def test_worker_processes_can_import_horovod(launcher, tmp_path):
    program = tmp_path / "workers.py"
    program.write_text(
        textwrap.dedent("""
        import multiprocessing

        def is_initialized(_):
            import horovod.torch as hvd
            return hvd.is_initialized()

        if __name__ == "__main__":
            import horovod.torch as hvd
            hvd.init()
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print("workers", pool.map(is_initialized, [0]))
        """)
    )
    finished = launcher.run("-np", "1", sys.executable, "-m", "horocache.compat", str(program), deadline_s=60.0)
    assert finished.code == 0, finished.report()
    assert "workers [False]" in finished.of_rank(0)


TENSORFLOW = """
import sys
import keras
import numpy as np
import tensorflow as tf
import horovod.keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
from horovod.keras.callbacks import MetricAverageCallback
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_object
from horovod.tensorflow.mpi_ops import _basics, allreduce, size_op
from horovod.tensorflow.util import _cache, _executing_eagerly, refs_to_vars, vars_to_refs

hvd.init()
assert hvd_keras.size() == hvd.size() == int(size_op()) == 2
assert broadcast_object(hvd.rank(), root_rank=1) == 1 and hvd.Compression is Compression
assert not hasattr(hvd, "elastic") and not hasattr(hvd_keras, "elastic")
assert _executing_eagerly() and not tf.function(_executing_eagerly)() and not hvd.gpu_available("tensorflow")
assert hvd.split_list([1, 2, 3], 2) == [[1, 2], [3]]
variables = [tf.Variable(1.0), tf.Variable(2.0)]
assert all(a is b for a, b in zip(refs_to_vars(vars_to_refs(variables)), variables))
assert _basics._get_process_set_ids_and_ranks() == {0: [0, 1]}
# The two Keras modules have different orders of the arguments.
front = (None, "", "", hvd.Compression.none, False, 1.0, hvd.Average)
of_keras = horovod.keras.DistributedOptimizer(keras.optimizers.SGD(1.0), *front, 3)
of_tensorflow = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(1.0), *front, 3)
assert [each.debug_state().options.num_groups for each in (of_keras, of_tensorflow)] == [3, 0]
assert [each.gradient_accumulation_steps for each in (of_keras, of_tensorflow)] == [None, 3]
part = horovod.keras.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), *front, None, hvd.global_process_set, None)
part.register_local_var(variables[0])
kept = horovod.keras.callbacks.BestModelCheckpoint("accuracy", 0, "max", 7)
assert (kept.save_weights_only, kept.mode, kept.save_freq) == (False, "max", 7)
calls = _cache(lambda *numbers: [numbers])
assert calls(1, 2) is calls(1, 2) and calls(1, 2) is not calls(2, 1)

layer = tf.Variable([1.0 + hvd.rank()])

@tf.function
def training_step(x, first_batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer * x)
    tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16)
    layer.assign_sub(tape.gradient(loss, [layer])[0])
    if first_batch:
        hvd.broadcast_variables([layer], root_rank=0)
    return loss

for batch in range(3):
    training_step(tf.constant([hvd.rank() + 1.0]), batch == 0)

model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
model.compile(loss="mse", optimizer=optimizer, metrics=["mae"])
callbacks = [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]
callbacks.append(hvd_keras.callbacks.LearningRateWarmupCallback(initial_lr=0.002, warmup_epochs=2, verbose=0))
history = model.fit(np.ones((8, 2)), np.ones((8, 1)) * hvd.rank(), 4, 2, verbose=0, callbacks=callbacks).history
print("layer", layer.numpy().tolist(), "loss", round(float(history["loss"][-1]), 6))
"""


def test_the_launcher_runs_an_unchanged_tensorflow_program(launcher, tmp_path):
    pytest.importorskip("tensorflow")
    program = tmp_path / "train.py"
    program.write_text(TENSORFLOW)
    finished = launcher.run("-np", "2", "--horovod", sys.executable, str(program), deadline_s=100.0)
    assert finished.code == 0, finished.report()
    (first,), (second,) = ([line for line in finished.of_rank(rank) if line.startswith("layer")] for rank in range(2))
    # From rank 0's 1.0, three steps of the mean of 1 and 2.
    assert first == second and "layer [-3.5]" in first, finished.report()
