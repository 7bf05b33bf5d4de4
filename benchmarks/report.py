"""Tables, for the terminal and as Markdown, from the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import OURS, Figure


@dataclass(frozen=True)
class Table:
    """Cells of text; the first column is aligned to the left, the others to the right."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""

    def __str__(self) -> str:
        cells = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        left = self._left()

        def line(row: Sequence[str]) -> str:
            padded = [
                cell.ljust(width) if i < left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            return "| " + " | ".join(padded) + " |"

        rule = [("-" * width) if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
        text = [f"### {self.title}", "", line(self.columns), "| " + " | ".join(rule) + " |", *map(line, self.rows)]
        return "\n".join([*text, *(["", self.note] if self.note else []), ""])

    def _left(self) -> int:
        return 2 if len(self.columns) > 1 and self.columns[1] == "implementation" else 1


def plain(title: str, figures: Sequence[Figure]) -> Table:
    """The usual table: one row per figure, one column per peer."""
    peers = list(dict.fromkeys(figure.impl for figure in figures if not figure.impl.startswith(OURS)))
    columns = ["case", "implementation", "ranks", "unit", "median", "quartiles", "best", "CPU us", "repetitions"]
    rows = [
        [
            figure.case,
            figure.impl,
            str(figure.ranks),
            figure.unit,
            number(figure.median),
            f"{number(figure.spread[0])} .. {number(figure.spread[1])}",
            number(figure.best),
            "" if figure.cpu_us is None else number(figure.cpu_us),
            str(figure.repetitions),
            *(f"{figure.ratio[peer]:.2f}" if peer in figure.ratio else "" for peer in peers),
        ]
        for figure in figures
    ]
    note = "CPU: of one rank's process, all its threads, for one run."
    if peers:
        note += " 'x peer': how many times as fast as the peer, median over the repetitions' pairs."
    return Table(title, columns + [f"x {peer}" for peer in peers], rows, note)


def number(value: float) -> str:
    """Format a value with three significant digits, with thousands separated and without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def size_label(size: int) -> str:
    """``4 B``, ``16 KiB``, ``1 MiB``."""
    for unit, step in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= step:
            return f"{size // step} {unit}"
    return f"{size} B"
