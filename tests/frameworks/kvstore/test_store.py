"""K1 to K20 of key-value stores, by their numbers; K6 and K16 are in tests/mp."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import psutil
import pytest
from ranks import on_ranks

import horocache as hc
from horocache import kvstore
from horocache.dag import Engine
from horocache.errors import InputFailedError, InvalidArgumentError, MismatchError, ShutDownError, UnsupportedError

LIMIT = 60.0  # nothing takes that long
TYPES = ("negotiated", "depcha", "concom", "funnel")


def total(values) -> float:
    """The sum over the ranks of a function of the rank."""
    return sum(values(rank) for rank in range(hc.size()))


@on_ranks(1, 2, 4)
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("type_", TYPES)
def test_k1_pushed_values_are_summed_exactly(type_, blocking):
    store = kvstore.create(type_, blocking=blocking)
    kinds = [((0,), "float32"), ((1,), "float64"), ((), "int32"), ((30, 7), "float32"), ((50_000,), "float32")]
    keys = list(range(25))
    values = [np.zeros(*kinds[key % 5]) for key in keys]
    store.init(keys, values)
    outs = [np.empty_like(value) for value in values]
    for step in range(3):
        for key in keys:
            values[key][...] = key + step + hc.rank()
            store.push(key, values[key])
        for key in keys:
            store.pull(key, outs[key])
        store.wait(*outs, timeout=LIMIT)
        for key in keys:
            assert set(outs[key].reshape(-1)) <= {total(lambda rank, key=key, step=step: key + step + rank)}
            store.pushpull(key, values[key], outs[key])
        store.wait(*outs, timeout=LIMIT)
        for key in keys:
            assert set(outs[key].reshape(-1)) <= {total(lambda rank, key=key, step=step: key + step + rank)}
    assert store.info["most_in_flight"] <= {"negotiated": 0, "concom": 2}.get(type_, 1)  # K9
    store.close()


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("type_", TYPES)
def test_k1_two_hundred_keys_of_mixed_sizes_and_types(type_):
    store = kvstore.create(type_, blocking=False)
    random = np.random.default_rng(5)
    sizes = [int(size) for size in random.integers(0, 300, 199)] + [1_000_000]
    values = [
        np.full(size, 1.0 + number + hc.rank(), [np.float32, np.float64, np.int64][number % 3])
        for number, size in enumerate(sizes)
    ]
    store.init(list(range(200)), [np.zeros_like(value) for value in values])
    for key, value in enumerate(values):
        store.pushpull(key, value)
    store.wait(*values, timeout=LIMIT)
    for number, value in enumerate(values):
        assert (value == total(lambda rank, number=number: 1 + number + rank)).all()
    store.close()


@on_ranks(2, 3)
@pytest.mark.parametrize("type_", (*TYPES, "local"))
def test_k2_the_first_values_are_those_of_worker_0(type_):
    store = kvstore.create(type_)
    store.init("a", np.full(3, float(hc.rank())))
    out = np.empty(3)
    store.pull("a", out)
    assert out.tolist() == [float(hc.rank()) if type_ == "local" else 0.0] * 3
    other = np.empty(2)
    store.broadcast("b", np.full(2, 5.0 + hc.rank()), other)
    assert other[0] == (5.0 + hc.rank() if type_ == "local" else 5.0)
    assert (store.rank, store.num_workers) == ((0, 1) if type_ == "local" else (hc.rank(), hc.size()))
    store.close()


def refused(call, text: str, error: type = InvalidArgumentError) -> None:
    with pytest.raises(error, match=text):
        call()


@on_ranks(1, 2)
@pytest.mark.parametrize("type_", ("negotiated", "depcha"))
def test_k3_wrong_calls_are_errors_that_name_the_key_and_leave_the_store_usable(type_):
    store = kvstore.create(type_)
    x = np.ones(3)
    store.init("a", x)
    refused(lambda: store.init("a", x), "duplicate init of key 'a'")
    refused(lambda: store.init(["b", "a"], [x, x]), "duplicate init of key 'a'")
    refused(lambda: store.init("c", [x, x]), "'c'.*one value")
    refused(lambda: store.push("b", x), "key 'b' does not exist. Did you init")
    refused(lambda: store.pull("b", x), "key 'b' does not exist")
    refused(lambda: store.push(3, x), "key 3 is of type int, and the store's keys are of type str")
    refused(lambda: store.push(None, x), "not None")
    refused(lambda: store.push("a", None), "not None")
    refused(lambda: store.pull("a"), "an out are needed")
    refused(lambda: store.push(["a", "a"], [x, x]), "must not repeat one: a")
    refused(
        lambda: store.push(["a"], [x, x, 3]),
        "'a': value must be a torch tensor, a NumPy array or an MXNet array, not int",
    )
    refused(lambda: store.push(["a", "b"], [x, x, x]), "2 keys need a list of values, equally many")
    refused(
        lambda: store.push("a", np.ones(4)),
        r"'a': value is numpy float64\[4\], and init.. was given numpy float64\[3\]",
    )
    refused(lambda: store.push("a", np.ones(3, np.float32)), r"'a': value is numpy float32\[3\]")
    refused(lambda: store.pull("a", np.ones(4)), r"'a': out is numpy float64\[4\]")
    refused(lambda: store.pushpull("a", x, np.ones(4)), r"'a': out is numpy float64\[4\]")
    refused(lambda: store.push(2.5, x), "a str or an int, not 2.5")
    refused(lambda: store.set_updater(None), "an updater is a function")
    refused(lambda: store.set_optimizer(None), "set_optimizer.. takes a function that makes a torch optimizer")
    refused(lambda: store.is_capable("flying"), "unknown capability 'flying'")
    refused(lambda: kvstore.create("dist_async"), "unknown type of store 'dist_async'; there are negotiated")
    refused(lambda: kvstore.create(None), "is a str, not None")
    assert store.is_capable("optimizer")
    store.push("a", x)
    out = np.empty(3)
    store.pull("a", out)
    assert out[0] == hc.size()
    store.close()


@on_ranks(2, 3)
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("what", ["shape", "dtype"])
def test_k4_what_differs_between_ranks_is_an_error_on_all_of_them(type_, what):
    store = kvstore.create(type_)
    odd = hc.rank() == hc.size() - 1
    value = np.ones(4 if what == "shape" and odd else 3, np.float32 if what == "dtype" and odd else np.float64)
    refused(lambda: store.init("a", value), f"rank .* submitted {what}", MismatchError)
    store.init("a", np.ones(3))
    store.push("a", np.ones(3))
    out = np.empty(3)
    store.pull("a", out)
    assert out[0] == hc.size()
    store.close()


@on_ranks(2, 4)
def test_k5_a_negotiated_store_takes_any_order_of_keys():
    store = kvstore.create("negotiated", blocking=False)
    keys = [f"k{number}" for number in range(30)]
    store.init(keys, [np.zeros(5) for _ in keys])
    outs = {key: np.empty(5) for key in keys}
    for step in range(4):
        for number in np.random.default_rng([hc.rank(), step]).permutation(30):
            store.push(keys[number], np.full(5, float(number + step)))
        for number in np.random.default_rng([step, hc.rank()]).permutation(30):
            store.pull(keys[number], outs[keys[number]])
        store.wait(*outs.values(), timeout=LIMIT)
        assert [outs[key][0] for key in keys] == [hc.size() * float(number + step) for number in range(30)]
    store.close()


@on_ranks(2, 3)
@pytest.mark.parametrize("type_", ("depcha", "concom", "funnel"))
def test_k5_a_static_order_is_checked(type_):
    store = kvstore.create(type_)
    keys = ["a", "b", "c", "d"]
    store.init(keys, [np.zeros(3) for _ in keys])
    out = np.empty(3)
    for _ in range(3):
        for key in keys:
            store.pushpull(key, np.ones(3), out)
            assert out[0] == hc.size()
    order = ["b", "a", "c", "d"] if hc.rank() == 1 else keys
    with pytest.raises(MismatchError, match=r"kvstore0\.[ab]'"):
        for key in order:
            store.pushpull(key, np.ones(3), out)
            if type_ == "concom":
                store.wait(out, timeout=LIMIT)
    with pytest.raises(MismatchError, match="The store has stopped; create a new one"):
        for key in keys:
            store.push(key, np.ones(3))
    store.close()
    other = kvstore.create(type_)
    other.init("a", np.zeros(3))
    other.pushpull("a", np.ones(3), out)
    assert out[0] == hc.size()
    other.close()


@on_ranks(2)
def test_k7_lanes_need_threads():
    engine = Engine({"cpu": 1, "comm": 1})
    refused(lambda: kvstore.create("concom", lanes=2, engine=engine), "2 lanes needs an engine with as many threads")
    refused(lambda: kvstore.create("depcha", engine=Engine()), "1 lanes needs an engine")
    refused(lambda: kvstore.create(engine=Engine({"copy": 1})), "needs an engine with a queue 'cpu'")
    refused(lambda: kvstore.create("concom", lanes=0), "lanes must be from 1 to 64")
    store = kvstore.create("depcha", engine=engine)
    store.init(1, np.zeros(3))
    store.pushpull(1, x := np.ones(3))
    assert x[0] == 2.0
    store.close()
    engine.push(lambda: None)  # it is the program's
    engine.close()


@on_ranks(2)
def test_k7_lanes_do_not_deadlock_whatever_is_ready_first():
    for seed in range(100):
        random = np.random.default_rng([seed, hc.rank()])
        engine = Engine({"cpu": 4, "comm": 3})
        store = kvstore.create("concom", lanes=3, engine=engine, blocking=False)
        keys = list(range(12))
        store.init(keys, [np.zeros(2) for _ in keys])
        values = [np.full(2, 1.0 + key) for key in keys]
        gate = threading.Event()
        for key in random.permutation(12):  # the values are ready in an order of this rank's
            engine.push(lambda gate=gate: gate.wait(LIMIT), writes=[values[key]], priority=int(random.integers(5)))
        for key in keys:
            store.pushpull(key, values[key])
        gate.set()
        store.wait(*values, timeout=LIMIT)
        assert [value[0] for value in values] == [2.0 * (1.0 + key) for key in keys]
        store.close()
        engine.close()


@on_ranks(2)
@pytest.mark.parametrize("type_", TYPES)
def test_k9_the_calls_of_depcha_return_while_nothing_has_been_summed(type_):
    engine = Engine({"cpu": 2, "comm": 2})
    store = kvstore.create(type_, engine=engine, blocking=False)
    keys = list(range(8))
    store.init(keys, [np.zeros(3) for _ in keys])
    values = [np.ones(3) for _ in keys]
    gate = threading.Event()
    if type_ == "funnel":  # whose calls wait
        gate.set()
    engine.push(lambda: gate.wait(LIMIT), writes=values)  # as long as it is shut, no value is ready
    for key, value in zip(keys, values, strict=True):
        store.pushpull(key, value)
    assert (store.info["most_in_flight"] == 0) == (type_ != "funnel")
    gate.set()
    store.wait(*values, timeout=LIMIT)
    assert {float(value[0]) for value in values} == {2.0}
    assert store.info["most_in_flight"] in {"negotiated": (0,), "concom": (1, 2)}.get(type_, (1,))
    store.close()
    engine.close()


@on_ranks(2)
@pytest.mark.parametrize("type_", TYPES)
def test_k11_values_follow_the_program_order(type_):
    store = kvstore.create(type_, blocking=False)
    store.init("a", np.zeros(2))
    outs = [np.empty(2) for _ in range(5)]
    store.pull("a", outs[0])
    store.push("a", np.full(2, 1.0))
    store.pull("a", outs[1])
    store.push("a", np.full(2, 2.0))
    store.pull("a", outs[2])
    store.pull("a", [outs[3], outs[4]])
    store.wait(*outs, timeout=LIMIT)
    assert [out[0] for out in outs] == [0.0, 2.0, 4.0, 4.0, 4.0]
    store.close()


@on_ranks(2)
@pytest.mark.parametrize("type_", TYPES)
def test_k12_lists_of_keys_and_several_values_for_a_key(type_):
    store = kvstore.create(type_)
    store.init([1, 2], [np.zeros(2), np.zeros(3)])
    one, two = [np.full(2, 1.0), np.full(2, 10.0)], [np.full(3, 2.0), np.full(3, 20.0)]
    store.push([1, 2], [one, two])
    a, b, c, d = np.empty(2), np.empty(2), np.empty(3), np.empty(3)
    store.pull([1, 2], [[a, b], [c, d]])
    assert [each[0] for each in (a, b, c, d)] == [22.0, 22.0, 44.0, 44.0]
    store.pushpull([1, 2], [*one, *two], [a, b, c, d])
    assert [each[0] for each in (a, b, c, d)] == [22.0, 22.0, 44.0, 44.0]
    store.pushpull(1, one)  # in place
    assert [each[0] for each in one] == [22.0, 22.0]
    x = np.arange(2.0)[::-1]  # not contiguous
    store.pushpull(1, x)
    assert x.tolist() == [2.0, 0.0]
    store.close()


@on_ranks(2, 3)
@pytest.mark.parametrize("type_", TYPES)
def test_k13_a_barrier_waits_for_the_operations_of_all_workers(type_):
    store = kvstore.create(type_, blocking=False)
    store.init("a", np.zeros(2))
    updated = []
    store.set_updater(lambda key, pushed, stored: updated.append(key))
    for step in range(4):
        store.push("a", np.ones(2))
        store.barrier()
        assert len(updated) == step + 1
    store.close()


@on_ranks(1, 2)
def test_k14_rows():
    store = kvstore.create("negotiated")
    store.init("a", np.arange(12.0).reshape(6, 2))
    out = np.full((6, 2), -1.0)
    store.row_sparse_pull("a", out, row_ids=np.array([4, 1, 4]))
    assert out[:, 0].tolist() == [0.0, 2.0, 0.0, 0.0, 8.0, 0.0]
    store.row_sparse_pull("a", out, row_ids=np.array([], np.int64))
    assert not out.any()
    two = [np.empty((6, 2)), np.empty((6, 2))]
    store.row_sparse_pull("a", two, row_ids=[[0, 5], [1]])
    assert two[0][5].tolist() == [10.0, 11.0] and two[1][1, 0] == 2.0 and not two[1][5].any()
    refused(lambda: store.row_sparse_pull("a", out, row_ids=[6]), "'a': row_ids go from 6 to 6, .* rows 0 to 5")
    refused(lambda: store.row_sparse_pull("a", out, row_ids=[-1]), "go from -1")
    refused(lambda: store.row_sparse_pull("a", out, row_ids=[0.5]), "must be integers")
    refused(lambda: store.row_sparse_pull("a", out), "needs row_ids")
    store.close()


@on_ranks(2)
@pytest.mark.parametrize("type_", TYPES)
def test_k15_an_updater_that_raises_is_an_error_at_the_wait_and_no_peer_waits(type_):
    store = kvstore.create(type_)
    store.init("a", np.zeros(2))

    def update(key, pushed, stored):
        if hc.rank() == 1:
            raise ValueError(f"no update of {key}")
        stored += pushed

    store.set_updater(update)
    store.push("a", np.ones(2))
    out = np.zeros(2)
    if hc.rank() == 1:
        refused(lambda: store.pull("a", out), "no update of a", ValueError)
        store.barrier()  # it has been told
        store.push("a", np.ones(2))
        refused(store.barrier, "no update of a", ValueError)
        store.barrier()
    else:
        store.pull("a", out)
        store.barrier()
        assert out[0] == 2.0
        store.push("a", np.ones(2))
        store.barrier()
        store.barrier()
    store.set_updater(lambda key, pushed, stored: np.add(stored, pushed, out=stored))
    store.push("a", np.ones(2))
    store.pull("a", out)
    store.close()


@on_ranks(2)
@pytest.mark.parametrize("type_", TYPES)
def test_d6_an_input_that_fails_is_an_error_of_all_workers(type_):
    engine = Engine({"cpu": 1, "comm": 2})
    store = kvstore.create(type_, engine=engine, blocking=False)
    store.init("a", np.zeros(2))
    x = np.ones(2)

    def fails() -> None:
        raise ValueError("no luck")

    engine.push(fails if hc.rank() == 0 else lambda: None, writes=[x])
    with pytest.raises(ValueError if hc.rank() == 0 else InputFailedError, match="no luck"):
        store.pushpull("a", x)
        store.wait(x, timeout=LIMIT)
    store.pushpull("a", y := np.ones(2))
    store.wait(y, timeout=LIMIT)
    assert y[0] == 2.0
    store.close()
    engine.close()


@on_ranks(2)
def test_k18_two_stores_have_their_own_keys():
    stores = [kvstore.create("negotiated", blocking=False), kvstore.create("depcha", blocking=False)]
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


@on_ranks(2)
@pytest.mark.parametrize("type_", TYPES)
def test_k20_stores_leave_nothing_behind(type_):
    def use() -> None:
        store = kvstore.create(type_)
        store.init("a", np.zeros(2))
        store.pushpull("a", np.ones(2))
        store.close()

    use()
    process = psutil.Process()
    before = process.num_threads(), process.num_fds()
    for _ in range(100):
        use()
    assert (process.num_threads(), process.num_fds()) == before


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("type_", TYPES)
def test_two_bit_compression_sends_the_threshold_and_keeps_the_rest(type_):
    store = kvstore.create(type_)
    store.init("a", np.zeros(5, np.float32))
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    gradient = np.array([0.3, 0.6, -0.7, 0.0, 2.0], np.float32)
    out = np.empty(5, np.float32)
    sums = np.zeros(5)
    for _ in range(4):
        store.pushpull("a", gradient, out)
        sums += out / hc.size()
    np.testing.assert_allclose(sums, [1.0, 2.0, -2.0, 0.0, 2.0], atol=1e-6)
    store.set_gradient_compression({"type": "none"})
    store.pushpull("a", gradient, out)
    np.testing.assert_allclose(out, gradient * hc.size(), rtol=1e-6)
    refused(lambda: store.set_gradient_compression({"type": "1bit"}), "takes type '2bit'")
    refused(lambda: store.set_gradient_compression({"type": "2bit", "threshold": 0}), "above 0")
    store.init("b", np.zeros(3))
    refused(lambda: store.set_gradient_compression({"type": "2bit"}), "'b': 2-bit .* not float64", UnsupportedError)
    store.close()


@on_ranks(2)
@pytest.mark.parametrize("type_", (*TYPES, "dist_sync"))
def test_pushed_values_may_be_changed_after_the_call(type_):
    engine = Engine({"cpu": 1, "comm": 2})
    store = kvstore.create(type_, engine=engine)
    store.init("a", np.zeros(2))
    value, out = np.ones(2), np.empty(2)
    for _ in range(5):
        store.push("a", value)
        value.fill(0.0)
        store.pull("a", out)
        assert out[0] == 2.0
        value.fill(1.0)
    store.close()
    engine.close()


@on_ranks(1, 2)
@pytest.mark.parametrize("type_", (*TYPES, "dist_sync", "local"))
def test_a_barrier_and_the_end_wait_for_copies(type_):
    workers = 1 if type_ == "local" else hc.size()
    store = kvstore.create(type_, blocking=False)
    store.init("a", np.zeros(50_000))
    for end in (store.barrier, store.close):
        outs = [np.zeros(50_000) for _ in range(6)]
        store.push("a", np.ones(50_000))
        store.pull("a", outs)
        end()
        assert [out[-1] for out in outs] == [float(workers)] * 6
    refused(lambda: store.push("a", np.ones(50_000)), "is closed", ShutDownError)
    store.close()


@on_ranks(2)
@pytest.mark.parametrize("type_", ("negotiated", "depcha", "concom", "dist_sync"))
def test_an_exception_is_raised_once_and_then_the_store_works(type_):
    engine = Engine({"cpu": 1, "comm": 2})
    store = kvstore.create(type_, engine=engine, blocking=False)
    store.init(["a", "b"], [np.zeros(2), np.zeros(2)])

    def fails() -> None:
        raise ValueError("no luck")

    for attempt in range(3):
        x, outs = np.ones(2), [np.empty(2), np.empty(2)]
        engine.push(fails if hc.rank() == 0 else lambda: None, writes=[x])
        store.push("a", x)
        store.push("b", np.full(2, 5.0))
        store.pull("a", outs)
        ends = (partial(store.wait, *outs), store.barrier, partial(store.wait, outs[1]))
        with pytest.raises((ValueError, InputFailedError), match="no luck"):
            ends[attempt]()
        store.barrier()
        good, outs = np.ones(2), [np.empty(2), np.empty(2)]
        store.push("a", good)
        store.pull(["a", "b"], outs)
        store.wait(*outs)
        assert [out[0] for out in outs] == [2.0, 10.0]
    store.close()
    engine.close()


@on_ranks(1, 2)
def test_a_result_may_be_any_of_the_values():
    store = kvstore.create("negotiated")
    store.init("a", np.zeros(2))
    one, two = np.full(2, 1.0), np.full(2, 10.0)
    store.pushpull("a", [one, two], two)
    assert two[0] == 11.0 * hc.size()
    store.pushpull("a", [one, one, one])
    assert one[0] == 3.0 * hc.size()
    store.close()


@on_ranks(2)
def test_init_waits_for_operations_that_write_the_value():
    engine = Engine()
    store = kvstore.create(engine=engine, name="negotiated")
    x = np.zeros(1000)
    engine.push(lambda: x.fill(7.0), writes=[x])
    store.init("a", x)
    out = np.empty(1000)
    store.pull("a", out)
    assert set(out) == {7.0}
    store.close()
    engine.close()


@on_ranks(2)
@pytest.mark.parametrize("type_", ["negotiated", "depcha"])
def test_two_bit_compression_loses_nothing_when_a_round_fails(type_):
    engine = Engine({"cpu": 1, "comm": 1})
    store = kvstore.create(type_, engine=engine)
    store.init("a", np.zeros(3, np.float32))
    store.set_gradient_compression({"type": "2bit", "threshold": 1.0})
    gradient, out = np.full(3, 0.4, np.float32), np.empty(3, np.float32)
    bad = np.full(3, np.nan, np.float32)

    def fails() -> None:
        raise ValueError("no luck")

    engine.push(fails if hc.rank() == 0 else lambda: bad.fill(0.4), writes=[bad])
    with pytest.raises((ValueError, InputFailedError), match="no luck"):
        store.pushpull("a", bad, out)
    seen = []
    for _ in range(3):
        store.pushpull("a", gradient, out)
        seen.append(float(out[0]))
    assert seen == [0.0, 0.0, 2.0]
    with pytest.raises(UnsupportedError, match="'b': 2-bit"):
        store.init("b", np.zeros(3))
    store.close()
    engine.close()


@on_ranks(2)
def test_k5_a_static_order_is_checked_of_compressed_keys_too():
    store = kvstore.create("depcha", blocking=False)
    store.init(["a", "b"], [np.zeros(8, np.float32), np.zeros(8, np.float32)])
    store.set_gradient_compression({"type": "2bit"})
    values = {key: np.ones(8, np.float32) for key in "ab"}
    for key in "ab" if hc.rank() == 0 else "ba":
        store.pushpull(key, values[key])
    with pytest.raises(MismatchError, match="another key in its place"):
        store.wait(*values.values(), timeout=LIMIT)
    with pytest.raises(MismatchError, match="another key in its place"):
        store.close()


def test_a_local_store_needs_no_job():
    store = kvstore.create()
    store.init([3, 4], [np.ones(2), np.ones(3)])
    store.push(3, [np.full(2, 2.0), np.full(2, 3.0)])
    out = np.empty(2)
    store.pull(3, out)
    assert out.tolist() == [5.0, 5.0]
    assert (store.type, store.rank, store.num_workers, store.get_num_dead_node()) == ("local", 0, 1, 0)
    refused(lambda: store.set_gradient_compression({"type": "2bit"}), "sends nothing", UnsupportedError)
    store.barrier()
    store.close()
