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
