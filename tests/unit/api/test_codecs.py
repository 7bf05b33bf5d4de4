"""The codecs and their messages, without ranks: each codec against a reference, bad parameters, damaged bytes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import horocache as hc
from horocache.base.residuals import Key, Residuals
from horocache.collectives.codecs import zfp
from horocache.collectives.codecs.message import BadMessage, Kind, Values, decoded, encoded
from horocache.collectives.compression import FLOATS, Codec, is_codec
from horocache.collectives.transforms import check_compressor, codec_layers, layer_list

C = hc.Compression
CODECS = [C.zfp(tolerance=1e-3), C.zfp(rate=8), C.zfp(precision=20), C.int8(), C.int8(block=3), C.topk(ratio=0.3)]
BOUNDED = [C.zfp(tolerance=1e-3), C.zfp(tolerance=1e-9), C.int8(), C.int8(block=1), C.int8(block=7)]
EXACT = [C.topk(ratio=1.0), C.topk(k=10**6)]
DTYPES = [np.float32, np.float64]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (0, 4), (1, 9, 1), (2, 3, 4, 5), (2, 3, 1, 4, 2, 3)]
by_name = {"ids": lambda value: getattr(value, "wire_name", None)}


def kind_of(array):
    return Kind(array.dtype.name, array.shape)


def sent(codec, array):
    """The array that other ranks get."""
    kind = kind_of(array)
    return decoded(codec, encoded(codec, Values(kind, array)), kind)


def payload_of(codec, array):
    return b"".join(bytes(memoryview(part).cast("B")) if len(part) else b"" for part in codec.encode(array))


def payload_sent(codec, array):
    """The array that other ranks get if it is encoded in any case."""
    return codec.decode(memoryview(payload_of(codec, array)), array.shape, array.dtype)


def bound(codec, array):
    """The documented largest error of each element."""
    if codec.name == "zfp":
        return np.full(array.shape, codec.tolerance)
    flat = np.where(np.isfinite(array), np.abs(array), 0).reshape(-1).astype(np.float64)
    largest = [flat[i : i + codec.block].max() for i in range(0, flat.size, codec.block)]
    half_step = np.repeat(np.maximum(np.array(largest) / 254 * (1 + 2.0**-22), 2.0**-149), codec.block)[: flat.size]
    return half_step.reshape(array.shape) + np.finfo(array.dtype).eps * np.where(np.isfinite(array), np.abs(array), 0)


def check_error(codec, array, got):
    assert (got.dtype, got.shape) == (array.dtype, array.shape) and got.flags.writeable
    finite = np.isfinite(array)
    assert got[~finite].tobytes() == array[~finite].tobytes()
    error = np.abs(got[finite].astype(np.float64) - array[finite])
    assert (error <= bound(codec, array)[finite]).all(), (codec, array, got)


@pytest.mark.parametrize("codec", BOUNDED, **by_name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_stays_within_the_documented_bound(codec, dtype):
    random = np.random.default_rng(5)
    for shape in SHAPES:
        for exponent in (-45, -38, -20, -3, 0, 3, 7, 30, 38):
            if exponent > 30 and dtype == np.float32 and shape == (3, 5):
                array = np.full(shape, np.finfo(np.float32).max)
            else:
                array = np.clip(random.standard_normal(shape) * 10.0**exponent, -3e38, 3e38)
            check_error(codec, array.astype(dtype), sent(codec, array.astype(dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_zfp_keeps_every_tolerance(dtype, dimensions):
    """Also those at which zfp's own arithmetic would not: there, values are sent as they are."""
    random = np.random.default_rng(dimensions)
    for _ in range(60):
        shape = tuple(random.integers(1, 7, dimensions))
        array = random.standard_normal(shape) * 10.0 ** random.integers(-20, 1, shape)
        array = (array * 10.0 ** random.integers(-35, 36)).astype(dtype)
        largest = float(np.abs(array).max())
        for bits in range(-2, 60, 3):
            if largest:
                codec = C.zfp(tolerance=largest * 2.0**-bits)
                check_error(codec, array, sent(codec, array))


