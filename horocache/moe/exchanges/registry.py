"""The exchanges by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.moe.exchanges.alltoall import Alltoall
from horocache.moe.exchanges.early_exit import EarlyExit
from horocache.moe.exchanges.exchange import Exchange
from horocache.moe.exchanges.hierarchical import Hierarchical
from horocache.moe.exchanges.one_sided import OneSided
from horocache.moe.exchanges.padded import Padded

__all__ = ["AUTO", "Maker", "Options", "chosen_exchange", "exchange_names", "make_exchange"]

AUTO = "auto"


@dataclass(frozen=True)
class Options:
    """The facts of a layer that its exchange needs; equal on all ranks of the layer.

    Args:
        name: of the layer, unique within its process set.
        process_set: the ranks of the layer.
        hosts: by rank of the set: whether the rank has experts.
        row_bytes: most bytes of a row of a batch in any call.
        result_row_bytes: most bytes of a row of a result in any call.
        max_tokens: the tokens of one rank in a call for which windows have room; None: as many as in the first call.
        early_exit: when a rank leaves a call early.
    """

    name: str
    process_set: ProcessSet
    hosts: tuple[bool, ...]
    row_bytes: int
    result_row_bytes: int
    max_tokens: int | None = None
    early_exit: EarlyExit = field(default_factory=EarlyExit)


Maker = Callable[[Options], Exchange]


def _alltoall(options: Options) -> Exchange:
    return Alltoall(options.name, options.process_set)


def _padded(options: Options) -> Exchange:
    return Padded(options.name, options.process_set)


def _hierarchical(options: Options) -> Exchange:
    return Hierarchical(options.name, options.process_set)


def _one_sided(options: Options) -> Exchange:
    row_bytes = (options.row_bytes, options.result_row_bytes)
    return OneSided(options.name, options.process_set, options.hosts, row_bytes, options.early_exit, options.max_tokens)


_MAKERS: dict[str, Maker] = {
    "alltoall": _alltoall,
    "hierarchical": _hierarchical,
    "one_sided": _one_sided,
    "padded": _padded,
}
# The exchanges whose ranks can leave early.
_LEAVE_EARLY = frozenset({"one_sided"})


def _automatic_exchange() -> str:
    """Return ``one_sided`` if all ranks of the job share memory; the same on all ranks."""
    runtime = context.current().runtime
    shares = runtime.cross_size == 1 and int(runtime.knobs()["region_bytes"][0]) != 0
    return "one_sided" if shares or runtime.size == 1 else "alltoall"


def exchange_names() -> list[str]:
    """Return the names of all exchanges."""
    return sorted(_MAKERS)


def chosen_exchange(kind: str | Maker | None, early_exit: EarlyExit) -> str | Maker:
    """Return the exchange of a layer; check that it exists, and can do what the layer asks of it.

    Args:
        kind: the name of an exchange; ``"auto"`` for ``one_sided`` if the job is on one host whose ranks share memory,
            and ``alltoall`` otherwise; or a function of the program that makes one, which checks the options itself.
            None: the exchange of the knob ``moe_exchange``.
        early_exit: when ranks leave a call early.

    Raises:
        NotInitializedError: ``kind`` is None and no session runs. InvalidArgumentError: no exchange has this name.
        UnsupportedError: its ranks cannot leave early, and ``early_exit`` asks for that.
    """
    if callable(kind):
        return kind
    if kind is None:
        kind = str(context.current().runtime.knobs()["moe_exchange"][0])
    if kind == AUTO:
        kind = _automatic_exchange()
    if kind not in _MAKERS:
        raise InvalidArgumentError(
            f"an exchange of a mixture of experts is {AUTO!r}, one of {exchange_names()}, or a function that makes "
            f"one, not {kind!r}"
        )
    if early_exit.drops and kind not in _LEAVE_EARLY:
        raise UnsupportedError(
            f"the exchange {kind!r} waits for every rank, so epsilon={early_exit.epsilon}, tau={early_exit.tau} and "
            f"t_max={early_exit.limit} have no meaning for it; leave them out"
        )
    return kind


def make_exchange(kind: str | Maker, options: Options) -> Exchange:
    """Return an exchange for a layer; all ranks of the layer call it at the same time.

    Args:
        kind: the name of the exchange, or a function that makes one.
        options: of the layer.

    Raises:
        InvalidArgumentError: no exchange has this name, or an option is out of range.
        UnsupportedError: the exchange cannot do what the options ask for.
    """
    chosen = chosen_exchange(kind, options.early_exit)
    options.early_exit.check_ranks(options.process_set.size(), options.name)
    return chosen(options) if callable(chosen) else _MAKERS[chosen](options)
