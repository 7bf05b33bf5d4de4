"""Export and import of MSCCL-XML, the format that msccl-tools writes and the runtimes of MSCCL and RCCL read.

Note [What the runtimes do]
A step waits for at most one other step (``depid``, ``deps``). Further waits become ``nop`` steps before it. A step that
receives and reduces adds the message to the chunks at ``srcbuf`` and ``srcoff`` of its own rank. A step that receives
and sends waits until it has both a message and a free slot. ``hasdep`` marks steps that other steps wait for. The
runtimes refuse a file without ``inplace``, ``outofplace``, ``minBytes`` and ``maxBytes``.
A file with ``inplace`` is for calls in place; with ``outofplace`` as well, it is also for calls out of place. Its steps
may use the name of the output for the input, because in place both are the same memory. horocache imports such a file
as a program in place, which runs calls of both kinds.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from horocache.lang.compiler.compiler import compile_for_msccl
from horocache.lang.errors import DeadlockError, ProgramError, ProgramFileError, ScheduleError
from horocache.lang.frontend.collectives import INPUT, OUTPUT, Collective
from horocache.lang.frontend.trace import Program
from horocache.lang.program.collective_spec import collective_of, promise_of
from horocache.lang.program.compiled_program import CompiledProgram, Operand, Promise, RankProgram, Step, ThreadBlock
from horocache.lang.program.instruction_dag import POPS, READS_DESTINATION, READS_SOURCE
from horocache.lang.verify.validate import MAX_STEPS
from horocache.lang.verify.verifier import verify

_LETTERS = {INPUT: "i", OUTPUT: "o"}
_NAMES = {"i": INPUT, "o": OUTPUT, "s": "scratch"}
_COLLECTIVES = {"reduce_scatter": "reducescatter"}
MAX_XML_BYTES = 64 << 20
_MOST_TAG_BYTES = 1 << 15  # with attributes; about 200 are usual. Must be below the repetition limit of a regex
_MOST_ELEMENTS = 2 * MAX_STEPS

Element = ET.Element


class _Builder(ET.TreeBuilder):
    """Tree builder that refuses input that could use much memory or other files: entities, and too many elements.

    It sees entities in any encoding of the file.
    """

    def __init__(self) -> None:
        super().__init__()
        self._elements = 0

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ProgramFileError("declares a document type or entities, which no program needs.")

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._elements += 1
        if self._elements > _MOST_ELEMENTS:
            raise ProgramFileError(f"has more than {_MOST_ELEMENTS} elements.")
        return super().start(tag, attrs)


# ---- export


def export(program: CompiledProgram | Program) -> str:
    """Convert a program to MSCCL-XML. The chunks of the file are the program's fine chunks.

    Args:
        program: a written program, or a program compiled by :func:`horocache.lang.compile_for_msccl`.

    Raises:
        ScheduleError: the program deadlocks in a runtime whose connections have one slot.
    """
    if isinstance(program, Program):
        program = compile_for_msccl(program)
    collective = collective_of(program.collective, program.ranks)
    _check_one_slot(program, collective)
    fine = program.refinement
    sizes = [collective.buffers(rank) for rank in range(program.ranks)]
    channels = [thread_block.channel for one in program.programs for thread_block in one.thread_blocks]
    attributes = {
        "name": program.name,
        "proto": "Simple" if program.protocol in ("auto", "Direct") else program.protocol,
        "nchannels": max(channels, default=0) + 1,
        "nchunksperloop": fine * max(max(one.values()) for one in sizes),
        "ngpus": program.ranks,
        "coll": program.collective.name,
        "inplace": int(program.collective.inplace),
        "outofplace": int(not program.collective.inplace),
        "minBytes": program.min_bytes,
        "maxBytes": program.max_bytes,
    }
    if collective.root is not None:
        attributes["root"] = collective.root  # not in the format; readers ignore attributes that they do not know
    root = _element("algo", attributes)
    for rank, one in enumerate(program.programs):
        chunks = {"i_chunks": sizes[rank].get(INPUT, 0) * fine, "o_chunks": sizes[rank].get(OUTPUT, 0) * fine}
        gpu = ET.SubElement(root, "gpu")
        gpu.attrib.update(_texts({"id": rank, **chunks, "s_chunks": sum(one.scratch.values())}))
        gpu.extend(_blocks(one))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode")


def _check_one_slot(program: CompiledProgram, collective: Collective) -> None:
    """Raise ScheduleError if the program needs more than one slot.

    A file cannot say how many slots its program needs. A program that runs with one slot also runs with more.
    """
    try:
        verify(msgspec.structs.replace(program, min_slots=1), collective, at_once=True)
    except DeadlockError as error:
        raise ScheduleError(
            f"program {program.name!r} deadlocks in MSCCL's runtimes where a connection has one slot. Export what "
            f"compile_for_msccl() returns. {error}"
        ) from None


def beyond_limits(program: CompiledProgram) -> list[str]:
    """The limits of RCCL's runtime (its msccl_struct.h) that a program exceeds, one line for each."""
    thread_blocks = [thread_block for one in program.programs for thread_block in one.thread_blocks]
    blocks = max((len(one.thread_blocks) for one in program.programs), default=0)
    steps = max(
        (sum(max(1, len(step.waits)) for step in thread_block.steps) for thread_block in thread_blocks), default=0
    )
    counts = max((step.count for thread_block in thread_blocks for step in thread_block.steps), default=0)
    channels = 1 + max((thread_block.channel for thread_block in thread_blocks), default=0)
    found = (
        ("steps of a thread block", steps, 64),
        ("thread blocks of a rank", blocks, 32 * channels),
        ("chunks of a step", counts, 71),
        ("channels", channels, 32),
    )
    return [f"{number} {what}; the runtimes have room for {most}" for what, number, most in found if number > most]