@pytest.mark.parametrize("codec", [*CODECS, *EXACT], **by_name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_not_finite_come_out_as_they_are(codec, dtype):
    random = np.random.default_rng(6)
    array = random.standard_normal((13, 17)).astype(dtype)
    array[0, 0], array[3, 4], array[12, 16] = np.nan, np.inf, -np.inf
    array.view(f"u{array.itemsize}")[5, 5] = np.array(np.nan, dtype).view(f"u{array.itemsize}") | 5  # a payload
    for values in (array, np.full((4, 2), np.nan, dtype), np.array(np.inf, dtype)):
        got = sent(codec, values)
        finite = np.isfinite(values)
        assert got[~finite].tobytes() == values[~finite].tobytes()
        assert np.isfinite(got[finite]).all()


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_casts_keep_values_that_are_not_finite(name):
    torch = pytest.importorskip("torch")
    import horocache.torch as hvd

    tensor = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.5, 1e-45, 0.0])
    compressor = getattr(hvd.Compression, name)
    got = compressor.decompress(*compressor.compress(tensor))
    assert got.dtype is torch.float32 and torch.isnan(got[0])
    assert got[1:].tolist() == [float("inf"), -float("inf"), 1.5, 0.0, 0.0]
    if name == "fp16":
        with np.errstate(invalid="raise", over="raise"):
            half = C.fp16.decompress(*C.fp16.compress(tensor.numpy()))
        np.testing.assert_array_equal(half, got.numpy())


@pytest.mark.parametrize("codec", CODECS, **by_name)
def test_every_shape_and_extreme_value_is_encoded_without_a_warning(codec, recwarn):
    random = np.random.default_rng(7)
    for dtype in DTYPES:
        top, tiny = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
        for shape in SHAPES:
            for values in ([0.0, -0.0], [top, -top], [tiny, -tiny, 0.0], [top, tiny, 0.0, -1.0], [1.0]):
                array = random.choice(np.array(values, dtype), shape).reshape(shape)
                array = np.ascontiguousarray(array) if shape else array
                got = sent(codec, array)
                assert got.shape == shape and np.isfinite(got).all()
    assert not recwarn.list


