"""Text of foreign origin (names, hosts, reasons, what a file or another process says) on its way to a terminal."""

from __future__ import annotations


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