def _texts(attributes: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in attributes.items()}


def _element(tag: str, attributes: dict[str, object]) -> Element:
    return ET.Element(tag, _texts(attributes))


def _blocks(one: RankProgram) -> Iterator[Element]:
    """The thread blocks of a rank as XML elements."""
    offsets, end = {}, 0
    for name, chunks in one.scratch.items():
        offsets[name], end = end, end + chunks
    numbers = [list(_numbers(thread_block)) for thread_block in one.thread_blocks]
    awaited = {wait for thread_block in one.thread_blocks for step in thread_block.steps for wait in step.waits}
    for s, thread_block in enumerate(one.thread_blocks):
        block = _element(
            "tb", {"id": s, "send": thread_block.send, "recv": thread_block.receive, "chan": thread_block.channel}
        )
        for i, step in enumerate(thread_block.steps):
            waits = [(other, numbers[other][index]) for other, index in step.waits] or [(-1, -1)]
            first = numbers[s][i] - len(waits) + 1
            for k, (other, index) in enumerate(waits):
                is_last = k == len(waits) - 1
                attributes = {"s": first + k, **(_places(step, offsets) if is_last else _NOTHING)}
                dependence = {"depid": other, "deps": index, "hasdep": int(is_last and (s, i) in awaited)}
                block.append(_element("step", {**attributes, **dependence}))
        yield block


_NOTHING = {"type": "nop", "srcbuf": "i", "srcoff": -1, "dstbuf": "o", "dstoff": -1, "cnt": 0}


def _numbers(thread_block: ThreadBlock) -> Iterator[int]:
    """The number of each step in the file, where all but one of a step's waits are nop steps before it."""
    number = -1
    for step in thread_block.steps:
        number += max(1, len(step.waits))
        yield number


def _places(step: Step, offsets: dict[str, int]) -> dict[str, object]:
    """The attributes for source and destination; a step with only one of them has it as both."""
    source = step.source or step.destination
    destination = step.destination or step.source
    assert source is not None and destination is not None
    (srcbuf, srcoff), (dstbuf, dstoff) = (_letter(place, offsets) for place in (source, destination))
    return {"type": step.op, "srcbuf": srcbuf, "srcoff": srcoff, "dstbuf": dstbuf, "dstoff": dstoff, "cnt": step.count}


def _letter(place: Operand, offsets: dict[str, int]) -> tuple[str, int]:
    buffer, index = place
    return (_LETTERS[buffer], index) if buffer in _LETTERS else ("s", offsets[buffer] + index)


# ---- import


