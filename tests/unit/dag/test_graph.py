"""The operations of an engine as a graph."""

from __future__ import annotations

import pytest

from horocache.dag import Engine
from horocache.errors import InvalidArgumentError


@pytest.fixture
def graph():
    engine = Engine(record=True, naive=True)
    x, y = engine.var("x"), engine.var("y")
    engine.push(int, writes=[x], name='load "x"')
    engine.push(int, reads=[x], writes=[y], name="double")
    engine.push(int, reads=[x], name="show")
    engine.push(int, reads=[x, y], writes=[x], name="update")
    engine.push(int, writes=[x], name="clear")
    return engine.graph()


def test_edges_are_what_must_end_first(graph):
    assert [each.name for each in graph.operations] == ['load "x"', "double", "show", "update", "clear"]
    assert graph.edges == [(0, 1, "x"), (0, 2, "x"), (1, 3, "y"), (1, 3, "x"), (2, 3, "x"), (3, 4, "x")]


def test_dot_names_operations_and_variables(graph):
    text = graph.dot()
    assert text.startswith("digraph {") and text.endswith("}\n")
    assert r'0 [label="load \"x\""];' in text
    assert '1 -> 3 [label="y"];' in text


def test_svg_draws_them(graph, tmp_path):
    pytest.importorskip("networkx")
    pytest.importorskip("matplotlib")
    graph.svg(tmp_path / "graph.svg")
    drawn = (tmp_path / "graph.svg").read_text()
    assert "<svg" in drawn and drawn.count("double") >= 1


def test_nothing_cannot_be_drawn(tmp_path):
    with pytest.raises(InvalidArgumentError, match="no operation that could be drawn"):
        Engine(record=True).graph().svg(tmp_path / "graph.svg")
