"""Import of MSCCL-XML: exported programs, files of other programs, wrong files."""

from __future__ import annotations

import contextlib
import io
import random

import pytest

from horocache.lang import (
    Broadcast,
    Custom,
    Gather,
    Program,
    ProgramFileError,
    Reduce,
    Scatter,
    ScheduleError,
    algorithms,
    chunk,
    compile_for_msccl,
    compile_program,
    export_msccl,
    import_msccl,
)
from horocache.lang.formats import msccl_xml
from horocache.lang.program.collective_spec import collective_of
from horocache.lang.tuning.local_run import run_locally

from .interpreter import execute
from .random_programs import random_program
from .test_msccl import ring_of_tools


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_survive_export_and_import(seed):
    program = random_program(seed)
    compiled = compile_for_msccl(program)
    if not compiled.count_steps():
        return
    text = export_msccl(compiled)
    fine = compiled.refinement
    whole = program.collective

    def post(rank, index):
        expected = whole.expected(rank, index // fine)
        return None if expected is None else [(source, i * fine + index % fine) for source, i in expected]

    specified = Custom(
        "random",
        compiled.ranks,
        whole.input_chunks(0) * fine,
        whole.output_chunks(0) * fine,
        post,
        inplace=whole.inplace,
    )
    assert import_msccl(text, specified).count_steps() == compiled.count_steps()


@pytest.mark.parametrize("make", [algorithms.ring, algorithms.all_pairs, algorithms.direct_alltoall])
def test_the_librarys_algorithms_survive_export_and_import(make):
    program = make(4)
    compiled = compile_for_msccl(program)
    assert export_msccl(program) == export_msccl(compiled)
    again = import_msccl(export_msccl(program))
    assert again.count_steps() == compiled.count_steps()
    assert collective_of(again.collective, 4).name == compiled.collective.name


def rooted(kind):
    collective = kind(3, 2, False, 1)
    with Program("rooted", collective) as program:
        for rank in range(3):
            for index in range(collective.output_chunks(rank)):
                if not (expected := collective.expected(rank, index)):
                    continue
                (first, source), *others = expected
                made = chunk(first, "input", source).copy(rank, "output", index)
                for other, place in others:
                    made = made.reduce(chunk(other, "input", place))
    return program


@pytest.mark.parametrize("kind", [Broadcast, Gather, Scatter, Reduce])
def test_collectives_with_a_root_survive_export_and_import(kind):
    compiled = compile_for_msccl(rooted(kind))
    text = export_msccl(compiled)
    assert import_msccl(text).collective == compiled.collective
    with pytest.raises(ProgramFileError, match="/algo/root: there is none"):
        import_msccl(text.replace('root="1"', ""))


def test_a_receive_reduce_from_another_place_becomes_a_copy_and_a_reduction():
    text = """<algo name="x" proto="Simple" ngpus="2" coll="custom" inplace="0">
      <gpu id="0" i_chunks="1" o_chunks="0" s_chunks="0"><tb id="0" send="1" recv="-1" chan="0">
        <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      </tb></gpu><gpu id="1" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="-1" recv="0" chan="0">
        <step s="0" type="rrc" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      </tb></gpu></algo>"""
    collective = Custom("sum at one", 2, 1, 1, lambda r, c: [(0, 0), (1, 0)] if r else None)
    program = import_msccl(text, collective)
    assert [step.op for step in program.programs[1].thread_blocks[0].steps] == ["cpy", "rrc"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: "", "is not XML"),
        (lambda t: t[: len(t) // 2], "is not XML"),
        (lambda t: "<!DOCTYPE a [<!ENTITY b 'c'>]>" + t, "declares a document type"),
        (lambda t: t.replace("<algo", "<alg").replace("</algo", "</alg"), "a program's is 'algo'"),
        (lambda t: t.replace('ngpus="3"', 'ngpus="99999"'), "/algo/ngpus"),
        (lambda t: t.replace('ngpus="3"', 'ngpus="x"'), "'x' is not a number"),
        (lambda t: t.replace('coll="allreduce"', 'coll="custom"'), "give the collective"),
        (lambda t: t.replace('proto="Simple"', 'proto="Fast"'), "/algo/proto"),
        (lambda t: t.replace('type="rrs"', 'type="jump"', 1), "'jump' is not known"),
        (lambda t: t.replace('srcbuf="i"', 'srcbuf="z"', 1), "there are i, o and s"),
        (lambda t: t.replace('depid="-1" deps="-1"', 'depid="9" deps="0"', 1), "is not a step"),
        (lambda t: t.replace('srcoff="0"', 'srcoff="77"', 1), "outside of"),
        (lambda t: t.replace('<step s="1"', '<step s="5"', 1), "are numbered from 0 on"),
        (lambda t: t.replace('<tb id="0"', '<tb id="4"', 1), "the ids are not 0 to"),
        (lambda t: t.replace('<gpu id="0"', '<gpu id="8"', 1), "the ids are not 0 to 2"),
    ],
)
def test_wrong_xml_raises_with_its_place(change, text):
    good = export_msccl(algorithms.ring(3))
    with pytest.raises(ProgramFileError) as raised:
        import_msccl(change(good))
    assert text in str(raised.value)


def test_xml_that_msccl_tools_programs_print_can_be_imported():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        ring_of_tools(4, 1)
    assert import_msccl(printed.getvalue()).ranks == 4


# ---- files in the form of msccl-tools: all attributes, thread blocks that wait in nops


def block(number, send, recv, *steps):
    lines = [
        f'<step s="{s}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" '
        f'cnt="{0 if kind == "nop" else 1}" depid="{dep[0]}" deps="{dep[1]}" hasdep="{has}"/>'
        for s, (kind, src, dst, dep, has) in enumerate(steps)
    ]
    return "\n".join([f'<tb id="{number}" send="{send}" recv="{recv}" chan="0">', *lines, "</tb>"])


def two_ranks(first, second):
    gpus = [
        f'<gpu id="{rank}" i_chunks="2" o_chunks="0" s_chunks="2">\n{blocks}\n</gpu>'
        for rank, blocks in enumerate((first, second))
    ]
    attributes = 'proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1" outofplace="0"'
    return "\n".join([f'<algo name="exchange" {attributes} minBytes="0" maxBytes="0">', *gpus, "</algo>"])


NEVER = (-1, -1)


def exchange(peer):
    """Each rank sends both chunks, receives the other rank's into scratch and adds them, in three thread blocks."""
    return "\n".join(
        [
            block(0, peer, -1, ("s", "i0", "i0", NEVER, 0), ("s", "i1", "i1", NEVER, 1)),
            block(1, -1, peer, ("r", "i0", "s0", NEVER, 1), ("r", "i1", "s1", NEVER, 1)),
            block(
                2,
                -1,
                -1,
                ("nop", "i-1", "o-1", (0, 1), 0),
                ("re", "s0", "i0", (1, 0), 0),
                ("re", "s1", "i1", (1, 1), 0),
            ),
        ]
    )


def test_a_file_written_by_hand_gives_the_specified_results():
    program = import_msccl(two_ranks(exchange(1), exchange(0)))
    collective = collective_of(program.collective, 2)
    for seed in range(20):
        memory = execute(program, collective, program.min_slots, seed)
        for rank in range(2):
            assert [memory[rank, "input"][i] for i in range(2)] == [{(0, i): 1, (1, i): 1} for i in range(2)]
    adds = program.programs[0].thread_blocks[2].steps
    assert [(step.op, sorted(step.waits)) for step in adds] == [("re", [(0, 1), (1, 0)]), ("re", [(1, 1)])]


def for_both_places(peer):
    """Each rank sends both chunks. In its output, it copies its own chunks and then reduces the other rank's."""
    return "\n".join(
        [
            block(0, peer, -1, ("s", "i0", "o0", NEVER, 1), ("s", "i1", "o1", NEVER, 1)),
            block(1, -1, peer, ("r", "s0", "s0", NEVER, 0), ("r", "s1", "s1", NEVER, 1)),
            block(
                2,
                -1,
                -1,
                ("nop", "i-1", "o-1", (0, 1), 0),
                ("cpy", "i0", "o0", (1, 1), 0),
                ("cpy", "i1", "o1", NEVER, 0),
                ("re", "s0", "o0", NEVER, 0),
                ("re", "s1", "o1", NEVER, 0),
            ),
        ]
    )


@pytest.mark.parametrize("places", ['inplace="1" outofplace="1"', 'inplace="1" outofplace="0"', 'inplace="0"'])
def test_a_file_for_in_place_calls_may_use_the_output_buffer(places):
    text = two_ranks(for_both_places(1), for_both_places(0)).replace('inplace="1" outofplace="0"', places)
    program = import_msccl(text.replace('o_chunks="0"', 'o_chunks="2"'))
    collective = collective_of(program.collective, 2)
    for seed in range(20):
        memory = execute(program, collective, program.min_slots, seed)
        for rank in range(2):
            got = [memory[rank, collective.alias(rank, "output", 0)[0]][i] for i in range(2)]
            assert got == [{(0, i): 1, (1, i): 1} for i in range(2)]
    run_locally(program, 1024)
    assert program.collective.inplace == ('inplace="1"' in places)


def test_the_input_of_an_in_place_allgather_is_part_of_its_output():
    def rank(number):
        own, peer = f"o{number}", 1 - number
        first = block(0, peer, peer, ("s", "i0", own, NEVER, 0), ("r", f"o{peer}", f"o{peer}", NEVER, 0))
        return "\n".join([first, block(1, -1, -1, ("cpy", "i0", own, NEVER, 0))])

    text = two_ranks(rank(0), rank(1)).replace('coll="allreduce"', 'coll="allgather"')
    text = text.replace('outofplace="0"', 'outofplace="1"').replace(
        'i_chunks="2" o_chunks="0"', 'i_chunks="1" o_chunks="2"'
    )
    program = import_msccl(text)
    assert program.count_steps() == 4, "the copy of the input to the output is not removed"
    run_locally(program, 1024)


def test_a_program_that_would_deadlock_in_the_runtimes_is_not_exported():
    ring = algorithms.ring(3)
    with pytest.raises(ScheduleError, match=r"where a connection has one slot.*compile_for_msccl"):
        export_msccl(compile_program(ring))
    assert import_msccl(export_msccl(ring)).min_slots == 1


def test_ranks_that_both_receive_before_they_send_raise_with_the_cycle():
    def both_receive(peer):
        steps = [("rrc", "i0", "i0", NEVER, 0), ("s", "i0", "i0", NEVER, 0)]
        return block(0, peer, peer, *steps)

    with pytest.raises(ProgramFileError) as raised:
        import_msccl(two_ranks(both_receive(1), both_receive(0)))
    for place in ("rank 0 thread block 0 step 0 (rrc", "rank 1 thread block 0 step 0 (rrc"):
        assert place in str(raised.value)


def test_thread_blocks_that_wait_for_each_other_raise_with_the_cycle():
    crosswise = "\n".join(
        [
            block(0, -1, -1, ("cpy", "i0", "s0", (1, 1), 0), ("cpy", "i0", "s0", NEVER, 1)),
            block(1, -1, -1, ("cpy", "i1", "s1", (0, 1), 0), ("cpy", "i1", "s1", NEVER, 1)),
        ]
    )
    with pytest.raises(ProgramFileError) as raised:
        import_msccl(two_ranks(crosswise, crosswise))
    for place in ("thread block 0 step 0 (cpy", "thread block 1 step 0 (cpy"):
        assert place in str(raised.value)


def _xml(attributes="", inside=""):
    return f'<algo name="a" coll="allgather" ngpus="2" inplace="0" {attributes}>{inside}</algo>'


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        (b'<!DOCTYPE algo [<!ENTITY a "aaaa">]>' + _xml('proto="&a;"').encode(), "declares a document type"),
        (
            '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE algo [<!ENTITY a "a">]><algo/>'.encode("utf-16"),
            "declares",
        ),
        (
            b'<?xml version="1.0" encoding="cp037"?>' + '<!DOCTYPE algo SYSTEM "/etc/passwd"><algo/>'.encode("cp037"),
            "is not XML|declares",
        ),
        (_xml(inside="<a>" * 2000).encode(), "has more than 1000 elements"),
        (_xml(" ".join(f'a{i}=""' for i in range(100_000))).encode(), "has a tag, or text, of more than"),
        (_xml(inside="x" * 100_000).encode(), "has a tag, or text, of more than"),
        (_xml(f'minBytes="{"9" * 5000}"').encode(), "/algo"),
        (b"", "is not XML"),
        (b"\0" * 100, "is not XML"),
    ],
    ids=range(9),
)
def test_xml_with_entities_or_too_many_elements_raises(monkeypatch, contents, text):
    monkeypatch.setattr(msccl_xml, "_MOST_ELEMENTS", 1000)
    with pytest.raises(ProgramFileError, match=text):
        import_msccl(contents)


def test_damaged_xml_raises_or_is_correct():
    good = export_msccl(algorithms.ring(3)).encode()
    numbers, read = random.Random(7), 0
    for _ in range(300):
        at = numbers.randrange(len(good))
        piece = numbers.choice([numbers.randbytes(2), b"9" * 30, b"<gpu/>", b"&a;", b"-", b'"', b"", b"\xff"])
        try:
            read += import_msccl(good[:at] + piece + good[at + numbers.randrange(5) :]).ranks == 3
        except ProgramFileError as error:
            assert len(str(error)) < 2000
    assert read > 3
