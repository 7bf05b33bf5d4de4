"""The cost of importing, and the public names."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import horocache


def test_importing_the_package_loads_no_framework_and_not_the_core():
    heavy = "torch tensorflow numpy mpi4py rich cffi cloudpickle psutil horocache._core"
    code = f"import sys, horocache; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_using_numpy_arrays_does_not_load_torch():
    code = "import sys, horocache as hc; hc.allreduce, hc.broadcast_object; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_public_name_exists_and_is_documented():
    for name in horocache.__all__:
        value = getattr(horocache, name)
        if callable(value):
            assert inspect.getdoc(value), name
    assert set(horocache.__all__) <= set(dir(horocache))
    with pytest.raises(AttributeError, match="no_such_name"):
        horocache.no_such_name  # noqa: B018


def test_argument_orders_are_horovods():
    def names(function):
        found = inspect.signature(function).parameters.values()
        return [parameter.name for parameter in found if parameter.kind is not parameter.KEYWORD_ONLY]

    scales = ["prescale_factor", "postscale_factor"]
    reduce = ["average", "name", "op", *scales, "process_set"]
    compressed = ["average", "name", "compression", "op", *scales, "process_set"]
    import horocache.torch as hvd

    for package in (horocache, hvd):
        for name in ("allreduce_async", "allreduce_async_", "allreduce_"):
            assert names(getattr(package, name)) == ["tensor", *reduce]
            assert names(getattr(package, f"grouped_{name}")) == ["tensors", *reduce]
        assert names(package.allreduce) == ["tensor", *compressed]
        assert names(package.grouped_allreduce) == ["tensors", *compressed]
        for name in ("allgather", "allgather_async"):
            assert names(getattr(package, name)) == ["tensor", "name", "process_set"]
            assert names(getattr(package, f"grouped_{name}")) == ["tensors", "name", "process_set"]
        for name in ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"):
            assert names(getattr(package, name)) == ["tensor", "root_rank", "name", "process_set"]
        for name in ("alltoall", "alltoall_async"):
            assert names(getattr(package, name)) == ["tensor", "splits", "name", "process_set"]
        scatter = ["op", "process_set", *scales]
        assert names(package.reducescatter) == ["tensor", "name", "compression", *scatter]
        assert names(package.grouped_reducescatter) == ["tensors", "name", "compression", *scatter]
        assert names(package.reducescatter_async) == ["tensor", "name", *scatter]
        assert names(package.grouped_reducescatter_async) == ["tensors", "name", *scatter]
        assert names(package.broadcast_object) == ["obj", "root_rank", "name", "process_set"]
        assert names(package.allgather_object)[:2] == ["obj", "name"]
        for name in ("reduce", "gather", "scatter", "gatherv", "scatterv", "allgatherv", "alltoallv", "reducescatterv"):
            assert names(getattr(package, name)) == names(getattr(package, f"{name}_async")) == ["tensor"]
        assert names(package.join) == ["device", "process_set", "divide_by"]
        assert names(package.barrier) == ["process_set"]
        assert names(package.init)[:2] == ["comm", "process_sets"]
    assert names(hvd.DistributedOptimizer) == [
        *("optimizer", "named_parameters", "compression", "backward_passes_per_step", "op"),
        *("gradient_predivide_factor", "num_groups", "groups", "sparse_as_dense", "process_set"),
    ]
    assert names(hvd.sparse_allreduce_async) == ["tensor", "name", "op", "process_set"]
    assert names(hvd.broadcast_parameters) == ["params", "root_rank", "process_set"]
    assert names(hvd.broadcast_optimizer_state) == ["optimizer", "root_rank", "model", "process_set"]
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)


def test_every_operation_takes_a_backend_by_keyword_in_every_form():
    import horocache.torch as hvd

    kinds = ["reduce", "gather", "scatter", "alltoall", "broadcast", "barrier"]
    for package in (horocache, hvd):
        operations = [name for name in package.__all__ if any(kind in name for kind in kinds)]
        operations = [name for name in operations if not name.endswith(("_parameters", "_state"))]
        assert len(operations) >= 43
        for name in operations:
            parameter = inspect.signature(getattr(package, name)).parameters["backend"]
            assert parameter.kind is parameter.KEYWORD_ONLY and parameter.default is None, name


def test_no_module_has_the_name_of_a_public_function():
    modules = {path.stem for path in Path(horocache.__file__).parent.iterdir()}
    assert not modules & set(horocache.__all__)
