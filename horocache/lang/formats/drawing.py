"""Drawings of programs: the schedule as SVG or text, and the chunk DAG as SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import defaultdict, deque
from collections.abc import Iterator

from horocache.lang.frontend.trace import REDUCE, Operation, Program
from horocache.lang.program.compiled_program import CompiledProgram, Operand, Step
from horocache.lang.program.instruction_dag import POPS, PUSHES

At = tuple[int, int, int]  # rank, thread block, step
_CELL, _ROW, _LEFT, _TOP = 92, 30, 150, 48
_FILL = {"s": "#dbeafe", "r": "#dcfce7", "cpy": "#f1f5f9", "re": "#fef3c7"}
_FUSED = {"rrc": "#fde68a", "rcs": "#bfdbfe", "rrs": "#fed7aa", "rrcs": "#fdba74"}
_STYLE = (
    "text{font:11px sans-serif;fill:#0f172a}.t{font-size:15px;font-weight:bold}line{stroke:#64748b}.w{stroke:#dc2626}"
)


def draw(program: CompiledProgram, written: Program | None = None) -> str:
    """Draw a program as SVG: the schedule, and below it the chunk DAG of ``written``, if given.

    The schedule has one row for each thread block and one column for each level.
    """
    root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg"})
    ET.SubElement(root, "style").text = _STYLE
    marker = ET.SubElement(ET.SubElement(root, "defs"), "marker", _ARROW)
    ET.SubElement(marker, "path", {"d": "M0,0L8,4L0,8z", "fill": "#64748b"})
    width, height = _draw_schedule(root, program)
    if written is not None:
        more_width, height = _draw_chunks(root, written, height + 40)
        width = max(width, more_width)
    root.set("viewBox", f"0 0 {width} {height}")
    root.set("width", str(width))
    root.set("height", str(height))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


_ARROW = {"id": "a", "markerWidth": "8", "markerHeight": "8", "refX": "8", "refY": "4", "orient": "auto"}


def _text(parent: ET.Element, x: float, y: float, text: str, kind: str = "") -> None:
    attributes = {"x": f"{x:g}", "y": f"{y:g}", **({"class": kind} if kind else {})}
    ET.SubElement(parent, "text", attributes).text = text


def _line(parent: ET.Element, ends: tuple[float, float, float, float], kind: str = "") -> None:
    attributes = dict(zip(("x1", "y1", "x2", "y2"), (f"{end:g}" for end in ends), strict=True))
    ET.SubElement(parent, "line", {**attributes, "marker-end": "url(#a)", **({"class": kind} if kind else {})})


# ---- the schedule


def _draw_schedule(root: ET.Element, program: CompiledProgram) -> tuple[int, int]:
    levels = _levels(program)
    _text(root, 10, 24, f"{program.name}: {program.collective.name}, {program.ranks} ranks", "t")
    row_of: dict[tuple[int, int], int] = {}
    for rank, one in enumerate(program.programs):
        for s, thread_block in enumerate(one.thread_blocks):
            row_of[rank, s] = len(row_of)
            peers = [f"from {thread_block.receive}"] * (thread_block.receive >= 0) + [f"to {thread_block.send}"] * (
                thread_block.send >= 0
            )
            label = f"rank {rank}.{s} {' '.join(peers)}" + (f" ch {thread_block.channel}" if peers else "")
            _text(root, 10, _TOP + row_of[rank, s] * _ROW + 15, label)

    def corner(at: At) -> tuple[float, float]:
        return _LEFT + levels[at] * _CELL, _TOP + row_of[at[:2]] * _ROW

    for at, step in _steps(program):
        for other, index in step.waits:
            (x1, y1), (x2, y2) = corner((at[0], other, index)), corner(at)
            _line(root, (x1 + _CELL - 20, y1 + 11, x2, y2 + 11), "w")
    for push, pop in _messages(program):
        (x1, y1), (x2, y2) = corner(push), corner(pop)
        _line(root, (x1 + _CELL - 20, y1 + 11, x2, y2 + 11))
    for at, step in _steps(program):
        x, y = corner(at)
        fill = {**_FILL, **_FUSED}[step.op]
        box = {"x": f"{x:g}", "y": f"{y:g}", "width": str(_CELL - 20), "height": "22", "rx": "3", "fill": fill}
        ET.SubElement(root, "rect", {**box, "stroke": "#94a3b8"})
        _text(root, x + 4, y + 15, f"{step.op} {_short(step)}")
    return _LEFT + (1 + max(levels.values(), default=0)) * _CELL, _TOP + len(row_of) * _ROW + 10


def _short(step: Step) -> str:
    place = step.source or step.destination
    assert place is not None
    count = "" if step.count == 1 else f"+{step.count}"
    return f"{place[0][:3]}[{place[1]}{count}]"


def _steps(program: CompiledProgram) -> Iterator[tuple[At, Step]]:
    for rank, one in enumerate(program.programs):
        for s, thread_block in enumerate(one.thread_blocks):
            for i, step in enumerate(thread_block.steps):
                yield (rank, s, i), step


def _messages(program: CompiledProgram) -> list[tuple[At, At]]:
    """For each message the step that pushes it and the step that pops it; connections deliver in order."""
    queues: dict[tuple[int, int, int], deque[At]] = defaultdict(deque)
    for at, step in _steps(program):
        thread_block = program.programs[at[0]].thread_blocks[at[1]]
        if step.op in PUSHES:
            queues[at[0], thread_block.send, thread_block.channel].append(at)
    pairs = []
    for at, step in _steps(program):
        thread_block = program.programs[at[0]].thread_blocks[at[1]]
        if step.op in POPS:
            pairs.append((queues[thread_block.receive, at[0], thread_block.channel].popleft(), at))
    return pairs


def _levels(program: CompiledProgram) -> dict[At, int]:
    """The earliest turn in which each step can run, if every step takes one turn."""
    before: dict[At, list[At]] = {at: [] for at, _ in _steps(program)}
    for at, step in _steps(program):
        rank, s, i = at
        before[at] += [(rank, s, i - 1)] * (i > 0) + [(rank, other, index) for other, index in step.waits]
    for push, pop in _messages(program):
        before[pop].append(push)
    levels: dict[At, int] = {}
    for start in before:
        stack = [start]
        while stack:
            at = stack[-1]
            missing = [one for one in before[at] if one not in levels]
            if missing:
                stack += missing
                continue
            levels[at] = 1 + max((levels[one] for one in before[at]), default=-1)
            stack.pop()
    return levels


# ---- the chunk DAG


def _draw_chunks(root: ET.Element, program: Program, top: int) -> tuple[int, int]:
    """One node for each operation, in the column of its depth, with edges from the last writers of its chunks."""
    _text(root, 10, top, "Operations on chunks, as they were written", "t")
    edges, boxes = ET.SubElement(root, "g"), ET.SubElement(root, "g")
    rows: dict[int, int] = defaultdict(int)
    last: dict[tuple[int, str, int], int] = {}  # the operation that wrote each place last
    nodes: list[tuple[int, float, float]] = []  # depth, x and y of the corner
    wide = 2 * _CELL + 60
    for number, operation in enumerate(program.operations):
        ends = (operation.source, operation.destination)
        touched = [(place.rank, place.buffer, place.index + i) for place in ends for i in range(place.count)]
        before = sorted({last[place] for place in touched if place in last})
        depth = 1 + max((nodes[one][0] for one in before), default=-1)
        x, y = 20 + depth * wide, top + 16 + rows[depth] * _ROW
        for one in before:
            _line(edges, (nodes[one][1] + wide - 30, nodes[one][2] + 11, x, y + 11))
        _draw_operation(boxes, operation, (x, y), wide - 30)
        last.update({place: number for place in touched[operation.source.count :]})
        nodes.append((depth, x, y))
        rows[depth] += 1
    return 20 + (1 + max(rows, default=0)) * wide, top + 26 + max(rows.values(), default=0) * _ROW


def _draw_operation(parent: ET.Element, operation: Operation, corner: tuple[float, float], width: int) -> None:
    x, y = corner
    reduces = operation.kind == REDUCE
    box = {"x": f"{x:g}", "y": f"{y:g}", "width": str(width), "height": "22", "rx": "3"}
    ET.SubElement(parent, "rect", {**box, "fill": _FILL["re" if reduces else "s"], "stroke": "#94a3b8"})
    target, source = (_place(one.rank, (one.buffer, one.index)) for one in (operation.destination, operation.source))
    times = "" if operation.source.count == 1 else f" x {operation.source.count}"
    _text(parent, x + 4, y + 15, f"{target} {'+=' if reduces else '='} {source}{times}")


def _place(rank: int, place: Operand) -> str:
    return f"{place[0]}[{place[1]}]@{rank}"


# ---- text


def describe(program: CompiledProgram) -> str:
    """All thread blocks as text, with one line for each step."""
    lines = [f"{program.name}: {program.collective.name}, {program.ranks} ranks, refinement {program.refinement}"]
    for rank, one in enumerate(program.programs):
        scratch = "".join(f", {name}[{chunks}]" for name, chunks in one.scratch.items())
        lines.append(f"rank {rank}{scratch}")
        for s, thread_block in enumerate(one.thread_blocks):
            lines.append(
                f"  thread block {s}: from {thread_block.receive}, to {thread_block.send}, "
                f"channel {thread_block.channel}"
            )
            lines += [f"    {i}: {_full(step)}" for i, step in enumerate(thread_block.steps)]
    return "\n".join(lines)


def _full(step: Step) -> str:
    places = [
        f"{word} {place[0]}[{place[1]}:{place[1] + step.count}]"
        for word, place in (("from", step.source), ("at", step.destination))
        if place is not None
    ]
    waits = [f"after {other}.{index}" for other, index in step.waits]
    return " ".join([step.op, *places, *waits])
