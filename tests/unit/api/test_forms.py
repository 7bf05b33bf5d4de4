"""The forms of the collectives, which are derived from descriptions, and handles."""

from __future__ import annotations

import inspect
import subprocess
import sys
import traceback
import typing

import numpy as np
import pytest

import horocache as hc
from horocache.collectives.forms import Collective, Parameter, Text, forms, forms_of
from horocache.collectives.operations import COLLECTIVES, NAMES, Collectives
from horocache.core import context

FORMS = {form.name: form for collective in COLLECTIVES for form in forms_of(collective)}


@pytest.mark.parametrize("name", sorted(FORMS))
def test_help_shows_the_signature_and_a_complete_text(name):
    function = getattr(hc, name)
    text, parameters = inspect.getdoc(function), inspect.signature(function).parameters
    arguments = text.partition("Args:")[2].partition("Returns:")[0]
    assert [each for each in parameters if f"\n    {each}: " not in arguments] == []
    assert next(iter(parameters)) == ("tensors" if "grouped" in name else "tensor")
    assert all(section in text for section in ("Args:", "Returns:", "Raises:"))
    assert ":meth:" not in text and "as there" not in text
    assert text.splitlines()[0].endswith(".") and not text.splitlines()[1]
    assert ("handle" in text.partition("Returns:")[2].splitlines()[1]) == ("_async" in name)


def test_allreduce_has_the_eight_forms_and_gather_two():
    of = [name for name in NAMES if name.removeprefix("grouped_").rstrip("_").removesuffix("_async") == "allreduce"]
    assert len(of) == 8 and "grouped_allreduce_async_" in of
    assert [name for name in NAMES if name.startswith("gather")] == [
        "gather",
        "gather_async",
        "gatherv",
        "gatherv_async",
    ]
    assert set(NAMES) < set(hc.__all__)


def test_the_forms_of_a_collective_are_derived_from_its_description():
    text = Text("Do it.", "any.", "what it has.", "Error: never.")
    factor = Parameter("factor", "int", "multiplies.", "2")
    late = Parameter("late", "bool", "waits.", "False", keyword_only=True)
    only_new = Parameter("only_new", "str", "is absent in place.", "'x'", new_only=True, by_keyword_in_async=True)
    anew = Parameter("anew", "int", "is keyword-only in place.", "7", by_keyword_in_place=True)

    @forms(Collective("scale", "_scale", (only_new, factor, late), text, in_place=text))
    class Scaler:
        def _scale(self, *arguments):
            self.arguments = arguments
            return 17

    made = {form.name: str(inspect.signature(getattr(Scaler, form.name))) for form in _forms(Scaler)}
    assert made["scale_async"].startswith("(self, tensor: 'T', factor: 'int' = 2, *, only_new: 'str' = 'x', late:")
    assert made["scale"].startswith("(self, tensor: 'T', only_new: 'str' = 'x', factor: 'int' = 2, *, late:")
    assert "only_new" not in made["grouped_scale_async_"]
    scaler = Scaler()
    assert scaler.scale_async(5, 3) == 17 and isinstance(scaler.scale_async(5, 3), hc.Handle)
    assert scaler.arguments == ([5], "x", 3, False, False, False, False)
    scaler.grouped_scale_async_([5, 6], late=True)
    assert scaler.arguments == ([5, 6], "x", 2, True, True, True, False)
    of = Collective("scale", "_scale", (anew, factor), text, in_place=text)
    written = {form.name: form.written_parameters() for form in forms_of(of)}
    assert written["scale"][2:] == written["scale_async"][2:] == ["anew: int = 7", "factor: int = 2"]
    assert written["scale_"][2:] == ["factor: int = 2", "*", "anew: int = 7"]
    with pytest.raises(TypeError, match=r"scale_async\(\) got an unexpected keyword argument 'fctor'"):
        Scaler().scale_async(5, fctor=3)


def _forms(cls):
    text = Text("", "", "", "")
    return forms_of(Collective("scale", "_scale", (), text, in_place=text))


def test_a_traceback_shows_the_lines_of_a_derived_method():
    with pytest.raises(hc.NotInitializedError) as failed:
        hc.allgather_async([1.0])
    lines = "".join(traceback.format_exception(failed.value))
    assert "return Handle(self._allgather([tensor], name, process_set, backend, False, False, False))" in lines


def test_reduce_operations_are_an_enumeration_of_horovods_numbers():
    assert list(hc.ReduceOp) == [*range(9)] and hc.Sum is hc.ReduceOp.Sum
    assert (str(hc.Average), f"{hc.Max}", f"{hc.Min:>5}", repr(hc.Sum)) == (
        "Average",
        "Max",
        "  Min",
        "<ReduceOp.Sum: 1>",
    )
    assert f"{hc.Product:d}{hc.Or:x}" == "57"


def test_a_handle_waits_and_shows_its_state():
    hc.init()
    try:
        handle = hc.allreduce_async([3.0], op=1)
        while not handle.done():
            pass
        assert repr(handle) == f"<handle {int(handle)}, ready>" and handle == int(handle)
        assert handle.wait(timeout=60).tolist() == [3.0]
        assert repr(handle) == f"<handle {int(handle)}, consumed>"
    finally:
        hc.shutdown()


def test_type_hints_of_derived_methods_can_be_read():
    hints = typing.get_type_hints(Collectives.allreduce_async)
    assert hints["op"] == int | None and hints["return"] is hc.Handle


def test_the_launcher_does_not_load_the_collectives():
    program = (
        "import sys, horocache.launch.cli; print([m for m in sys.modules if m.startswith('horocache.collectives')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_interrupted_wait_for_several_handles_keeps_their_outcomes():
    class Broken:
        @staticmethod
        def compress(tensor):
            return tensor, None

        @staticmethod
        def decompress(tensor, ctx):
            raise RuntimeError("cannot decompress")

    hc.init()
    try:
        session = context.current()
        first = hc.allreduce_async(np.ones(2), name="first")
        broken = hc.allreduce_async(np.ones(2), name="broken", compression=Broken)
        last = hc.allreduce_async(np.ones(2), name="last")
        runtime = session.runtime

        class InterruptedOnce:
            def __getattr__(self, name):
                return getattr(runtime, name)

            def wait(self, handle, *timeout):
                if handle == last and not interrupted:
                    interrupted.append(handle)
                    raise TimeoutError
                return runtime.wait(handle, *timeout)

        interrupted = []
        session.runtime = InterruptedOnce()
        with pytest.raises(TimeoutError):
            hc.synchronize([first, broken, 987654, last], timeout=60)
        assert first.done() and broken.done() and 987654 not in session.pending and last in session.pending
        with pytest.raises(RuntimeError, match="cannot decompress"):
            hc.synchronize([first, broken, last])
        assert not session.pending and not session.outcomes
        session.runtime = runtime
    finally:
        hc.shutdown()
