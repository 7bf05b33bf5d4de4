"""Stores of type dist_sync: parameter servers in the ranks, and as ranks of their own."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache import kvstore
from horocache.errors import InputFailedError, InvalidArgumentError, MismatchError, UnsupportedError

LIMIT = 60.0  # nothing takes that long


@on_ranks(1, 2, 4)
@pytest.mark.parametrize("blocking", [True, False])
def test_k1_pushed_values_are_summed_exactly(blocking):
    store = kvstore.create("dist_sync", blocking=blocking)
    kinds = [((0,), "float32"), ((1,), "float64"), ((), "int32"), ((30, 7), "float32"), ((50_000,), "float32")]
    keys = [f"key {number}" for number in range(10)]
    values = [np.zeros(*kinds[number % 5]) for number in range(10)]
    store.init(keys, values)
    outs = [np.empty_like(value) for value in values]
    for step in range(3):
        for number, key in enumerate(keys):
            values[number][...] = number + step + hc.rank()
            store.push(key, values[number])
        store.pull(keys, outs)
        store.wait(*outs, timeout=LIMIT)
        expected = [sum(number + step + rank for rank in range(hc.size())) for number in range(10)]
        assert all(set(out.reshape(-1)) <= {total} for out, total in zip(outs, expected, strict=True))
        store.pushpull(keys, values)
        store.wait(*values, timeout=LIMIT)
        assert all(set(value.reshape(-1)) <= {total} for value, total in zip(values, expected, strict=True))
    store.close()


@on_ranks(3)
def test_large_values_are_cut_into_parts_for_all_servers():
    store = kvstore.create("dist_sync")
    elements = 1_000_003
    store.init("large", np.full(elements, float(hc.rank()), np.float32))
    out = np.full(elements, -1.0, np.float32)
    store.pull("large", out)
    assert not out.any()  # K2
    value = np.arange(elements, dtype=np.float32) % 1000
    store.pushpull("large", value, out)
    np.testing.assert_array_equal(out, 3 * value)
    store.set_gradient_compression({"type": "2bit", "threshold": 100.0})
    store.pushpull("large", np.full(elements, 150.0, np.float32), out)
    assert set(out) == {300.0}
    store.close()


@on_ranks(2)
def test_k3_k4_wrong_calls_are_errors_and_the_store_stays_usable():
    store = kvstore.create("dist_sync")
    with pytest.raises(MismatchError, match="shape"):
        store.init("a", np.ones(3 + hc.rank()))
    store.init("a", np.ones(3))
    for call, text in (
        (lambda: store.init("a", np.ones(3)), "duplicate init"),
        (lambda: store.push("b", np.ones(3)), "does not exist"),
        (lambda: store.pull("a", np.ones(4)), "'a': out is"),
        (lambda: store.set_updater(3), "an updater is a function"),
        (lambda: kvstore.create("dist_sync", servers=2), "servers must be from 1 to 1 of 2 ranks; it is 2"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            call()
    with pytest.raises(UnsupportedError, match="'c': a store of type 'dist_sync' takes float16"):
        store.init("c", np.ones(3, np.complex64))
    out = np.empty(3)
    store.pushpull("a", np.ones(3), out)
    assert out[0] == 2.0
    store.close()
    store.close()


@on_ranks(2, 3)
def test_k11_values_follow_the_program_order_and_workers_may_pull_differently():
    store = kvstore.create("dist_sync", blocking=False)
    store.init("a", np.zeros(2))
    outs = [np.empty(2) for _ in range(4)]
    store.pull("a", outs[0])
    store.push("a", np.full(2, 1.0))
    if hc.rank() == 0:
        store.pull("a", outs[1])
    store.push("a", np.full(2, 2.0))
    store.pull("a", [outs[2], outs[3]])
    store.barrier()
    assert [out[0] for out in (outs[0], *outs[2:])] == [0.0, 2.0 * hc.size(), 2.0 * hc.size()]
    assert hc.rank() != 0 or outs[1][0] == hc.size()
    store.close()


@on_ranks(2)
def test_k14_rows():
    store = kvstore.create("dist_sync")
    store.init("a", np.arange(12.0).reshape(6, 2))
    store.push("a", np.ones((6, 2)))
    out = np.full((6, 2), -1.0)
    store.row_sparse_pull("a", out, row_ids=np.array([hc.rank(), 4, 4]))
    assert np.flatnonzero(out[:, 0]).tolist() == [hc.rank(), 4]
    assert set(out[4]) == {2.0}
    store.close()


def add(key, pushed, stored):
    stored += pushed / 2


def subtract(key, pushed, stored):
    stored -= pushed / 2


def refuse(key, pushed, stored):
    raise ValueError(f"no update of {key}")


@on_ranks(2, 3)
def test_k15_an_updater_runs_on_the_server_and_its_exception_is_one_of_the_pull():
    store = kvstore.create("dist_sync")
    store.init(["a", "b"], [np.zeros(2), np.zeros(2)])
    store.set_updater(add)
    out = np.empty(2)
    for step in range(3):
        store.pushpull("a", np.ones(2), out)
        assert out[0] == (step + 1) * hc.size() / 2
    store.set_updater(refuse)
    store.push("a", np.ones(2))
    with pytest.raises(InputFailedError, match=r"the update of key 'a' failed on its server, rank \d.*no update of a"):
        store.pull("a", out)
    store.set_updater(add)
    store.pushpull("a", np.ones(2), out)
    assert out[0] == 4 * hc.size() / 2
    store.close()


@on_ranks(2)
def test_a_torch_optimizer_runs_on_the_server():
    torch = pytest.importorskip("torch")
    store = kvstore.create("dist_sync")
    weight = torch.ones(3, 2)
    store.init(0, weight)
    with pytest.raises(InvalidArgumentError):
        store.set_optimizer("sgd")
    store.set_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.5))
    model = torch.nn.Parameter(torch.ones(3, 2))
    single = torch.optim.SGD([model], lr=0.5, momentum=0.5)
    for step in range(3):
        gradient = torch.full((3, 2), 1.0 + step + hc.rank())
        store.pushpull(0, gradient, weight)
        model.grad = torch.full((3, 2), 2 * (1.0 + step) + 1.0)
        single.step()
        assert torch.equal(weight, model)
    store.close()


@on_ranks(2, 3)
def test_an_error_of_one_worker_ends_no_store():
    store = kvstore.create("dist_sync", blocking=False)
    store.init("a", np.zeros(2))
    lock = threading.Lock()
    with pytest.raises(InvalidArgumentError if hc.rank() == 0 else InputFailedError, match="pickle"):
        store.set_updater(lambda key, pushed, stored: lock.acquire())
    store.set_updater(refuse)
    store.push("a", np.ones(2))
    if hc.rank() == 0:
        store.pull("a", np.empty(2))
        with pytest.raises(InputFailedError, match="no update of a"):
            store.close()
    else:
        store.close()
    store.close()


@on_ranks(3)
def test_what_was_pushed_before_a_new_updater_gets_the_old_one():
    store = kvstore.create("dist_sync", blocking=False)
    store.init("a", np.zeros(2))
    out = np.empty(2)
    for step in range(10):
        store.set_updater(add if step % 2 else subtract)
        store.push("a", np.ones(2))
    store.pull("a", out)
    store.wait(out, timeout=LIMIT)
    assert out[0] == 0.0
    store.close()


@on_ranks(3, 4)
def test_servers_may_be_ranks_of_their_own():
    try:
        store = kvstore.create("dist_sync", servers=2)
    except SystemExit as end:
        assert end.code == 0 and hc.rank() >= hc.size() - 2
        return
    workers = hc.size() - 2
    assert (store.rank, store.num_workers) == (hc.rank(), workers)
    keys = list(range(6))
    store.init(keys, [np.zeros(3) for _ in keys])
    outs = [np.empty(3) for _ in keys]
    for _ in range(3):
        store.pushpull(keys, [np.full(3, 1.0 + key) for key in keys], outs)
        assert [out[0] for out in outs] == [workers * (1.0 + key) for key in keys]
    store.close()


@on_ranks(2)
def test_k18_two_stores_at_once():
    stores = [kvstore.create("dist_sync", blocking=False), kvstore.create("dist_sync", blocking=False)]
    for number, store in enumerate(stores):
        store.init("a", np.full(2, float(number)))
    values = [np.full(2, 1.0), np.full(2, 2.0)]
    for store, value in zip(stores, values, strict=True):
        store.pushpull("a", value)
    for store, value in zip(stores, values, strict=True):
        store.wait(value, timeout=LIMIT)
    assert [value[0] for value in values] == [2.0, 4.0]
    for store in stores:
        store.close()