def parse(text: str | bytes, collective: Collective | None = None) -> CompiledProgram:
    """Read a program from MSCCL-XML and verify it.

    Args:
        text: contents of the file.
        collective: the collective that the program implements; required if the file does not name a known collective.

    Raises:
        ProgramFileError: the contents are not MSCCL-XML, or the program is wrong.
    """
    contents = text.encode() if isinstance(text, str) else text
    if len(contents) > MAX_XML_BYTES:
        raise ProgramFileError(f"has {len(contents)} bytes; {MAX_XML_BYTES} are allowed.")
    if re.search(b"[^<]{%d}" % _MOST_TAG_BYTES, contents):
        raise ProgramFileError(f"has a tag, or text, of more than {_MOST_TAG_BYTES} bytes.")
    try:
        root = ET.fromstring(contents, ET.XMLParser(target=_Builder()))  # noqa: S314 - it takes no entities
    except (ET.ParseError, ValueError, LookupError) as error:
        raise ProgramFileError(f"is not XML: {error}.") from None
    if root.tag != "algo":
        raise ProgramFileError(f"/{root.tag[:40]}: a program's is 'algo'.")
    gpus = sorted(root.findall("gpu"), key=lambda gpu: _number(gpu, "id", "/algo/gpu"))
    made = collective or _collective(root, gpus)
    if [_number(gpu, "id", "/algo/gpu") for gpu in gpus] != list(range(made.num_ranks)):
        raise ProgramFileError(f"/algo/gpu: the ids are not 0 to {made.num_ranks - 1}.")
    programs = tuple(_rank(gpu, rank, made) for rank, gpu in enumerate(gpus))
    protocol = root.get("proto", "Simple")
    if protocol not in ("Simple", "LL", "LL128"):
        raise ProgramFileError(f"/algo/proto: {protocol[:40]!r}; there are Simple, LL and LL128.")
    limits = (_number(root, name, "/algo", 0) for name in ("minBytes", "maxBytes"))
    program = CompiledProgram(
        root.get("name", "imported"),
        promise_of(made),
        made.num_ranks,
        programs,
        uniform=True,
        protocol=protocol,  # type: ignore[arg-type]
        min_bytes=next(limits),
        max_bytes=next(limits),
    )
    return _proved(program, made)


def _proved(program: CompiledProgram, collective: Collective) -> CompiledProgram:
    """Verify the program, and return it with the fewest slots that it needs. Raises ProgramFileError."""
    for slots in range(1, 9):
        candidate = msgspec.structs.replace(program, min_slots=slots)
        try:
            facts = verify(candidate, collective)
        except DeadlockError as error:
            if slots == 8:
                raise ProgramFileError(str(error)) from None
            continue
        except ProgramError as error:
            raise ProgramFileError(str(error)) from None
        return facts.marked(candidate)
    raise AssertionError("unreachable")


def _number(element: Element, name: str, where: str, default: int | None = None) -> int:
    text = element.get(name)
    if text is None and default is not None:
        return default
    try:
        number = int(text or "")
    except ValueError:
        raise ProgramFileError(f"{where}/{name}: {str(text)[:40]!r} is not a number.") from None
    if abs(number) >= 1 << 62:
        raise ProgramFileError(f"{where}/{name}: {text} is too large.")
    return number


