"""The counters of a rank at one moment."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from horocache.base.operation_codes import OP_NAMES
from horocache.errors import InvalidArgumentError

_LOST = ("own_timeout", "host_left", "ring_full", "lost_rank")  # rows of experts' tokens, by rank
_BY_NUMBER = frozenset(("fused_size_log2", "wait_ns", *(f"moe_rows_{cause}" for cause in _LOST)))
_BY_OPERATION = frozenset(("op_count", "op_ns"))
_OPERATIONS = frozenset((*OP_NAMES.values(), "barrier", "join", "register", "recv", "send"))


def _may_be_absent(name: str) -> bool:
    family, _, index = name.partition(".")
    return (family in _BY_NUMBER and index.isdecimal()) or (family in _BY_OPERATION and index in _OPERATIONS)


class Metrics(dict[str, int]):
    """The counters of a rank at one moment, by name; :func:`horocache.metrics` lists the names.

    A counter with an index, such as ``metrics["wait_ns.3"]``, is 0 if it is absent. For example::

        before = hc.metrics()
        train()
        print(hc.metrics().since(before)["bytes_copied"])
    """

    def __missing__(self, name: str) -> int:
        """Return 0 for a counter with an index.

        Raises:
            KeyError: there is no counter of this name.
        """
        if _may_be_absent(name):
            return 0
        operations = (f"{family}.{operation}" for family in _BY_OPERATION for operation in _OPERATIONS)
        close = difflib.get_close_matches(name, {*self, *operations}, 1)
        raise KeyError(f"{name!r} is not a counter" + (f"; did you mean {close[0]!r}?" if close else ""))

    def since(self, earlier: Mapping[str, int]) -> Metrics:
        """Return by how much each counter has grown since ``earlier``, which this rank's ``metrics()`` returned.

        Raises:
            InvalidArgumentError: a counter has become smaller: ``earlier`` is later than this, or of another session.
        """
        grown = Metrics({name: value - earlier.get(name, 0) for name, value in self.items()})
        smaller = next((name for name in self.keys() | earlier.keys() if grown.get(name, -1) < 0), None)
        if smaller is not None:
            raise InvalidArgumentError(
                f"{smaller} is {self.get(smaller, 0)} now and was {earlier.get(smaller, 0)} before. since() takes the "
                "result of an earlier metrics() of the same session."
            )
        return grown
