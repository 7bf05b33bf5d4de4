"""Every public name of ``horovod.tensorflow`` and ``horovod.keras`` 0.28 for TensorFlow 2, with its arguments."""

from __future__ import annotations

import importlib

import pytest

from .signatures import check_signature, lines_of

pytest.importorskip("tensorflow")

# From Horovod 0.28: horovod/tensorflow/__init__.py, mpi_ops.py and functions.py; tensorflow/keras and keras.
TENSORFLOW = """
allreduce(tensor, average=None, {devices}, {compression}, op=None, {scales}, name=None, {ps}, ignore_name_scope=False)
grouped_allreduce(tensors, average=None, {devices}, {compression}, op=None, {scales}, {ps}, ignore_name_scope=False, \
name=None)
reducescatter(tensor, device_dense='', {compression}, op=Average, name=None, {ps}, ignore_name_scope=False, {scales})
grouped_reducescatter(tensors, device_dense='', {compression}, op=Average, {ps}, {scales})
allgather(tensor, name=None, ignore_name_scope=False, {ps})
grouped_allgather(tensors, name=None, ignore_name_scope=False, {ps})
broadcast(tensor, root_rank, name=None, ignore_name_scope=False, {ps})
broadcast_(variables, root_rank, name=None, {ps})
alltoall(tensor, splits=None, name=None, ignore_name_scope=False, {ps})
join()
size_op(process_set_id=0, name=None)
process_set_included_op(process_set_id=0, name=None)
local_size_op(name=None)
rank_op(name=None)
local_rank_op(name=None)
broadcast_variables(variables, root_rank, {ps}, inplace=False)
broadcast_object(obj, root_rank=0, session=None, name=None, {ps})
broadcast_object_fn(root_rank=0, session=None, name=None, {ps})
allgather_object(obj, session=None, name=None, {ps})
broadcast_global_variables(root_rank)
BroadcastGlobalVariablesHook(root_rank, device='')
DistributedOptimizer(optimizer, name=None, use_locking=False, {devices}, {compression}, sparse_as_dense=False, \
backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, average_aggregated_gradients=False, \
num_groups=0, groups=None, {ps}, scale_local_gradients=True)
DistributedGradientTape(gradtape, {devices}, {compression}, sparse_as_dense=False, op=Average, \
gradient_predivide_factor=1.0, num_groups=0, groups=None, {ps}, scale_local_gradients=True)
PartialDistributedGradientTape(gradtape, {devices}, {compression}, sparse_as_dense=False, op=Average, \
gradient_predivide_factor=1.0, num_groups=0, groups=None, {ps}, local_layers=None, scale_local_gradients=True)
SyncBatchNormalization(fused=False)
init(comm=None, process_sets=None)
start_timeline(file_path, mark_cycles=False)
"""
KERAS = """
DistributedOptimizer(optimizer, name=None, {devices}, {compression}, sparse_as_dense=False, \
gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1, average_aggregated_gradients=False, \
num_groups=0, groups=None, {ps}, scale_local_gradients=True)
allreduce(value, name=None, average=None, {scales}, op=None, {compression})
allgather(value, name=None)
broadcast(value, root_rank, name=None)
reducescatter(value, name=None, op=Average)
broadcast_global_variables(root_rank)
load_model(filepath, custom_optimizers=None, custom_objects=None, {compression})
"""
CALLBACKS = """
BroadcastGlobalVariablesCallback(root_rank, device='', local_variables=None)
MetricAverageCallback(device='')
LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, \
momentum_correction=True, steps_per_epoch=None)
LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0)
BestModelCheckpoint(monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', save_freq='epoch')
"""
CASES = [
    (module, line)
    for module, signatures in (
        ("horocache.tensorflow", TENSORFLOW),
        ("horocache.keras", KERAS),
        ("horocache.keras.callbacks", CALLBACKS),
    )
    for line in lines_of(signatures)
]


@pytest.mark.parametrize(("module", "line"), CASES, ids=lambda value: value.partition("(")[0])
def test_functions_have_horovods_arguments(module, line):
    check_signature(line, importlib.import_module(module))
