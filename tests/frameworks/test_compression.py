"""Allreduce with codecs, on NumPy arrays and torch tensors: sums of what each rank sends, errors, byte counts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

import horocache as hc
from horocache.base.residuals import Key
from horocache.collectives import encoded_sum
from horocache.collectives.codecs import zfp
from horocache.collectives.codecs.message import Kind, Values, decoded, encoded
from horocache.collectives.compression import Codec
from horocache.core import context
from horocache.testing import run_ranks

from .bindings import both_bindings

C = hc.Compression
SHAPES = [(), (0,), (1,), (7,), (33, 5), (2, 3, 4, 5), (2, 1, 3, 2, 2, 3)]


def values(rank, shape, dtype=np.float32):
    """Smooth, different on each rank."""
    count = int(np.prod(shape, dtype=np.int64))
    return (np.sin(np.arange(count) / 9 + rank) * (rank + 1)).astype(dtype).reshape(shape)


def sent(codec, array):
    """The array that other ranks get for an array of this rank."""
    kind = Kind(array.dtype.name, array.shape)
    return decoded(codec, encoded(codec, Values(kind, array)), kind)


def total(codec, shape, dtype=np.float32, ranks=None):
    """The sum in rank order of what the ranks send."""
    parts = [sent(codec, values(rank, shape, dtype)) for rank in (range(hc.size()) if ranks is None else ranks)]
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return np.asarray(result)


@both_bindings
@on_ranks(2, 3)
def test_m16_zfp_keeps_its_tolerance_and_sends_fewer_bytes(binding):
    """M16: the error of a sum is at most P times the tolerance, NaN and infinities come out as they are."""
    codec, ranks = C.zfp(tolerance=1e-3), hc.size()
    for dtype in (np.float32, np.float64):
        mine = [values(rank, (100, 50), dtype) for rank in range(ranks)]
        exact = np.sum(mine, axis=0, dtype=np.float64)
        before = hc.metrics()
        got = hc.allreduce(mine[hc.rank()], op=hc.Sum, compression=codec, name="smooth")
        counted = hc.metrics().since(before)
        assert got.dtype == dtype and np.abs(got - exact).max() <= 1e-3 * ranks
        assert counted["compressed_bytes"] == mine[0].nbytes
        assert 0 < counted["wire_bytes"] < 0.5 * mine[0].nbytes
        holes = mine[hc.rank()].copy()
        holes[1, 1], holes[2, 2], holes[3, 3] = np.nan, np.inf, -np.inf
        holes[4, 4] = np.inf if hc.rank() else -np.inf
        got = hc.allreduce(holes, op=hc.Sum, compression=codec, name="holes")
        assert np.isnan(got[1, 1]) and got[2, 2] == np.inf and got[3, 3] == -np.inf and np.isnan(got[4, 4])
        finite = np.isfinite(got)
        assert finite.sum() == got.size - 4 and np.abs((got - exact)[finite]).max() <= 1e-3 * ranks
    before = hc.metrics()
    for mine, op in [(np.arange(5), hc.Sum), (np.array([True, False]), hc.Sum), (np.ones(3, np.float16), hc.Average)]:
        got = hc.allreduce(mine, op=op, compression=codec)
        assert got.dtype == mine.dtype
        np.testing.assert_array_equal(got, hc.allreduce(mine, op=op))
    if binding == "native":  # the other one reads no bfloat16
        got = hvd.allreduce(torch.ones(3, dtype=torch.bfloat16), compression=codec, op=hvd.Sum)
        assert got.dtype is torch.bfloat16 and got.tolist() == [ranks] * 3
    assert hc.metrics().since(before)["compressed_bytes"] == 0


@on_ranks(1, 3)
def test_the_result_is_the_sum_in_rank_order_of_what_the_ranks_send():
    for codec in (C.zfp(tolerance=1e-2), C.zfp(rate=8), C.zfp(precision=12), C.int8(block=16), C.topk(ratio=0.2)):
        for dtype in (np.float32, np.float64):
            for shape in SHAPES:
                mine = values(hc.rank(), shape, dtype)
                given = mine.copy()
                call = {"compression": codec, "name": f"{dtype.__name__}{shape}{codec.wire_name}"}
                got = hc.allreduce(mine, op=hc.Sum, **call)
                np.testing.assert_array_equal(got, total(codec, shape, dtype))
                assert (got.dtype, got.shape) == (mine.dtype, shape)
                np.testing.assert_array_equal(mine, given)
                assert len(set(hc.allgather_object(got.tobytes()))) == 1
                C.topk.clear_residuals()
                average = hc.allreduce(mine, prescale_factor=0.5, postscale_factor=3, **call)
                want = total(codec, shape, dtype) * 0.5 / hc.size() * 3
                np.testing.assert_allclose(average, want, rtol=1e-6, atol=1e-6)
                C.topk.clear_residuals()


@on_ranks(3)
def test_torch_tensors_of_every_float_type_are_encoded():
    for codec in (C.int8(), C.topk(k=9)):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            tensors = [torch.from_numpy(values(rank, (6, 7), np.float64)).to(dtype) for rank in range(hc.size())]
            arrays = [t.double().numpy() if dtype is torch.float64 else t.float().numpy() for t in tensors]
            parts = [sent(codec, array) for array in arrays]
            want = torch.from_numpy((parts[0] + parts[1]) + parts[2]).to(dtype)
            mine = tensors[hc.rank()]
            before = hc.metrics()
            got = hvd.allreduce(mine, op=hvd.Sum, compression=codec, name=f"{dtype}{codec.wire_name}")
            assert got.dtype is dtype and torch.equal(got, want) and got is not mine
            assert hc.metrics().since(before)["compressed_bytes"] == mine.nbytes


@on_ranks(2)
def test_tensors_in_any_memory_layout_are_reduced_and_written_back():
    codec = C.int8(block=1)
    for make in (lambda t: t.t(), lambda t: t[::2, 1::3], lambda t: t[:, 3], lambda t: t):
        base = torch.from_numpy(values(hc.rank(), (6, 8)))
        view = make(base)
        arrays = [make(torch.from_numpy(values(rank, (6, 8)))).contiguous().numpy() for rank in range(2)]
        want = sent(codec, arrays[0]) + sent(codec, arrays[1])
        got = hvd.allreduce(view, op=hvd.Sum, compression=codec)
        assert torch.equal(got, torch.from_numpy(want))
        version = view._version
        assert hvd.allreduce_(view, op=hvd.Sum, compression=codec) is view
        assert torch.equal(view, torch.from_numpy(want)) and view._version > version
    big_endian = values(hc.rank(), (5, 4)).astype(">f4")[::-1]
    arrays = [np.ascontiguousarray(values(rank, (5, 4))[::-1]) for rank in range(2)]
    want = sent(codec, arrays[0]) + sent(codec, arrays[1])
    assert hc.allreduce_(big_endian, op=hc.Sum, compression=codec) is big_endian
    np.testing.assert_array_equal(big_endian, want)
    constant = np.ones(4, np.float32)
    constant.flags.writeable = False
    assert hc.allreduce(constant, op=hc.Sum, compression=codec).tolist() == [2] * 4
    with pytest.raises(hc.InvalidArgumentError, match="read-only"):
        hc.allreduce_(constant, op=hc.Sum, compression=codec)


@both_bindings
@on_ranks(3)
def test_groups_handles_and_in_place_forms_give_the_same_results(binding):
    codec = C.zfp(tolerance=1e-2)
    shapes = [(40, 3), (), (0, 2), (500,)]
    want = [total(codec, shape) for shape in shapes]
    mine = [values(hc.rank(), shape) for shape in shapes]
    before = hc.metrics()
    results = {
        "group": hc.grouped_allreduce(mine, op=hc.Sum, compression=codec),
        "group in place": hc.grouped_allreduce_([x.copy() for x in mine], op=hc.Sum, compression=codec),
        "single": [hc.allreduce(x, op=hc.Sum, compression=codec) for x in mine],
        "in place": [hc.allreduce_(x.copy(), op=hc.Sum, compression=codec) for x in mine],
    }
    # One allgather for each group, and for each tensor that is reduced by itself.
    assert hc.metrics().since(before)["op_count.allgather"] == 2 + 2 * len(mine)
    handles = [hc.allreduce_async(x, op=hc.Sum, compression=codec, name=f"x{i}") for i, x in enumerate(mine)]
    results["async"] = [hc.synchronize(handle) for handle in reversed(handles)][::-1]
    handles = [hc.allreduce_async(x, op=hc.Sum, compression=codec) for x in mine]
    results["list of handles"] = hc.synchronize(handles)
    copies = [x.copy() for x in mine]
    handle = hc.grouped_allreduce_async_(copies, op=hc.Sum, compression=codec)
    while not handle.done():
        pass
    results["group async in place"] = handle.wait()
    assert all(got is copy for got, copy in zip(results["group async in place"], copies, strict=True))
    for label, got in results.items():
        for each, expected in zip(got, want, strict=True):
            np.testing.assert_array_equal(each, expected, label)
    with pytest.raises(hc.InvalidArgumentError, match="was not created or has been cleared"):
        handle.wait()


@on_ranks(3)
def test_in_place_forms_take_the_other_compressors_too():
    for dtype in (np.float32, np.int32):
        array = np.full(5, hc.rank() + 0.5).astype(dtype)
        want = np.full(5, sum(rank + 0.5 for rank in range(3))).astype(dtype) if dtype == np.float32 else np.full(5, 3)
        before = hc.metrics()
        assert hc.allreduce_(array, op=hc.Sum, compression=C.fp16) is array
        np.testing.assert_array_equal(array, want)
        counted = hc.metrics().since(before)
        halves = (20, 10) if dtype == np.float32 else (0, 0)
        assert (counted["compressed_bytes"], counted["wire_bytes"]) == halves
    tensors = [torch.ones(3), torch.ones(2, dtype=torch.float64)]
    hvd.grouped_allreduce_(tensors, op=hvd.Sum, compression=hvd.Compression.bf16)
    assert [t.tolist() for t in tensors] == [[3] * 3, [3] * 2]


@on_ranks(4, init=False)
def test_process_sets_reduce_among_themselves():
    hc.init(process_sets=[[1, 3], [0, 2]])
    codec, mine = C.int8(), values(hc.rank(), (50,))
    even = hc.rank() % 2 == 0
    of = hc.process_sets()[2 if even else 1]
    got = hc.allreduce(mine, op=hc.Sum, compression=codec, process_set=of, name="x")
    np.testing.assert_array_equal(got, total(codec, (50,), ranks=[0, 2] if even else [1, 3]))
    top = C.topk(k=1)
    first = hc.allreduce(np.array([3, 2, 1.0, 0]), op=hc.Sum, compression=top, process_set=of, name="y")
    everybody = hc.allreduce(np.array([3, 2, 1.0, 0]), op=hc.Sum, compression=top, name="y")
    assert first.tolist() == [6, 0, 0, 0] and everybody.tolist() == [12, 0, 0, 0]
    with pytest.raises(hc.InvalidArgumentError, match="not been registered"):
        hc.allreduce(mine, compression=codec, process_set=hc.ProcessSet([0]))
    residuals = context.current().residuals
    assert len(residuals) == 2
    dynamic = hc.add_process_set([0, 1, 2])
    if dynamic.included():
        hc.allreduce(np.array([3, 2, 1.0, 0]), op=hc.Sum, compression=top, process_set=dynamic, name="y")
        assert len(residuals) == 3
    hc.remove_process_set(dynamic)
    assert len(residuals) == 2


@pytest.mark.parametrize("divide_by", ["all", "active"])
@on_ranks(3)
def test_a_rank_that_has_joined_is_left_out(divide_by):
    codec, active = C.int8(), [0, 2]
    if hc.rank() in active:
        hc.barrier()  # rank 1 has joined
        got = hc.allreduce(values(hc.rank(), (20,)), op=hc.Sum, compression=codec, name="sum")
        np.testing.assert_array_equal(got, total(codec, (20,), ranks=active))
        pair = hc.grouped_allreduce([np.ones(3, np.float32), np.empty(0, np.float32)], compression=codec, name="pair")
        np.testing.assert_allclose(pair[0], 2 / 3 if divide_by == "all" else 1)
        assert pair[1].shape == (0,)
    hc.join(divide_by=divide_by)


@on_ranks(2)
def test_average_is_differentiable():
    codec = C.zfp(tolerance=1e-4)
    tensor = torch.from_numpy(values(hc.rank(), (60,))).requires_grad_()
    (hvd.allreduce(tensor, compression=codec, name="x") * (hc.rank() + 1)).sum().backward()
    torch.testing.assert_close(tensor.grad, torch.full((60,), 1.5), atol=1e-4, rtol=0)
    sparse = torch.from_numpy(values(hc.rank(), (60,))).requires_grad_()
    hvd.allreduce(sparse, compression=C.topk(k=2), name="y").sum().backward()
    assert (sparse.grad != 0).sum() == 2  # the gradient is compressed, too, under a name of its own
    assert len(context.current().residuals) == 2


# ---- error feedback


def residual_of(name, array):
    key = Key(0, "allreduce", name, 0)
    return context.current().residuals.take(key, array.shape, array.dtype, lambda _: False).values


@on_ranks(3)
def test_with_error_feedback_everything_is_sent_at_some_time():
    steps, size = 200, 64
    codec, random = C.topk(ratio=0.05), np.random.default_rng(100 + hc.rank())
    given, received, sums = np.zeros(size), np.zeros(size), np.zeros(size)
    largest = 0.0
    for _ in range(steps):
        gradient = random.integers(-8, 9, size).astype(np.float32)  # whole numbers: all sums are exact
        given += gradient
        received += hc.allreduce(gradient, op=hc.Sum, compression=codec, name="gradient")
        largest = max(largest, np.abs(residual_of("gradient", gradient)).max())
    sums = hc.allreduce(given, op=hc.Sum)
    residual = residual_of("gradient", gradient)
    left_out = hc.allreduce(residual, op=hc.Sum)
    np.testing.assert_array_equal(received, sums - left_out)
    # Without feedback, 95 % of the elements would be missing; with it, about 1 / ratio steps wait to be sent.
    assert np.abs(residual).max() <= largest < 8 * 4 / 0.05
    assert np.abs(left_out).max() < 0.5 * np.abs(given).max() * hc.size() + 8 * 20


@on_ranks(2)
def test_a_gradient_that_repeats_is_sent_completely():
    codec, gradient = C.topk(k=1), np.array([4, 3, 2, 1, 0, 0], np.float64)
    received = np.zeros(6)
    for step in range(1, 201):
        received += hc.allreduce(gradient, compression=codec, name="constant")
        assert np.abs(received - gradient * step).max() <= 10 * 2, step
    np.testing.assert_allclose(received / 200, gradient, atol=0.05)


@on_ranks(2)
def test_values_that_are_not_finite_are_sent_at_once_and_leave_no_residual():
    codec = C.topk(k=1)
    mine = np.array([1, np.nan, 5, np.inf, 2, 0, 0, 0], np.float64)
    got = hc.allreduce(mine, op=hc.Sum, compression=codec, name="x")
    assert np.array_equal(got, [0, np.nan, 10, np.inf, 0, 0, 0, 0], equal_nan=True)
    mine[[1, 3]] = 0
    assert hc.allreduce(mine, op=hc.Sum, compression=codec, name="x").tolist() == [0, 0, 10, 0, 0, 0, 0, 0]
    assert hc.allreduce(mine * 0, op=hc.Sum, compression=codec, name="x").tolist() == [0, 0, 0, 0, 8, 0, 0, 0]


@on_ranks(2)
def test_residuals_can_be_cleared_and_end_with_the_session():
    codec, mine = C.topk(k=1), np.array([4, 3, 0, 0.0])
    other = {"op": hc.Sum, "compression": codec}
    for clear in (C.topk.clear_residuals, lambda: C.topk.clear_residuals("x"), lambda: (hc.shutdown(), hc.init())):
        for _ in range(2):
            hc.allreduce(mine, name="x", **other)
        hc.grouped_allreduce([mine, mine], name="pair", **other)
        assert hc.allreduce(mine * 0, name="x", **other)[:2].tolist() in ([8, 0], [0, 6], [4, 0])
        clear()
        assert hc.allreduce(mine * 0, name="x", **other).tolist() == [0] * 4
    assert len(context.current().residuals) == 1


@on_ranks(2)
def test_an_operation_that_failed_leaves_the_residual_as_it_was():
    codec, mine = C.topk(k=1), np.array([4, 3, 0, 0.0])
    call = {"op": hc.Sum, "name": "x"}
    assert hc.allreduce(mine, compression=codec, **call).tolist() == [8, 0, 0, 0]
    for _ in range(2):
        with pytest.raises(hc.MismatchError):
            hc.allreduce(mine, compression=codec if hc.rank() else C.topk(k=2), **call)
    assert hc.allreduce(mine * 0, compression=codec, **call).tolist() == [0, 6, 0, 0]
    handle = hc.allreduce_async(mine, compression=codec, **call)
    while not handle.done():
        pass
    with pytest.raises(hc.DuplicateNameError, match=r"last allreduce of the tensor 'x' .* is still to be fetched"):
        hc.allreduce(mine, compression=codec, **call)
    assert handle.wait().tolist() == [8, 0, 0, 0]
    with pytest.raises(hc.InvalidArgumentError, match=r"'x' .* is float64\[2\] .* was float64\[4\].*another name"):
        hc.allreduce(mine[:2], compression=codec, **call)


# ---- errors


@on_ranks(3)
def test_ranks_that_disagree_get_an_error_with_both_values_and_the_job_goes_on():
    odd, ones = hc.rank() == 2, np.ones((2, 3), np.float32)
    cases = {
        "tolerance": (lambda: C.zfp(tolerance=1e-2 if odd else 1e-3), ["tolerance=0.01", "tolerance=0.001"]),
        "codec": (lambda: C.int8() if odd else C.zfp(rate=8), ["int8(block=256)", "zfp(rate=8.0)"]),
        "block": (lambda: C.int8(block=2) if odd else C.int8(block=3), ["block=2", "block=3"]),
        "none": (lambda: None if odd else C.int8(), ["allgather", "allreduce"]),
    }
    for name, (codec, texts) in cases.items():
        for _ in range(2):
            with pytest.raises(hc.MismatchError, match=f"(?s){name}") as failed:
                hc.allreduce(ones, compression=codec(), name=name)
            assert all(text in str(failed.value) for text in [*texts, "rank"]), str(failed.value)
    calls = {
        "op": ({"op": hc.Sum if odd else hc.Average}, ["Sum", "Average"]),
        "scale": ({"prescale_factor": 2 if odd else 1.5}, ["2.0", "1.5"]),
    }
    for name, (options, texts) in calls.items():
        with pytest.raises(hc.MismatchError, match=name) as failed:
            hc.allreduce(ones, compression=C.int8(), name=name, **options)
        assert all(text in str(failed.value) for text in texts), str(failed.value)
    shapes = {"shape": ones.reshape(3, 2) if odd else ones, "type": ones.astype(np.float64) if odd else ones}
    for name, tensor in shapes.items():
        with pytest.raises(hc.MismatchError, match=rf"allreduce '{name}' with Compression.int8") as failed:
            hc.allreduce(tensor, compression=C.int8(), name=name)
        gave = (
            [f"rank 0 gave a tensor float32[2, 3], and rank 2 a tensor {tensor.dtype}{list(tensor.shape)}"]
            if odd
            else ["rank 2 gave a tensor", f"and rank {hc.rank()} a tensor float32[2, 3]"]
        )
        assert all(text in str(failed.value) for text in gave), str(failed.value)
    with pytest.raises(hc.MismatchError, match=r"grouped_allreduce 'members', member 1, .*float32\[4\]"):
        hc.grouped_allreduce([ones, np.ones(4 if odd else 5, np.float32)], compression=C.int8(), name="members")
    np.testing.assert_allclose(hc.allreduce(ones, op=hc.Sum, compression=C.int8(), name="after"), 3, rtol=1e-6)


@both_bindings
@on_ranks(3, knobs={"check_finite": "1"})
def test_check_finite_names_the_ranks_with_bad_values(binding):
    mine = np.ones(100, np.float32)
    call = {"op": hc.Sum, "name": "x"}
    for codec in (C.zfp(tolerance=1e-3), C.topk(k=2)):
        assert hc.allreduce(mine, compression=codec, **call)[0] == pytest.approx(3, abs=3e-3)
        bad = mine.copy()
        bad[[17, 40] if hc.rank() == 1 else [5] if hc.rank() else []] = np.nan
        with pytest.raises(hc.NonFiniteError, match="allreduce 'x' with Compression") as failed:
            hc.allreduce(bad, compression=codec, **call)
        for text in (
            "rank 1 submitted 2 NaN or infinite of 100 values, the first at element 17",
            "rank 2 submitted 1 NaN or infinite of 100 values, the first at element 5",
        ):
            assert text in str(failed.value)
        hc.allreduce(mine, compression=codec, **call)


@on_ranks(2)
def test_calls_that_a_codec_cannot_serve_are_refused_before_anything_is_sent():
    ones, codec = np.ones(4, np.float32), C.int8()
    for op in (hc.Min, hc.Max, hc.Product, hc.Adasum):
        with pytest.raises(hc.UnsupportedError, match=rf"op=Sum and op=Average, not for {op.name}"):
            hc.allreduce(ones, op=op, compression=codec)
    with pytest.raises(hc.UnsupportedError, match=r"has no name.*name='weights'"):
        hc.allreduce(ones, compression=C.topk(k=1))
    with pytest.raises(hc.UnsupportedError, match="this grouped_allreduce has no name"):
        hvd.grouped_allreduce_([torch.ones(2)], compression=C.topk(k=1))
    with pytest.raises(hc.UnsupportedError, match=r"tensor 0 .* float32, and not tensor 1, .* other than floating"):
        hc.grouped_allreduce([ones, np.arange(3)], compression=codec)
    with pytest.raises(hc.UnsupportedError, match="float64, and not tensor 0, of type float16"):
        hc.grouped_allreduce([ones.astype(np.float16), np.ones(2)], compression=C.zfp(rate=9))
    with pytest.raises(hc.UnsupportedError, match=r"Compression.int8.*Use Compression.fp16"):
        hc.reducescatter(ones, compression=codec)
    with pytest.raises(hc.UnsupportedError, match=r"Compression.int8.*Use Compression.fp16"):
        hvd.grouped_reducescatter([torch.ones(4)], compression=codec)
    with pytest.raises(hc.InvalidArgumentError, match="lacks its parameters"):
        hc.allreduce(ones, compression=C.zfp)
    with pytest.raises(hc.InvalidArgumentError, match="prescale_factor must be a number"):
        hc.allreduce(ones, compression=codec, prescale_factor="2")
    with pytest.raises(hc.UnsupportedError, match="backend"):
        hc.allreduce(ones, compression=codec, backend="carrier pigeon")
    with pytest.raises(hc.InvalidArgumentError, match="list with at least one tensor"):
        hc.grouped_allreduce([], compression=codec)
    with pytest.raises(hc.UnsupportedError, match=r"ddp_hook sends gradients uncompressed.*DistributedOptimizer"):
        hvd.ddp_hook(codec, None)
    assert hc.allreduce(ones, op=hc.Sum, compression=codec).tolist() == [2] * 4


@on_ranks(2)
def test_a_missing_package_is_an_error_that_says_what_to_install():
    zfp.load_zfpy.cache_clear()
    hidden, sys.modules["zfpy"] = sys.modules.get("zfpy"), None
    with pytest.raises(hc.UnsupportedError, match=r"pip install horocache\[compression\]"):
        hc.allreduce(np.ones(100, np.float32), compression=C.zfp(tolerance=1e-3), name="x")
    sys.modules["zfpy"] = hidden
    if hidden is None:
        del sys.modules["zfpy"]
    got = hc.allreduce(np.ones(100, np.float32), op=hc.Sum, compression=C.zfp(tolerance=1e-3), name="x")
    np.testing.assert_allclose(got, 2, atol=2e-3)


@pytest.mark.parametrize("group", [False, True])
@on_ranks(3)
def test_damaged_bytes_are_an_error_that_names_the_rank_and_the_job_goes_on(group):
    """Rank 1 damages its message between its codec and the allgather."""
    pack, broken = encoded_sum.codec_layers, True

    class Damaging:
        def __init__(self, layers):
            self.layers = layers
            self.signature = layers.signature

        def encode(self, tensors):
            messages, contexts = self.layers.encode(tensors)
            if broken and hc.rank() == 1:
                messages[-1][-1] ^= 1
            return messages, contexts

        def decode(self, *arguments):
            return self.layers.decode(*arguments)

    encoded_sum.codec_layers = lambda *arguments: Damaging(pack(*arguments))
    tensors = [values(hc.rank(), (40,)), values(hc.rank(), (30, 2))]
    call = {"op": hc.Sum, "compression": C.zfp(tolerance=1e-3), "name": "x"}
    which = "grouped_allreduce 'x', member 1, with" if group else "allreduce 'x' with"
    match = (
        rf"{which} Compression.zfp\(tolerance=0.001\): the message of rank 1 cannot be decoded on rank {hc.rank()}: "
        r"the checksum"
    )
    for _ in range(2):
        with pytest.raises(hc.CorruptError, match=match):
            if group:
                hc.grouped_allreduce(tensors, **call)
            else:
                hc.allreduce(tensors[0], **call)
    broken = False
    np.testing.assert_array_equal(hc.allreduce(tensors[0], **call), total(call["compression"], (40,)))


def test_a_rank_that_dies_is_named():
    def rank():
        import os
        import signal

        hc.init(flight_record="off")
        codec = hc.Compression.int8()
        hc.allreduce(np.ones(3, np.float32), compression=codec, name="x")
        if hc.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(hc.PeerLostError, match="rank 1"):
            hc.allreduce(np.ones(3, np.float32), compression=codec, name="x")

    outcomes = run_ranks(rank, 3, check=False)
    assert [outcome.ok for outcome in outcomes] == [True, False, True], outcomes


@dataclass(frozen=True)
class Rounded(Codec):
    """A user's codec: whole numbers of 16 bits."""

    name: ClassVar[str] = "rounded"
    dtypes: ClassVar[frozenset[str]] = frozenset(("float64",))
    error_feedback: ClassVar[bool] = True

    def encode(self, array):
        return [np.rint(array).astype(np.int16)]

    def decode(self, data, shape, dtype):
        return np.frombuffer(data, np.int16).reshape(shape).astype(dtype)


@on_ranks(2)
def test_a_users_codec_with_error_feedback_is_used_like_the_others():
    codec, received = Rounded(), 0.0
    for _ in range(10):
        received += hc.allreduce(np.full(4, 0.25), op=hc.Sum, compression=codec, name="x")
    assert received.tolist() == [4 if received[0] == 4 else 6] * 4  # of 5, within the residuals of two ranks
    ones = np.ones(4, np.float32)
    before = hc.metrics()
    assert hc.allreduce(ones, op=hc.Sum, compression=codec, name="other type").tolist() == [2] * 4
    assert hc.metrics().since(before)["wire_bytes"] == 0
