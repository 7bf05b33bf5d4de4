"""The packing kernels of the calibration agree with NumPy; an interpreter runs their PTX, without a GPU."""

import re

import numpy as np
import pytest
from ptx_interpreter import Interpreter

from benchmarks.gpu import cuda_packing, packing_kernels
from benchmarks.gpu.packing_kernels import CASTS, PACK, RAW, SCALED, SIZES, UNPACK, Packer, kernel_name, kernels

COUNTS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 130)
LAUNCHES = ((2, 3, 16), (3, 8, 112))  # blocks, threads and elements of a part


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.setattr(cuda_packing, "COUNTS", COUNTS)
    return Interpreter()


@pytest.mark.parametrize(("source", "target", "unroll"), kernels(), ids=[kernel_name(*kernel) for kernel in kernels()])
def test_a_kernel_writes_every_element_of_every_tensor_and_nothing_else(driver, source, target, unroll):
    packer, scale = Packer(driver), 1.0 if source in RAW or source != target else 1 / 3
    for layout in cuda_packing.LAYOUTS:
        for direction, launch, seed in ((PACK, LAUNCHES[0], 1), (UNPACK, LAUNCHES[1], 2)):
            kinds = (source, target)
            error = cuda_packing.compare(driver, packer, kinds, scale, layout, direction, launch, unroll, seed)
            assert not error, f"{layout}, direction {direction}, launch {launch}, seed {seed}: {error}"
    cases = 2 * len(cuda_packing.LAYOUTS)
    assert driver.launches == cases
    assert driver.stored == cases * sum(COUNTS) * SIZES[target], "some bytes are written twice"


def test_the_library_has_the_kernels_that_were_tried_here():
    assert packing_kernels.PRODUCT.read_text() == packing_kernels.product_ptx(), (
        "python -m benchmarks.gpu.packing_kernels"
    )
    assert set(re.findall(r"entry (\w+)", packing_kernels.product_ptx())) == {
        kernel_name(kind, kind) for kind in (*RAW, *SCALED)
    }


def test_a_kernel_exists_for_every_type_and_cast():
    pairs = {(source, target) for source, target, _ in kernels()}
    assert pairs == {*((kind, kind) for kind in (*RAW, *SCALED)), *CASTS}


def test_parts_with_different_alignment_raise(driver):
    with pytest.raises(ValueError, match="multiple of 16"):
        Packer(driver).table([(256, 0, 100)], part_length=24)


def test_a_table_has_a_part_for_each_piece_of_a_tensor_and_none_for_an_empty_tensor(driver):
    table = Packer(driver).table([(4096, 0, 33), (8192, 40, 0), (16384, 40, 16)], part_length=16)
    assert table.number_of_parts == 4
    parts = np.frombuffer(driver.download(table.parts, 32), np.uint32).reshape(-1, 2)
    assert parts.tolist() == [[0, 0], [0, 1], [0, 2], [2, 0]]


def test_bfloat16_is_rounded_to_the_nearest_with_ties_to_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0xFFFFFFFF, 0x00008000], np.uint32)
    seen = cuda_packing.narrowed(bits.view(np.float32), "bf16")
    assert [hex(value) for value in seen] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80", "0x7fc0", "0xffff", "0x0"]
