"""The native binding and the C ABI: equal results, also within one job, and no crash on invalid C arguments."""

from __future__ import annotations

import os

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.core import context


@on_ranks(2, init=False)
def test_ranks_with_different_bindings_work_together():

    hc.init(binding="native" if os.environ["HOROCACHE_RANK"] == "0" else "cffi")
    ones = np.ones(3, np.float32)
    total = ones * hc.size()
    for _ in range(2):
        np.testing.assert_array_equal(hc.allreduce(ones, op=hc.Sum), total)
        for count in (1, 3):
            for name in (None, f"group.{count}"):
                for array in hc.grouped_allreduce([ones] * count, op=hc.Sum, name=name):
                    np.testing.assert_array_equal(array, total)
        np.testing.assert_array_equal(hc.broadcast(np.full(2, hc.rank()), 1, name="root"), [1, 1])
        gathered = hc.allgather(np.full(hc.rank() + 1, hc.rank()), name="rows")
        np.testing.assert_array_equal(gathered, [0, 1, 1])
    assert hc.metrics()["cache_hits"] > 0


@pytest.mark.parametrize(
    "mistake",
    [
        "num_tensors",
        "num_splits",
        "num_receive_rows",
        "receive_starts",
        "no_output",
        "inputs",
        "shape",
        "output",
        "output_shape",
    ],
)
@on_ranks(1, init=False)
def test_the_c_abi_returns_errors_for_invalid_requests(mistake):

    hc.init(binding="cffi")
    runtime = context.current().runtime
    ffi, lib = runtime.ffi, runtime.lib
    shape, data = ffi.new("int64_t[]", [2]), ffi.new("float[]", 2)
    tensor = ffi.new("hc_tensor[]", 1)
    names = [ffi.string(lib.hc_dtype_name(i)) for i in range(lib.hc_num_dtypes())]
    tensor[0] = {"data": data, "dtype": names.index(b"float32"), "ndim": 1, "shape": shape}
    output = ffi.new("hc_tensor[]", 1)
    output[0] = tensor[0]
    request = ffi.new("hc_request*")
    request.num_tensors, request.inputs, request.outputs, request.reduce_op = 1, tensor, output, 1
    request.prescale = request.postscale = 1.0
    handle, error = ffi.new("int64_t*"), ffi.new("hc_error*")
    assert lib.hc_submit(runtime.pointer, request, handle, error) == 0
    assert lib.hc_wait(runtime.pointer, handle[0], -1.0, runtime.ffi.NULL, runtime.ffi.NULL) == 1
    if mistake == "num_tensors":
        request.num_tensors = -1
    elif mistake == "num_splits":
        request.num_splits = -1
    elif mistake == "num_receive_rows":
        request.num_receive_rows = 2  # but the pointer to the numbers is null
    elif mistake == "receive_starts":  # an allreduce has none
        starts = ffi.new("int64_t[]", [0])
        request.receive_starts, request.num_receive_starts = starts, 1
    elif mistake == "no_output":
        output[0].data = ffi.NULL
    elif mistake == "inputs":
        request.inputs = ffi.NULL
    elif mistake == "shape":
        tensor[0].shape = ffi.NULL
    elif mistake == "output_shape":
        output[0].shape = ffi.NULL
    else:
        shorter = ffi.new("int64_t[]", [1])
        output[0].shape = shorter
    assert lib.hc_submit(runtime.pointer, request, handle, error) == 1
    assert len(ffi.string(error.text)) > 0


@on_ranks(1, init=False)
def test_the_c_abi_of_settings_backends_and_the_log():
    hc.init(binding="cffi")
    runtime = context.current().runtime
    ffi, lib, pointer, null = runtime.ffi, runtime.lib, runtime.pointer, runtime.ffi.NULL
    assert lib.hc_abi_version() >= 12
    # An error message is not needed, and the number of the status is that of hc_status.
    assert lib.hc_configure(pointer, b"cache=2", null) == 1
    assert lib.hc_configure(pointer, null, null) == 15, "a null text is a defect of the caller's"
    assert lib.hc_configure(pointer, b"note=n", null) == 0
    while lib.hc_settings(pointer, null, null) == 0:
        hc.barrier()
    seen = []
    visit = ffi.callback("void(void*, const char*, const char*, const char*)", lambda *texts: seen.append(texts))
    for process_set in (-1, 1, 2**31 - 1):
        lib.hc_backends(pointer, process_set, visit, null)
    assert seen == []
    # The memory for a result of rows is checked as the tensors are.
    shape, data, place = ffi.new("int64_t[]", [2]), ffi.new("float[]", 2), ffi.new("float[]", [7, 7, 7])
    names = [ffi.string(lib.hc_dtype_name(i)) for i in range(lib.hc_num_dtypes())]
    ops = [ffi.string(lib.hc_op_name(i)) for i in range(lib.hc_num_ops())]
    tensor, output, three = ffi.new("hc_tensor[]", 1), ffi.new("hc_tensor[]", 1), ffi.new("int64_t[]", [3])
    tensor[0] = {"data": data, "dtype": names.index(b"float32"), "ndim": 1, "shape": shape}
    output[0] = {"data": place, "dtype": names.index(b"float32"), "ndim": 1, "shape": three}
    request = ffi.new("hc_request*", {"op": ops.index(b"allgather"), "num_tensors": 1, "inputs": tensor})
    request.outputs, request.root, request.prescale, request.postscale = output, -1, 1.0, 1.0
    handle, error = ffi.new("int64_t*"), ffi.new("hc_error*")

    def outcome() -> int:
        if (code := lib.hc_submit(pointer, request, handle, error)) != 0:
            return int(code)
        assert lib.hc_wait(pointer, handle[0], -1.0, null, null) == 1
        code = lib.hc_outcome(pointer, handle[0], error)
        if code == 0:
            result, rows, count = ffi.new("hc_tensor*"), ffi.new("int64_t**"), ffi.new("int*")
            assert lib.hc_num_results(pointer, handle[0]) == 1
            assert lib.hc_result(pointer, handle[0], 0, result, rows, count) == 0
            assert result.data == null and result.shape[0] == 2 and rows[0][0] == 2 and count[0] == 1
            assert lib.hc_take_result(pointer, handle[0], 0) == null
        assert lib.hc_consume(pointer, handle[0]) == 0
        return int(code)

    assert outcome() == 0
    assert list(place) == [0, 0, 7]
    three[0] = 1
    assert outcome() == 1
    assert b"the result has 8 bytes" in ffi.string(error.text)
    output[0].data = null
    assert outcome() == 1
    assert b"has 0; give it a larger one" in ffi.string(error.text)
    output[0].data, output[0].shape = data, shape
    assert outcome() == 1
    assert b"stores a result in the memory of tensor" in ffi.string(error.text)
    output[0].shape = null
    assert outcome() == 1