def reference_of_int8(array, block):
    flat, result = array.reshape(-1).astype(np.float64), []
    for start in range(0, flat.size, block):
        part = flat[start : start + block]
        scale = np.float32(np.abs(part).max() / 127)
        scale = scale if float(scale) * 127 >= np.abs(part).max() else np.nextafter(scale, np.float32(np.inf))
        result += [np.rint(array.dtype.type(x) / array.dtype.type(scale)) * scale for x in part]
    return np.array(result, array.dtype).reshape(array.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_is_the_reference(dtype):
    array = np.random.default_rng(8).standard_normal((11, 13)).astype(dtype)
    for block in (1, 5, 143, 1000):
        codec = C.int8(block=block)
        np.testing.assert_array_equal(payload_sent(codec, array), reference_of_int8(array, block))
    large = np.zeros(4096, dtype)
    large[:3] = 1, 2, -3
    assert encoded(C.int8(), Values(kind_of(large), large)).nbytes == 4096 + 16 * 4 + 8 + 28
    # A block that is larger than the tensor takes no memory for the rest.
    np.testing.assert_array_equal(payload_sent(C.int8(block=10**15), large), payload_sent(C.int8(block=4096), large))


def reference_of_topk(array, k):
    """By a stable sort: of equal sizes the lower index comes first."""
    flat = array.reshape(-1)
    order = np.argsort(-np.abs(flat), kind="stable")[:k]
    result = np.zeros_like(flat)
    result[order] = flat[order]
    return result.reshape(array.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_topk_sends_the_largest_and_of_equal_ones_those_with_the_lower_index(dtype):
    random = np.random.default_rng(9)
    for size in (1, 2, 10, 101):
        array = random.integers(-4, 5, size).astype(dtype)
        for k in (1, 3, size, size + 5):
            np.testing.assert_array_equal(payload_sent(C.topk(k=k), array), reference_of_topk(array, k))
    ties = np.array([2, -2, 2, 1, -2], dtype)
    assert payload_sent(C.topk(k=2), ties).tolist() == [2, -2, 0, 0, 0]
    assert payload_sent(C.topk(ratio=0.21), ties).tolist() == [2, -2, 0, 0, 0]
    assert payload_sent(C.topk(ratio=1e-9), ties).tolist() == [2, 0, 0, 0, 0]
    assert sent(C.topk(k=1), ties[:2]).tolist() == [2, -2]  # its message would be larger
    zeros = np.zeros(5000, dtype)
    assert encoded(C.topk(ratio=0.5), Values(kind_of(zeros), zeros)).nbytes == 36


def test_a_message_is_never_much_larger_than_the_tensor():
    random = np.random.default_rng(10)
    noise = random.standard_normal(1000).astype(np.float32)
    for codec in [*CODECS, *EXACT, C.zfp(tolerance=1e-30)]:
        for array in (noise, np.full(1000, np.nan, np.float32), noise[:1], noise[:0]):
            assert encoded(codec, Values(kind_of(array), array)).nbytes <= array.nbytes + 28
    np.testing.assert_array_equal(sent(C.zfp(tolerance=1e-30), noise), noise)


def test_smooth_data_become_small():
    smooth = np.sin(np.linspace(0, 9, 10000)).astype(np.float32)
    for codec, part in [(C.zfp(tolerance=1e-3), 0.35), (C.int8(), 0.26), (C.topk(ratio=0.01), 0.03)]:
        assert encoded(codec, Values(kind_of(smooth), smooth)).nbytes < part * smooth.nbytes


# ---- parameters


def test_the_ranks_compare_the_parameters():
    names = [codec.wire_name for codec in (C.zfp(tolerance=1), C.zfp(rate=8), C.zfp(precision=np.int64(9)))]
    assert names == ["zfp(tolerance=1.0)", "zfp(rate=8.0)", "zfp(precision=9)"]
    assert C.int8().wire_name == "int8(block=256)" and C.topk(k=5).wire_name == "topk(k=5)"
    assert codec_layers(C.topk(ratio=0.5), True).signature == "compression=topk(ratio=0.5)"
    assert C.zfp(tolerance=1e-3) == C.zfp(tolerance=0.001) and len({C.int8(), C.int8(block=256)}) == 1


@pytest.mark.parametrize(
    ("codec", "parameters", "match"),
    [
        (C.zfp, {}, "takes one of tolerance, rate and precision; it has none"),
        (C.zfp, {"tolerance": 1e-3, "rate": 8}, "takes one of"),
        (C.zfp, {"tolerance": 0}, "tolerance must be a number above 0; it is 0"),
        (C.zfp, {"tolerance": float("nan")}, "it is nan"),
        (C.zfp, {"tolerance": float("inf")}, "it is inf"),
        (C.zfp, {"tolerance": "1e-3"}, "it is '1e-3'"),
        (C.zfp, {"rate": 1}, "rate must be a number from 4 to 64; it is 1"),
        (C.zfp, {"rate": 65}, "from 4 to 64"),
        (C.zfp, {"precision": 7.5}, "precision must be a whole number from 1 to 64; it is 7.5"),
        (C.zfp, {"precision": True}, "whole number"),
        (C.int8, {"block": 0}, "block must be a whole number of at least 1; it is 0"),
        (C.int8, {"block": 2.0}, "it is 2.0"),
        (C.topk, {}, "takes ratio or k"),
        (C.topk, {"ratio": 0.1, "k": 3}, "takes ratio or k"),
        (C.topk, {"ratio": 0}, "above 0 and at most 1; it is 0"),
        (C.topk, {"ratio": 1.5}, "it is 1.5"),
        (C.topk, {"k": 0}, "at least 1; it is 0"),
    ],
)
def test_bad_parameters_are_refused(codec, parameters, match):
    with pytest.raises(hc.InvalidArgumentError, match=match):
        codec(**parameters)


def test_only_allreduce_takes_a_codec():
    for call in (check_compressor, lambda codec: layer_list(codec, False), lambda codec: codec.compress(np.ones(2))):
        with pytest.raises(hc.UnsupportedError, match=r"Compression.int8\(block=256\) encodes .*Use Compression.fp16"):
            call(C.int8())
    with pytest.raises(hc.UnsupportedError, match="cannot be reduced here"):
        C.int8().decompress(None, None)
    with pytest.raises(hc.InvalidArgumentError, match=r"Zfp is a class of codecs.*Compression.zfp\(tolerance=1e-3\)"):
        check_compressor(C.zfp)
    assert not is_codec(C.zfp) and not is_codec(C.fp16) and not is_codec(None)
    with pytest.raises(hc.NotInitializedError):
        C.topk.clear_residuals()


def test_without_zfpy_the_error_says_what_to_install(monkeypatch):
    zfp.load_zfpy.cache_clear()
    monkeypatch.setitem(sys.modules, "zfpy", None)
    codec = C.zfp(tolerance=1e-3)
    with pytest.raises(hc.UnsupportedError, match=r"pip install horocache\[compression\]") as failed:
        sent(codec, np.ones(100, np.float32))
    assert isinstance(failed.value.__cause__, ImportError)
    monkeypatch.undo()
    sent(codec, np.ones(100, np.float32))


# ---- messages


@pytest.mark.parametrize("codec", CODECS, **by_name)
def test_every_damaged_byte_is_noticed(codec):
    array = np.random.default_rng(11).standard_normal((5, 7)).astype(np.float32)
    array[2, 2] = np.nan
    kind = kind_of(array)
    message = encoded(codec, Values(kind, array))
    for at in range(message.size):
        damaged = message.copy()
        damaged[at] ^= 0x41
        with pytest.raises(BadMessage, match=r"checksum of its|begins with"):
            decoded(codec, damaged, kind)
    for damaged in (message[:0], message[:10], message[:-1], message[1:], np.append(message, np.uint8(0))):
        with pytest.raises(BadMessage, match=r"shortest|checksum|begins"):
            decoded(codec, damaged, kind)


@pytest.mark.parametrize("codec", CODECS, **by_name)
def test_a_codec_refuses_payloads_that_it_has_not_written(codec):
    """Behind the checksum: what another version, or a defect, could send."""
    array = np.random.default_rng(12).standard_normal(600).astype(np.float32)
    array[7] = np.inf
    payload = payload_of(codec, array)
    count, first = int.from_bytes(payload[:8], "little"), payload[8:12]
    bad = [
        b"",
        payload[:5],
        (601).to_bytes(8, "little") + payload[8:],  # more positions than elements
        payload[:8] + (600).to_bytes(4, "little") + payload[12:],  # a position behind the last element
    ]
    if count > 1:
        bad.append(payload[:12] + first + payload[16:])  # a position twice
    if codec.name != "zfp":
        bad += [payload[:-1], payload + b"\0"]
    for data in bad:
        with pytest.raises(ValueError, match=r"left|positions|ascend|follow|stream|scale|numbers"):
            codec.decode(memoryview(data), array.shape, array.dtype)


def test_int8_refuses_scales_that_are_not_finite():
    codec = C.int8(block=4)
    _, _, _, scales, numbers = codec.encode(np.ones(8, np.float32))
    for wrong in (np.nan, np.inf, -1.0):
        data = bytes(8) + np.array([wrong, 1], np.float32).tobytes() + numbers.tobytes()
        with pytest.raises(ValueError, match="negative or not finite"):
            codec.decode(memoryview(data), (8,), scales.dtype)


def test_a_message_of_another_tensor_is_refused():
    codec, array = C.int8(), np.ones((4, 8), np.float32)
    message = encoded(codec, Values(kind_of(array), array))
    for other in (Kind("float32", (8, 4)), Kind("float64", (4, 8)), Kind("bfloat16", (4, 8)), Kind("float32", (32,))):
        with pytest.raises(BadMessage, match=r"of a tensor float32\[4, 8\]") as failed:
            decoded(codec, message, other)
        assert failed.value.other == kind_of(array)
    half = Values(Kind("float16", (4, 8)), array)
    assert half.kind.tensor_bytes == 64 and half.kind.dtype == np.float32
    assert [Kind(name, (3,)).tensor_bytes for name in FLOATS] == [6, 6, 12, 24]


@dataclass(frozen=True)
class Halves(Codec):
    """A user's codec: every second element; the one behind it is taken for equal."""

    name: ClassVar[str] = "halves"
    wrong: str = ""

    def encode(self, values):
        return [np.ascontiguousarray(values.reshape(-1)[::2])]

    def decode(self, data, shape, dtype):
        if self.wrong == "raises":
            raise IndexError("the table has no such entry")
        result = np.repeat(np.frombuffer(data, dtype), 2)[: int(np.prod(shape))].reshape(shape)
        result.flags.writeable = False
        return result.astype(np.float16) if self.wrong == "type" else result


def test_a_users_codec_is_a_class_with_two_methods():
    array = np.repeat(np.arange(20, dtype=np.float32), 2).reshape(5, 8)
    got = sent(Halves(), array)
    np.testing.assert_array_equal(got, array)
    assert got.flags.writeable and Halves().wire_name == "halves(wrong='')"
    with pytest.raises(BadMessage, match="cannot decode it: the table has no such entry") as failed:
        sent(Halves("raises"), array)
    assert isinstance(failed.value.__cause__, IndexError)
    with pytest.raises(BadMessage, match=r"decoded float16\[5, 8\] instead of float32\[5, 8\]"):
        sent(Halves("type"), array)
    for method in (lambda: Codec().encode(array), lambda: Codec().decode(memoryview(b""), (), array.dtype)):
        with pytest.raises(NotImplementedError):
            method()


def test_the_codec_of_the_guide_works():
    text = (Path(__file__).parents[3] / "docs/explanation/compression.md").read_text(encoding="utf-8")
    code = text.rpartition("```python\n")[2].partition("```")[0]
    definition, _, call = code.partition("\nhc.allreduce(")
    assert "compression=Whole(step=0.5)" in call
    names = {"__name__": __name__}
    exec(definition, names)
    codec = names["Whole"](step=0.5)
    assert codec.wire_name == "whole(step=0.5)"
    array = np.random.default_rng(13).standard_normal((40, 3)).astype(np.float32)
    assert np.abs(sent(codec, array) - array).max() <= 0.25
    assert encoded(codec, Values(kind_of(array), array)).nbytes < 0.7 * array.nbytes
    for special in (np.nan, np.inf, 1e30):
        array[0, 0] = special
        assert sent(codec, array).tobytes() == array.tobytes()


# ---- residuals


def residuals_of(*names, process_set=0):
    residuals = Residuals()
    for name in names:
        residual = residuals.take(Key(process_set, "allreduce", name, 0), (2,), np.float32, lambda _: False)
        residual.values = np.ones(2, np.float32)
    return residuals


def take(residuals, name="a", shape=(2,), process_set=0, unfinished=False, dtype=np.float32):
    return residuals.take(Key(process_set, "allreduce", name, 0), shape, np.dtype(dtype), lambda _: unfinished)


def test_a_residual_belongs_to_a_name_and_a_process_set():
    residuals = residuals_of("a", "b")
    assert take(residuals).values is not None
    assert take(residuals, process_set=1).values is None and take(residuals, name=b"a").values is None
    residuals.forget("b")
    assert take(residuals, "b").values is None and take(residuals).values is not None
    residuals.forget(process_set=1)
    assert take(residuals).values is not None
    residuals.forget()
    assert len(residuals) == 0


class Owner:
    """Owns residuals, like an optimizer."""


def test_the_residuals_of_an_owner_go_with_it():
    residuals, owner = Residuals(), Owner()
    part = residuals.part_of(owner)
    assert residuals.part_of(owner) is part
    take(part)
    assert len(residuals) == 1
    residuals.forget("a")
    assert len(part) == 0
    take(part)
    del owner, part
    assert len(residuals) == 0


def test_a_residual_that_does_not_fit_or_is_not_known_yet_is_an_error():
    residuals = residuals_of("a")
    with pytest.raises(hc.InvalidArgumentError, match=r"'a' of process set 0 is float32\[3\] .* was float32\[2\]"):
        take(residuals, shape=(3,))
    with pytest.raises(hc.InvalidArgumentError, match=r"float64\[2\] .* was float32\[2\]"):
        take(residuals, dtype=np.float64)
    take(residuals).handle = 5
    with pytest.raises(hc.DuplicateNameError, match=r"result of the last allreduce .* still to be fetched"):
        take(residuals, unfinished=True)
    assert take(residuals).values is not None


def test_residuals_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(Residuals, "LIMIT", 3)
    residuals = residuals_of("a", "b", "c")
    with pytest.raises(hc.InvalidArgumentError, match=r"residuals of 3 tensors are kept.*'d'.*same in every step"):
        take(residuals, "d")
    assert take(residuals, "c").values is not None
