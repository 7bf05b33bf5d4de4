"""Every public name of ``horovod.torch`` 0.28, with its arguments in their order and with their defaults."""

from __future__ import annotations

import inspect

import pytest

from .signatures import check_signature, lines_of

hvd = pytest.importorskip("horocache.torch")

# From Horovod 0.28: horovod/common/basics.py and process_sets.py, torch/mpi_ops.py, functions.py and optimizer.py.
SIGNATURES = """
init(comm=None, process_sets=None)
shutdown()
is_initialized()
size()
local_size()
cross_size()
rank()
local_rank()
cross_rank()
mpi_threads_supported()
mpi_enabled()
mpi_built()
gloo_enabled()
gloo_built()
nccl_built()
ddl_built()
ccl_built()
cuda_built()
rocm_built()
ProcessSet(ranks_or_comm)
add_process_set(process_set)
remove_process_set(process_set)
start_timeline(file_path, mark_cycles=False)
stop_timeline()
allreduce(tensor, average=None, name=None, {compression}, op=None, {scales}, {ps})
allreduce_async(tensor, average=None, name=None, op=None, {scales}, {ps})
allreduce_async_(tensor, average=None, name=None, op=None, {scales}, {ps})
allreduce_(tensor, average=None, name=None, op=None, {scales}, {ps})
grouped_allreduce(tensors, average=None, name=None, {compression}, op=None, {scales}, {ps})
grouped_allreduce_async(tensors, average=None, name=None, op=None, {scales}, {ps})
grouped_allreduce_async_(tensors, average=None, name=None, op=None, {scales}, {ps})
grouped_allreduce_(tensors, average=None, name=None, op=None, {scales}, {ps})
sparse_allreduce_async(tensor, name, op, {ps})
allgather(tensor, name=None, {ps})
allgather_async(tensor, name=None, {ps})
grouped_allgather(tensors, name=None, {ps})
grouped_allgather_async(tensors, name=None, {ps})
broadcast(tensor, root_rank, name=None, {ps})
broadcast_async(tensor, root_rank, name=None, {ps})
broadcast_(tensor, root_rank, name=None, {ps})
broadcast_async_(tensor, root_rank, name=None, {ps})
alltoall(tensor, splits=None, name=None, {ps})
alltoall_async(tensor, splits=None, name=None, {ps})
reducescatter(tensor, name=None, {compression}, op=Average, {ps}, {scales})
reducescatter_async(tensor, name=None, op=Average, {ps}, {scales})
grouped_reducescatter(tensors, name=None, {compression}, op=Average, {ps}, {scales})
grouped_reducescatter_async(tensors, name=None, op=Average, {ps}, {scales})
poll(handle)
synchronize(handle)
join(device=-1)
barrier({ps})
broadcast_parameters(params, root_rank)
broadcast_optimizer_state(optimizer, root_rank, model=None)
broadcast_object(obj, root_rank=0, name=None, {ps})
allgather_object(obj, name=None)
DistributedOptimizer(optimizer, named_parameters=None, {compression}, backward_passes_per_step=1, op=Average, \
gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, {ps})
SyncBatchNorm(num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True)
"""


@pytest.mark.parametrize("line", lines_of(SIGNATURES), ids=lambda line: line.partition("(")[0])
def test_functions_have_horovods_arguments(line):
    assert line.partition("(")[0] in hvd.__all__
    check_signature(line, hvd)


def test_reduce_operations_have_horovods_numbers_and_errors_its_bases():
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert issubclass(hvd.HostsUpdatedInterrupt, RuntimeError) and hvd.HostsUpdatedInterrupt(True).skip_sync is True
    assert issubclass(hvd.HorovodVersionMismatchError, ImportError)
    error = hvd.HorovodVersionMismatchError("torch", "2.0", "2.1")
    assert (error.name, error.version, error.installed_version) == ("torch", "2.0", "2.1")
    assert hvd.global_process_set.process_set_id == 0
    assert hvd.Compression.none is not hvd.Compression.fp16


OPERATIONS = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]


@pytest.mark.parametrize("group", ["", "grouped_"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("form", ["", "_", "_async", "_async_"])
def test_every_collective_has_every_form(group, operation, form):
    parameters = inspect.signature(getattr(hvd, group + operation + form)).parameters
    assert "process_set" in parameters and "name" in parameters
    assert ("tensors" if group else "tensor") in parameters


@pytest.mark.parametrize(
    "name", ["join", "broadcast_parameters", "broadcast_optimizer_state", "broadcast_object", "allgather_object"]
)
def test_broadcasts_of_state_and_objects_and_join_take_a_process_set(name):
    assert "process_set" in inspect.signature(getattr(hvd, name)).parameters