def _collective(root: Element, gpus: list[Element]) -> Collective:
    name = root.get("coll", "")
    name = _COLLECTIVES.get(name, name)
    ranks = _number(root, "ngpus", "/algo")
    if not 1 <= ranks <= 4096:
        raise ProgramFileError(f"/algo/ngpus: {ranks} is not from 1 to 4096.")
    inplace = _number(root, "inplace", "/algo", 0) != 0
    largest = [
        max((_number(gpu, chunks, "/algo/gpu", 0) for gpu in gpus), default=0) for chunks in ("i_chunks", "o_chunks")
    ]
    parts = [-(-chunks // ranks) for chunks in largest]
    factors = {
        "allreduce": max(largest),
        "broadcast": max(largest),
        "reduce": max(largest),
        "alltonext": max(largest),
        "allgather": max(largest[0], parts[1]),
        "gather": max(largest[0], parts[1]),
        "reducescatter": parts[0],
        "scatter": parts[0],
        "alltoall": max(parts),
    }
    if name not in factors:
        raise ProgramFileError(f"/algo/coll: {name[:40]!r} is not known; give the collective.")
    if name in ("broadcast", "reduce", "gather", "scatter") and root.get("root") is None:
        raise ProgramFileError(f"/algo/root: there is none, and {name} has one; give the collective.")
    promise = Promise(name, max(1, factors[name]), inplace, _number(root, "root", "/algo", -1))
    return collective_of(promise, ranks)


def _rank(gpu: Element, rank: int, collective: Collective) -> RankProgram:
    where = f"/algo/gpu[{rank}]"
    blocks = gpu.findall("tb")
    numbers = [_number(block, "id", f"{where}/tb") for block in blocks]
    if sorted(numbers) != list(range(len(blocks))):
        raise ProgramFileError(f"{where}/tb: the ids are not 0 to {len(blocks) - 1}.")
    ordered = [block for _, block in sorted(zip(numbers, blocks, strict=True), key=lambda pair: pair[0])]
    rows = [_rows(block, f"{where}/tb[{b}]", rank, collective) for b, block in enumerate(ordered)]
    # The number of each of the file's steps among the imported steps; a nop has the number of the step before it.
    where_is = [_positions(steps) for steps in rows]
    thread_blocks = []
    kept = [b for b, steps in enumerate(rows) if any(step.type != "nop" for step in steps)]
    new = {b: index for index, b in enumerate(kept)}
    for b in kept:
        steps = _thread_block(b, rows, where_is, new)
        block, at = ordered[b], f"{where}/tb[{b}]"
        peers = [_number(block, name, at) for name in ("send", "recv", "chan")]
        thread_blocks.append(ThreadBlock(tuple(steps), *peers))
    scratch = _number(gpu, "s_chunks", where, 0)
    return RankProgram(tuple(thread_blocks), {"scratch": scratch} if scratch > 0 else {})


@dataclass
class _Row:
    """A step of the file."""

    type: str
    source: Operand
    destination: Operand
    count: int
    dep: tuple[int, int] | None


def _rows(block: Element, where: str, rank: int, collective: Collective) -> list[_Row]:
    out = []
    for i, step in enumerate(block.findall("step")):
        at = f"{where}/step[{i}]"
        if _number(step, "s", at) != i:
            raise ProgramFileError(f"{at}/s: {step.get('s')}; the steps are numbered from 0 on, in order.")
        kind = step.get("type", "")
        if kind not in ("nop", "re", "s", "cpy") and kind not in POPS:
            raise ProgramFileError(f"{at}/type: {kind[:40]!r} is not known.")
        source, destination = (_alias(_place(step, side, at), rank, collective) for side in ("src", "dst"))
        if kind == "cpy" and source == destination:
            kind = "nop"  # in place, a copy from the input to the output
        depid, deps = _number(step, "depid", at, -1), _number(step, "deps", at, -1)
        dep = None if depid < 0 else (depid, deps)
        out.append(_Row(kind, source, destination, _number(step, "cnt", at), dep))
    return out


def _place(step: Element, side: str, where: str) -> Operand:
    letter = step.get(f"{side}buf", "")
    if letter not in _NAMES:
        raise ProgramFileError(f"{where}/{side}buf: {letter[:40]!r}; there are i, o and s.")
    return _NAMES[letter], _number(step, f"{side}off", where)


def _alias(place: Operand, rank: int, collective: Collective) -> Operand:
    """In place, map a chunk of the input or output to the shared buffer."""
    buffer, index = place
    chunks = {INPUT: collective.input_chunks(rank), OUTPUT: collective.output_chunks(rank)}
    return collective.alias(rank, buffer, index) if 0 <= index < chunks.get(buffer, 0) else place


def _positions(rows: list[_Row]) -> list[int]:
    """For each of the file's steps, the number of the last imported step up to it; -1: none."""
    out, number = [], -1
    for row in rows:
        if row.type != "nop":
            number += len(_steps(row, ()))
        out.append(number)
    return out


def _thread_block(b: int, rows: list[list[_Row]], where_is: list[list[int]], new: dict[int, int]) -> list[Step]:
    out: list[Step] = []
    waits: set[tuple[int, int]] = set()
    for row in rows[b]:
        if row.dep is not None:
            waits |= _meaning(row.dep, rows, where_is, new, set()) - {(new[b], n) for n in range(len(out))}
        if row.type != "nop":
            out += _steps(row, tuple(sorted(waits)))
            waits = set()
    return out


def _meaning(
    dep: tuple[int, int],
    rows: list[list[_Row]],
    where_is: list[list[int]],
    new: dict[int, int],
    seen: set[tuple[int, int]],
) -> set[tuple[int, int]]:
    """The imported steps that have finished when the file's step ``dep`` has finished.

    A nop has finished when the steps before it and the step that it waits for have finished.
    """
    b, s = dep
    if not (0 <= b < len(rows) and 0 <= s < len(rows[b])):
        raise ProgramFileError(f"/algo/gpu/tb/step: depid={b}, deps={s} is not a step.")
    out: set[tuple[int, int]] = set()
    if dep in seen:
        return out
    seen.add(dep)
    if where_is[b][s] >= 0:
        out.add((new[b], where_is[b][s]))
    for before in range(s, -1, -1):
        row = rows[b][before]
        if row.type != "nop":
            break
        if row.dep is not None:
            out |= _meaning(row.dep, rows, where_is, new, seen)
    return out


def _steps(row: _Row, waits: tuple[tuple[int, int], ...]) -> list[Step]:
    """Import one of the file's steps.

    A step that receives and reduces out of place becomes a copy of its source, and a step in place.
    """
    if row.type in READS_DESTINATION and row.type != "re" and row.source != row.destination:
        return [
            Step("cpy", row.count, row.source, row.destination, waits=waits),
            Step(row.type, row.count, None, row.destination),  # type: ignore[arg-type]
        ]
    source = row.source if row.type in READS_SOURCE else None
    destination = None if row.type == "s" else row.destination
    return [Step(row.type, row.count, source, destination, waits=waits)]  # type: ignore[arg-type]
