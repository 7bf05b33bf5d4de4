"""Reads files whose size is not trusted, and escapes text whose characters are not trusted."""

from __future__ import annotations

from pathlib import Path


def printable(text: str, keep: str = "") -> str:
    r"""Escape every character that a terminal acts on instead of showing it.

    These are control characters (C0, DEL, C1), marks that change the direction of writing, other invisible format
    characters, line separators, and code points without a character.

    Args:
        text: the untrusted text.
        keep: characters that are not escaped, such as ``"\n\t"`` for text of several lines.

    Returns:
        ``text`` with each such character replaced by its escape sequence, such as ``\x1b`` or ``\u202e``.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a file or a pipe, such as ``<(zcat FILE)``, which may have any size or be endless.

    Raises:
        ValueError: the file has more than ``most_bytes``. OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        data = bytearray()
        while len(data) <= most_bytes:
            piece = file.read(min(1 << 20, most_bytes + 1 - len(data)))
            if not piece:
                return bytes(data)
            data += piece
    raise ValueError(f"it has more than {most_bytes} bytes")
