"""Make a libnccl.so.2 small enough to carry to a GPU: of its kernels, those for one kind of GPU stay.

    python benchmarks/gpu/prune_nccl.py nvidia/nccl/lib/libnccl.so.2 libnccl.so.2 --architecture 90

The file keeps its length, but most of it becomes zeros, which compression removes; nothing moves. It is for
measurements on that kind of GPU only: never ship it.

The kernels are in the section ``.nv_fatbin``: containers, each a head of 16 bytes (magic number, version, length of the
head, length of the rest) and entries (kind, version, length of the head, length of the code, and at byte 28 the
architecture; kind 2 is machine code). Entries of other kinds or architectures are cleared, and so are the debugging
sections and ``__nv_relfatbin``.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = 0xBA55ED50
MACHINE_CODE = 2
CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQ")
SECTION = struct.Struct("<IIQQQQ")


class Section(NamedTuple):
    """A section of an ELF file."""

    name: str
    offset: int
    length: int


def sections(data: bytearray) -> Iterator[Section]:
    """Yield the sections of a 64-bit little-endian ELF file.

    Raises:
        ValueError: it is another kind of file.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    heads = [SECTION.unpack_from(data, table + number * size) for number in range(count)]
    texts = heads[names][4]
    for name, _, _, _, offset, length in heads:
        start = texts + name
        yield Section(data[start : data.index(b"\0", start)].decode(), offset, length)


def prune(data: bytearray, architecture: int) -> int:
    """Clear what ``architecture`` (90 for an H100) does not need; return the number of cleared bytes.

    Raises:
        ValueError: the file has no kernels for the architecture, or is not a library.
    """
    cleared, kept = 0, 0
    for name, offset, length in list(sections(data)):
        if name == "__nv_relfatbin" or name.startswith(".debug"):
            data[offset : offset + length] = bytes(length)
            cleared += length
        if name != ".nv_fatbin":
            continue
        for place, size, kind, of in _entries(data, offset, offset + length):
            if kind == MACHINE_CODE and of == architecture:
                kept += 1
            else:
                data[place : place + size] = bytes(size)
                cleared += size
    if kept == 0:
        raise ValueError(f"it has no kernels for the architecture {architecture}")
    return cleared


def _entries(data: bytearray, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield place and length of the code, kind and architecture of each entry."""
    while at + CONTAINER.size <= end:
        magic, _, head, rest = CONTAINER.unpack_from(data, at)
        if magic != MAGIC:
            at += 8  # between containers
            continue
        entry, at = at + head, at + head + rest
        while entry < at:
            kind, _, own_head, code = ENTRY.unpack_from(data, entry)
            (architecture,) = struct.unpack_from("<I", data, entry + 28)
            yield entry + own_head, code, kind, architecture
            entry += own_head + code


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument(
        "--architecture", type=int, default=90, help="10 * major + minor of the compute capability (90)"
    )
    options = parser.parse_args()
    data = bytearray(options.source.read_bytes())
    try:
        cleared = prune(data, options.architecture)
    except ValueError as error:
        parser.error(f"{options.source}: {error}")
    options.target.write_bytes(data)
    print(f"{cleared} of {len(data)} bytes are zeros now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
