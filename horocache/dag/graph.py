"""The operations that an engine was given, as a graph to draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from horocache.errors import InvalidArgumentError, UnsupportedError


class Pushed(NamedTuple):
    """One operation: its name, the names of the variables that it reads and writes, and its queue."""

    name: str
    reads: Sequence[str]
    writes: Sequence[str]
    queue: str | None


class Graph(NamedTuple):
    """Operations by number, in the order of their pushes, and the pairs of which one must end before the other runs.

    Attributes:
        operations: what was pushed.
        edges: ``(earlier, later, variable)``; an edge that follows from others is left out.
    """

    operations: list[Pushed]
    edges: list[tuple[int, int, str]]

    @classmethod
    def of(cls, operations: Sequence[Pushed]) -> Graph:
        """Return the graph that an engine derives from these pushes."""
        edges = []
        writer: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for number, operation in enumerate(operations):
            for variable in dict.fromkeys(operation.reads):
                if variable in operation.writes:
                    continue
                if variable in writer:
                    edges.append((writer[variable], number, variable))
                readers.setdefault(variable, []).append(number)
            for variable in dict.fromkeys(operation.writes):
                before = readers.pop(variable, [])
                if not before and variable in writer:
                    before = [writer[variable]]
                edges.extend((earlier, number, variable) for earlier in before)
                writer[variable] = number
        return cls(list(operations), edges)

    def dot(self) -> str:
        """Return the graph in Graphviz's language."""
        lines = ["digraph {", "  rankdir=LR;", "  node [shape=box];"]
        lines += [f"  {number} [label={_quoted(each.name)}];" for number, each in enumerate(self.operations)]
        lines += [f"  {earlier} -> {later} [label={_quoted(name)}];" for earlier, later, name in self.edges]
        return "\n".join([*lines, "}", ""])

    def svg(self, path: str | Path) -> None:
        """Draw the graph, with what must run earlier on the left.

        Args:
            path: of the file to write; its ending (``.svg``, ``.png``) gives the format.

        Raises:
            InvalidArgumentError: the graph is empty.
            UnsupportedError: networkx or matplotlib is not installed.
        """
        if not self.operations:
            raise InvalidArgumentError("the graph has no operation that could be drawn.")
        try:
            import networkx  # noqa: PLC0415  (only drawings need it)
            from matplotlib.figure import Figure  # noqa: PLC0415
        except ImportError as missing:
            raise UnsupportedError(f"drawing needs {missing.name}: pip install 'horocache[dag]'.") from missing
        graph = self._layers(networkx)
        places = networkx.multipartite_layout(graph, subset_key="layer")
        deepest = max(layer for _, layer in graph.nodes(data="layer"))
        figure = Figure(figsize=(2.0 + 1.6 * deepest, 1.5 + 0.5 * len(graph) / (deepest + 1)), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axis_off()
        labels = {number: each.name for number, each in enumerate(self.operations)}
        networkx.draw_networkx(graph, places, ax=axes, labels=labels, node_color="#dce6f2", font_size=7, node_size=900)
        between = {(earlier, later): name for earlier, later, name in self.edges}
        networkx.draw_networkx_edge_labels(graph, places, between, ax=axes, font_size=6)
        figure.savefig(path)

    def _layers(self, networkx: Any) -> Any:
        """The graph with the length of the longest way to each operation."""
        graph = networkx.DiGraph()
        layers = [0] * len(self.operations)
        for earlier, later, _ in sorted(self.edges, key=lambda edge: edge[1]):
            layers[later] = max(layers[later], layers[earlier] + 1)
        graph.add_nodes_from((number, {"layer": layer}) for number, layer in enumerate(layers))
        graph.add_edges_from((earlier, later) for earlier, later, _ in self.edges)
        return graph


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
