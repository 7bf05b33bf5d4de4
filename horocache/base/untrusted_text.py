"""What others wrote: how it is read without trust in its size, and shown without trust in its characters."""

from __future__ import annotations

from pathlib import Path


def printable(text: str, keep: str = "") -> str:
    r"""Escape every character that a terminal acts on instead of showing it.

    These are the control characters of both sets (C0, DEL, C1), marks that turn the direction of writing, other
    invisible format characters, line separators, and code points without a character.

    Args:
        text: whatever somebody else wrote.
        keep: characters that pass as they are, such as ``"\n\t"`` for text of several lines.

    Returns:
        ``text`` with ``\x1b``, ``\u202e`` and so on in their places.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a file, or a pipe such as ``<(zcat FILE)``, that may have any size, or no end.

    Raises:
        ValueError: it has more than ``most_bytes``. OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        data = bytearray()
        while len(data) <= most_bytes:
            piece = file.read(min(1 << 20, most_bytes + 1 - len(data)))
            if not piece:
                return bytes(data)
            data += piece
    raise ValueError(f"it has more than {most_bytes} bytes")
