"""The counters of a rank at one moment."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from horocache.errors import InvalidArgumentError

_FAMILIES = frozenset(("fused_size_log2", "op_count", "op_ns", "wait_ns"))  # of counters with an index


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
        family = name.partition(".")[0]
        if "." in name and family in _FAMILIES:
            return 0
        close = difflib.get_close_matches(name, self, 1)
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
