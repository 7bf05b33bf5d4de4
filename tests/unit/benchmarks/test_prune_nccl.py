"""The kernels that stay in a library of NCCL that is carried to a GPU."""

import struct
from pathlib import Path

import pytest

from benchmarks.gpu import prune_nccl


def entry(kind: int, architecture: int, code: bytes) -> bytes:
    return (
        struct.pack("<HHIQ", kind, 0x101, 64, len(code))
        + bytes(12)
        + struct.pack("<I", architecture)
        + bytes(32)
        + code
    )


def container(*entries: bytes) -> bytes:
    rest = b"".join(entries)
    return struct.pack("<IHHQ", prune_nccl.MAGIC, 1, 16, len(rest)) + rest


def library(*sections: tuple[str, bytes]) -> bytearray:
    """An ELF file of these sections and one with their names."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in sections) + b".shstrtab\0"
    bodies = [*sections, (".shstrtab", names)]
    data, heads = bytearray(64), bytearray(64)
    for name, body in bodies:
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        heads += struct.pack("<IIQQQQ", place, 1, 0, 0, len(data), len(body)).ljust(64, b"\0")
        data += body
    data[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", data, 40, len(data))
    struct.pack_into("<HHH", data, 58, 64, len(bodies) + 1, len(bodies))
    return data + heads


def test_only_machine_code_for_the_architecture_stays() -> None:
    codes = [b"for 80", b"for 90", b"as text", b"another"]
    first = container(entry(2, 80, codes[0]), entry(2, 90, codes[1]), entry(1, 90, codes[2]))
    fat = first + bytes(8) + container(entry(2, 90, codes[3]))
    data = library((".text", b"for 80"), (".nv_fatbin", fat), (".debug_info", b"lines"))
    length = len(data)
    assert prune_nccl.prune(data, 90) == len(codes[0]) + len(codes[2]) + len(b"lines") and len(data) == length
    assert data.count(b"for 80") == 1, "that of the host stays"
    assert b"for 90" in data and b"another" in data and b"as text" not in data and b"lines" not in data


def test_a_library_without_kernels_for_the_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no kernels for the architecture 90"):
        prune_nccl.prune(library((".nv_fatbin", container(entry(2, 80, b"x")))), 90)
    with pytest.raises(ValueError, match="not a 64-bit ELF file"):
        prune_nccl.prune(bytearray(b"text"), 90)
