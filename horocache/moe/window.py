"""Windows: the memory by which ranks exchange tokens one-sidedly.

A window is negotiated once: all ranks of a process set register it, compare what they registered, and map each other's
memory. After that, exchanges send no control messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from horocache.collectives.object_collectives import allgather_object
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import HorocacheError, InvalidArgumentError, MismatchError, UnsupportedError

if TYPE_CHECKING:
    from horocache import _core

__all__ = ["Window", "WindowSpec", "agree", "register_window"]

PASSES = ("forward", "backward")


@dataclass(frozen=True)
class WindowSpec:
    """The size of a window; equal on all ranks.

    Args:
        hosts: for every rank of the process set, True if it has experts.
        batch_bytes: room for the tokens that one rank sends to another in one call, in bytes.
        result_bytes: room for the result of such a batch, in bytes.
        depth: number of calls for which there is room at the same time. A rank may be this many calls ahead of another
            before its tokens for it wait, or are dropped in calls that leave early. At least 1.
    """

    hosts: tuple[bool, ...]
    batch_bytes: int
    result_bytes: int
    depth: int = 2


class Key(NamedTuple):
    """Layers with equal keys share a window."""

    process_set: int | None
    spec: WindowSpec


@dataclass
class Shared:
    """A connected window and the number of its layers. Role: owned by the session."""

    core: _core.Window
    users: int = 0
    next_tag: int = 0


@dataclass(frozen=True)
class Window:
    """A layer's use of a window.

    Role: owned by the layer's exchange. Layers of one process set with equal specs share the memory; ``tags`` tells
    their calls apart.
    """

    name: str
    process_set: ProcessSet
    spec: WindowSpec
    core: _core.Window
    tags: tuple[int, ...]  # of the passes forward and backward
    _key: Key = field(repr=False)
    _open: list[bool] = field(repr=False, default_factory=lambda: [True])

    @property
    def rank(self) -> int:
        """This rank's number in the process set."""
        return self.process_set.rank()

    def close(self) -> None:
        """End this layer's use of the window. The last layer's end gives the memory back. Idempotent."""
        if not self._open.pop():
            self._open.append(False)
            return
        self._open.append(False)
        session = context.running()
        shared = session.windows.get(self._key) if session is not None else None
        if session is None or shared is None or shared.core is not self.core:
            return  # the session has ended, and its windows with it
        shared.users -= 1
        if shared.users == 0:
            del session.windows[self._key]
            shared.core.close()


def agree(
    name: str, equal: Mapping[str, Any], own: Mapping[str, Any], process_set: ProcessSet = global_process_set
) -> list[dict[str, Any]]:
    """Compare a layer's arguments over the ranks, once.

    Args:
        name: of the layer.
        equal: the arguments that must be equal on all ranks of ``process_set``.
        own: values that may differ.
        process_set: the ranks that have the layer.

    Returns:
        ``own`` of every rank, by rank of the set.

    Raises:
        MismatchError: an argument differs. All ranks raise it; the message names two ranks and both values.
    """
    if process_set.size() == 1:
        return [dict(own)]
    gathered = allgather_object((dict(equal), dict(own)), f"moe.agree.{name}", process_set)
    ranks = process_set.ranks
    first = gathered[0][0]
    for rank, (theirs, _) in zip(ranks, gathered, strict=True):
        for key in [*first, *theirs]:
            if first.get(key) != theirs.get(key):
                raise MismatchError(
                    f"mixture-of-experts layer {name!r}: rank {ranks[0]} has {key} = {first.get(key)!r}, but rank "
                    f"{rank} has {theirs.get(key)!r}; make the layer with equal arguments on all ranks, and call the "
                    "layers in the same order"
                )
    return [mine for _, mine in gathered]


def register_window(name: str, spec: WindowSpec, process_set: ProcessSet = global_process_set) -> Window:
    """Open a window, or join that of earlier layers with an equal spec. All ranks of the set call it in the same order.

    Args:
        name: of the layer, for errors; equal on all ranks.
        spec: the size of the window.
        process_set: the ranks that exchange tokens.

    Returns:
        The layer's use of the window.

    Raises:
        InvalidArgumentError: the spec is not possible.
        MismatchError: the specs of two ranks differ; all ranks raise it.
        OutOfMemoryError: a rank has no memory for it; that rank raises it, and the others an UnsupportedError that
            names it.
        UnsupportedError: ranks on one host share no memory, or ranks on several have no MPI that any thread may call.
    """
    if len(spec.hosts) != process_set.size() or spec.depth < 1 or min(spec.batch_bytes, spec.result_bytes) < 0:
        raise InvalidArgumentError(
            f"a window for {process_set.size()} ranks needs one entry of hosts for each, sizes that are not negative "
            f"and a depth of at least 1; layer {name!r} has {spec}"
        )
    session = context.current()
    key = Key(process_set.process_set_id, spec)
    shared = session.windows.get(key)
    number = 0 if shared is None else shared.next_tag
    if shared is None:
        shared = Shared(_connect(name, spec, process_set))
        session.windows[key] = shared
    else:
        agree(name, {"spec": spec, "earlier calls": number}, {}, process_set)
    shared.users += 1
    shared.next_tag += len(PASSES)
    tags = tuple(range(number, number + len(PASSES)))
    for tag, of_pass in zip(tags, PASSES, strict=True):
        shared.core.name_tag(tag, f"layer {name!r} ({of_pass})")
    return Window(name, process_set, spec, shared.core, tags, key)


def _connect(name: str, spec: WindowSpec, process_set: ProcessSet) -> _core.Window:
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    runtime: Any = context.current().runtime
    block: _core.WindowBlock | None = None
    failure: HorocacheError | None = None
    try:
        if not isinstance(runtime, _core.Runtime):
            raise UnsupportedError("windows need the core's Python module, which this session does not use")
        block = _core.allocate_window(
            runtime, process_set.process_set_id, list(spec.hosts), spec.depth, spec.batch_bytes, spec.result_bytes
        )
    except HorocacheError as error:
        failure = error
    own = {"offset": -1 if block is None else block.offset, "failure": None if failure is None else str(failure)}
    gathered = agree(name, {"spec": spec, "earlier calls": 0}, own, process_set)
    if failure is not None:
        raise failure
    for rank, theirs in zip(process_set.ranks, gathered, strict=True):
        if theirs["failure"] is not None:
            raise UnsupportedError(f"rank {rank} has no window for layer {name!r}: {theirs['failure']}")
    assert block is not None
    offsets = [theirs["offset"] for theirs in gathered]
    if runtime.cross_size == 1:
        return _core.connect_window(runtime, block, offsets)
    return _connect_hosts(name, process_set, lambda: _core.connect_window(runtime, block, offsets))


def _connect_hosts(name: str, process_set: ProcessSet, connect: Callable[[], _core.Window]) -> _core.Window:
    """Connect, and compare: over a network this may fail on some ranks only."""
    window: _core.Window | None = None
    failure: HorocacheError | None = None
    try:
        window = connect()
    except HorocacheError as error:
        failure = error
    gathered = agree(name, {}, {"failure": None if failure is None else str(failure)}, process_set)
    if failure is not None:
        raise failure
    assert window is not None
    for rank, theirs in zip(process_set.ranks, gathered, strict=True):
        if theirs["failure"] is not None:
            window.close()
            raise UnsupportedError(f"rank {rank} could not connect layer {name!r} to the others: {theirs['failure']}")
    return window
