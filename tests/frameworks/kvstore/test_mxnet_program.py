"""A program with the calls of MXNet's KVStore runs with another import, on arrays of this process's framework."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc


class Arrays:
    """The arrays that the program uses besides the store."""

    @staticmethod
    def ones(shape):
        return np.ones(shape, np.float32)

    @staticmethod
    def zeros(shape):
        return np.zeros(shape, np.float32)


class Sum:
    """An optimizer with MXNet's interface, which adds the gradient to the weight."""

    def create_state(self, index, weight):
        return np.zeros_like(weight)

    def update(self, index, weight, grad, state):
        weight += grad
        state[:] = weight


def train(mx_kvstore, nd, kind: str) -> dict[str, list[float]]:
    """The program."""
    kv = mx_kvstore.create(kind)
    shape, keys, big = (4, 4), [5, 7, 11], (120, 12)
    seen: dict[str, list[float]] = {"workers": [kv.rank, kv.num_workers]}
    kv.init(3, nd.ones(shape))
    kv.init(keys, [nd.ones(shape)] * len(keys))
    kv.init(99, nd.ones(big))
    value = nd.zeros(shape)
    kv.pull(3, out=value)
    seen["init"] = value[0].tolist()
    kv.push(3, nd.ones(shape) * 8)
    kv.pull(3, out=value)
    seen["assigned"] = value[0].tolist()
    kv.push(keys, [nd.ones(shape) * key for key in keys])
    outs = [nd.zeros(shape) for _ in keys]
    kv.pull(keys, out=outs)
    seen["keys"] = [float(out[0, 0]) for out in outs]
    devices = [nd.ones(shape) * (device + 1) for device in range(4)]
    kv.push(3, devices)
    kv.pull(3, out=devices)
    seen["devices"] = [float(device[0, 0]) for device in devices]
    kv.set_optimizer(Sum())
    kv.pull(3, out=value)
    before = value.copy()
    for step in range(3):
        kv.push(3, nd.ones(shape) * (step + 1), priority=-3)
        kv.push(99, nd.ones(big), priority=-99)
    kv.pull(3, out=value)
    large = nd.zeros(big)
    kv.pull(99, out=large)
    seen["updated"] = [float((value - before)[0, 0]), float(large[5, 5])]
    rows = nd.zeros(big)
    kv.row_sparse_pull(99, out=rows, row_ids=np.array([3, 1, 3]))
    seen["rows"] = np.flatnonzero(rows[:, 0]).tolist()
    kv.barrier()
    seen["dead"] = [kv.get_num_dead_node(0)]
    return seen


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("kind", ["local", "device", "dist_sync", "dist_device_sync", "depCha", "conCum", "funnel"])
def test_a_program_of_mxnet_runs_with_another_import(kind):
    from horocache import kvstore

    workers = 1 if kind in ("local", "device") else hc.size()
    seen = train(kvstore, Arrays, kind)
    assert seen == {
        "workers": [hc.rank() if workers > 1 else 0, workers],
        "init": [1.0] * 4,
        "assigned": [8.0 * workers] * 4,
        "keys": [5.0 * workers, 7.0 * workers, 11.0 * workers],
        "devices": [10.0 * workers] * 4,
        "updated": [6.0 * workers, 1.0 + 3.0 * workers],
        "rows": [1, 3],
        "dead": [0],
    }


class DLPackArray:
    """Has of MXNet's NDArray what the store uses: its memory by DLPack."""

    def __init__(self, torch, values) -> None:
        self._torch = torch
        self.tensor = torch.as_tensor(values)

    @property
    def dtype(self):
        return self.tensor.dtype

    def to_dlpack_for_write(self):
        return self._torch.utils.dlpack.to_dlpack(self.tensor)


@on_ranks(1, 2)
@pytest.mark.parametrize("kind", ["negotiated", "depcha", "dist_sync", "local"])
def test_arrays_of_mxnet_are_read_and_written_where_they_are(kind):
    torch = pytest.importorskip("torch")
    from horocache import kvstore

    workers = 1 if kind == "local" else hc.size()
    kv = kvstore.create(kind)
    kv.init("a", DLPackArray(torch, np.zeros((2, 3), np.float32)))
    gradient, out = (DLPackArray(torch, np.full((2, 3), value, np.float32)) for value in (2.0, 0.0))
    transposed = DLPackArray(torch, torch.zeros(3, 2).T)
    kv.push("a", gradient)
    kv.pull("a", [out, transposed])
    assert out.tensor.tolist() == transposed.tensor.tolist() == [[2.0 * workers] * 3] * 2
    kv.pushpull("a", gradient)
    assert gradient.tensor.tolist() == [[2.0 * workers] * 3] * 2
    scalar, empty, small = (
        DLPackArray(torch, value) for value in (np.array(7), np.empty((0, 2)), np.array([1, -1], np.int8))
    )
    kv.init(["b", "c", "d"], [scalar, empty, small])
    outs = [DLPackArray(torch, np.zeros_like(each.tensor.numpy())) for each in (scalar, empty, small)]
    kv.pull(["b", "c", "d"], outs)
    assert [each.tensor.tolist() for each in outs] == [7, [], [1, -1]]
    with pytest.raises(hc.UnsupportedError, match="arrays of type"):
        kv.init("e", DLPackArray(torch, torch.zeros(2, dtype=torch.bfloat16)))
    kv.set_updater(lambda key, pushed, stored: {}[key])
    with pytest.raises((KeyError, hc.InputFailedError), match="a"):
        kv.push("a", gradient)
        kv.pull("a", out)
    kv.close()


@on_ranks(1)
def test_arrays_of_mxnet_need_a_store_that_blocks():
    torch = pytest.importorskip("torch")
    from horocache import kvstore

    kv = kvstore.create("negotiated", blocking=False)
    kv.init("a", np.zeros(3))
    with pytest.raises(hc.UnsupportedError, match="takes no arrays of MXNet's as out; leave blocking on"):
        kv.pull("a", DLPackArray(torch, np.zeros(3)))
    kv.close()
