"""The layers between the user's tensors and the wire: compression, grouping, logging."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pytest

from horocache.collectives.numpy import Compression
from horocache.collectives.transforms import layer_list
from horocache.errors import InvalidArgumentError


def test_the_signature_names_the_compression_which_must_be_equal_on_all_ranks():
    assert layer_list(None, False).signature == ""
    assert layer_list(Compression.none, True).signature == ""
    assert layer_list(Compression.fp16, False).signature == "compression=fp16"
    assert layer_list(Compression.fp16, True).group and not layer_list(Compression.fp16, False).group


def test_the_signature_of_a_compressor_without_a_wire_name_is_its_class():
    class Quantized:
        compress = staticmethod(lambda tensor: (tensor, None))
        decompress = staticmethod(lambda tensor, ctx: tensor)

    assert layer_list(Quantized, False).signature == "compression=Quantized"


def test_the_signature_of_a_compressor_object_is_its_class():
    @dataclass
    class Scaled:
        factor: float

        def compress(self, tensor):
            return tensor * self.factor, self.factor

        def decompress(self, tensor, ctx):
            return tensor / ctx

    assert layer_list(Compression.fp16(), False).signature == "compression=fp16"
    layers = layer_list(Scaled(4.0), False)
    assert layers.signature == "compression=Scaled"
    wire, contexts = layers.encode([np.ones(2)])
    assert wire[0].tolist() == [4.0, 4.0] and layers.decode(wire, contexts)[0].tolist() == [1.0, 1.0]


def test_an_object_without_the_methods_of_a_compressor_raises():
    for wrong in ("fp16", ["fp16"], Compression, int):
        with pytest.raises(InvalidArgumentError, match=r"compress and decompress, as Compression\.fp16") as failed:
            layer_list(wrong, False)
        assert repr(wrong) in str(failed.value)


def test_decoded_tensors_have_the_original_type():
    layers = layer_list(Compression.fp16, True)
    tensors = [np.arange(3.0), np.arange(3)]
    wire, contexts = layers.encode(tensors)
    assert [t.dtype for t in wire] == [np.float16, np.int64]
    back = layers.decode(wire, contexts)
    assert [t.dtype for t in back] == [np.float64, np.int64]
    np.testing.assert_array_equal(back[0], tensors[0])


def test_calls_with_the_same_options_share_layers():
    assert layer_list(Compression.fp16, True) is layer_list(Compression.fp16, True)


def test_the_logging_layer_logs_the_tensors_on_the_wire(caplog):
    with caplog.at_level(logging.DEBUG, logger="horocache.tensors"):
        layers = layer_list(Compression.fp16, False)
        wire, contexts = layers.encode([np.ones((2, 3), np.float32)])
        layers.decode(wire, contexts)
    assert [record.getMessage() for record in caplog.records] == ["submit float16[2, 3]", "finish float16[2, 3]"]
