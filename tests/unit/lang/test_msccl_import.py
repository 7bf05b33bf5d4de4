"""MSCCL-XML that comes in: what was exported, what others wrote, what is wrong."""

from __future__ import annotations

import contextlib
import io

import pytest

from horocache.lang import Custom, ProgramFileError, algorithms, compile_program, export_msccl, import_msccl
from horocache.lang.promises import collective_of

from .random_programs import random_program
from .test_msccl import ring_of_tools


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_survive_export_and_import(seed):
    program = random_program(seed)
    compiled = compile_program(program)
    if not compiled.count_steps():
        return
    text = export_msccl(compiled)
    fine = compiled.refinement
    whole = program.collective

    def post(rank, index):
        expected = whole.expected(rank, index // fine)
        return None if expected is None else [(source, i * fine + index % fine) for source, i in expected]

    promised = Custom(
        "random",
        compiled.ranks,
        whole.input_chunks(0) * fine,
        whole.output_chunks(0) * fine,
        post,
        inplace=whole.inplace,
    )
    assert import_msccl(text, promised).count_steps() == compiled.count_steps()


@pytest.mark.parametrize("make", [algorithms.ring, algorithms.all_pairs, algorithms.direct_alltoall])
def test_the_librarys_algorithms_survive_export_and_import(make):
    compiled = compile_program(make(4))
    again = import_msccl(export_msccl(compiled))
    assert again.count_steps() == compiled.count_steps()
    assert collective_of(again.collective, 4).name == compiled.collective.name


def test_what_reduces_from_another_place_is_copied_there_first():
    text = """<algo name="x" proto="Simple" ngpus="2" coll="custom" inplace="0">
      <gpu id="0" i_chunks="1" o_chunks="0" s_chunks="0"><tb id="0" send="1" recv="-1" chan="0">
        <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      </tb></gpu><gpu id="1" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="-1" recv="0" chan="0">
        <step s="0" type="rrc" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      </tb></gpu></algo>"""
    collective = Custom("sum at one", 2, 1, 1, lambda r, c: [(0, 0), (1, 0)] if r else None)
    program = import_msccl(text, collective)
    assert [step.op for step in program.programs[1].strands[0].steps] == ["cpy", "rrc"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: "", "is no XML"),
        (lambda t: t[: len(t) // 2], "is no XML"),
        (lambda t: "<!DOCTYPE a [<!ENTITY b 'c'>]>" + t, "declares a document type"),
        (lambda t: t.replace("<algo", "<alg").replace("</algo", "</alg"), "a program's is 'algo'"),
        (lambda t: t.replace('ngpus="3"', 'ngpus="99999"'), "/algo/ngpus"),
        (lambda t: t.replace('ngpus="3"', 'ngpus="x"'), "'x' is no number"),
        (lambda t: t.replace('coll="allreduce"', 'coll="custom"'), "give the collective"),
        (lambda t: t.replace('proto="Simple"', 'proto="Fast"'), "/algo/proto"),
        (lambda t: t.replace('type="rrs"', 'type="jump"', 1), "'jump' is not known"),
        (lambda t: t.replace('srcbuf="i"', 'srcbuf="z"', 1), "there are i, o and s"),
        (lambda t: t.replace('depid="-1" deps="-1"', 'depid="9" deps="0"', 1), "is no step"),
        (lambda t: t.replace('srcoff="0"', 'srcoff="77"', 1), "outside of"),
        (lambda t: t.replace('<step s="1"', '<step s="5"', 1), "are numbered from 0 on"),
        (lambda t: t.replace('<tb id="0"', '<tb id="4"', 1), "the ids are not 0 to"),
        (lambda t: t.replace('<gpu id="0"', '<gpu id="8"', 1), "the ids are not 0 to 2"),
    ],
)
def test_xml_that_is_wrong_is_named(change, text):
    good = export_msccl(compile_program(algorithms.ring(3)))
    with pytest.raises(ProgramFileError) as raised:
        import_msccl(change(good))
    assert text in str(raised.value)


def test_programs_of_the_tools_print_what_can_be_imported():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        ring_of_tools(4, 1)
    assert import_msccl(printed.getvalue()).ranks == 4
