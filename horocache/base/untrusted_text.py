"""Reads files whose size is not trusted, and escapes text whose characters are not trusted."""

from __future__ import annotations

import os
import re
import stat
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


def read_regular_file(name: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Read a regular file; a directory, a device or a FIFO is refused without a wait for its other end.

    Raises:
        ValueError: the file cannot be opened or read, is not a regular file, or has more than ``most_bytes``. The
            message is the predicate of a sentence whose subject is the file.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be opened: {getattr(error, 'strerror', None) or error}.") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a regular file.")
        if status.st_size > most_bytes:
            raise ValueError(f"has {status.st_size} bytes; {most_bytes} are allowed.")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}.") from None
    finally:
        os.close(descriptor)


def pointer_first(text: str) -> str:
    """Move the path in a message of msgspec to the front, as a JSON pointer: slashes instead of dots."""
    match = re.fullmatch(r"(.*?) - at `(?:key in )?\$(.*)`", text, re.DOTALL)
    if match is None:
        return f"/: {text}."
    pointer = re.sub(r"\[(\d+|\.\.\.)\]", r"/\1", match[2].replace(".", "/").replace("///", "..."))
    return f"{pointer or '/'}: {match[1]}."
