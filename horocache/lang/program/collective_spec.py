"""Conversion between collectives and the specifications in compiled programs."""

from __future__ import annotations

from horocache.lang.errors import ProgramFileError
from horocache.lang.frontend import collectives
from horocache.lang.frontend.collectives import Collective, Custom
from horocache.lang.program.compiled_program import Promise

_BUILT_IN: dict[str, type[Collective]] = {
    one.name: one
    for one in (
        collectives.AllReduce,
        collectives.AllGather,
        collectives.ReduceScatter,
        collectives.AllToAll,
        collectives.Broadcast,
        collectives.Reduce,
        collectives.Gather,
        collectives.Scatter,
        collectives.AllToNext,
    )
}
_ROOTED = (collectives.Broadcast, collectives.Reduce, collectives.Gather, collectives.Scatter)
MAX_CHUNK_FACTOR = 1 << 20


def promise_of(collective: Collective) -> Promise:
    """The specification of a collective. A built-in collective is stored by name, any other in full."""
    ranks = range(collective.num_ranks)
    if type(collective) in _BUILT_IN.values():
        root = -1 if collective.root is None else collective.root
        return Promise(collective.name, collective.chunk_factor, collective.inplace, root)
    inputs = tuple(collective.input_chunks(rank) for rank in ranks)
    outputs = tuple(collective.output_chunks(rank) for rank in ranks)
    return Promise(
        collective.name,
        collective.classes,
        collective.inplace,
        -1,
        inputs,
        outputs,
        tuple(tuple(_post(collective, rank, index) for index in range(outputs[rank])) for rank in ranks),
        tuple(tuple(collective.has_data(rank, index) for index in range(inputs[rank])) for rank in ranks),
    )


def _post(collective: Collective, rank: int, index: int) -> tuple[tuple[int, int], ...] | None:
    expected = collective.expected(rank, index)
    return None if expected is None else tuple(sorted(expected))


class _Told(Custom):
    """A user-defined collective, rebuilt from its specification."""

    def __init__(self, promise: Promise, ranks: int) -> None:
        super().__init__(promise.name, ranks, 0, 0, lambda rank, chunk: None, inplace=promise.inplace)
        self.chunk_factor = promise.chunk_factor
        self._promise = promise

    def input_chunks(self, rank: int) -> int:
        return self._promise.inputs[rank]

    def output_chunks(self, rank: int) -> int:
        return self._promise.outputs[rank]

    def has_data(self, rank: int, index: int) -> bool:
        return self._promise.pre[rank][index]

    def expected(self, rank: int, index: int) -> tuple[tuple[int, int], ...] | None:
        return self._promise.post[rank][index]


def collective_of(promise: Promise, ranks: int) -> Collective:
    """The collective of a specification. Raises ProgramFileError if the specification is invalid."""
    if not 1 <= promise.chunk_factor <= MAX_CHUNK_FACTOR:
        raise ProgramFileError(
            f"/program/collective/chunk_factor: {promise.chunk_factor} is not from 1 to {MAX_CHUNK_FACTOR}."
        )
    kind = _BUILT_IN.get(promise.name)
    if kind is None:
        _check_shapes(promise, ranks)
        return _Told(promise, ranks)
    if promise.inputs or promise.outputs or promise.post or promise.pre:
        raise ProgramFileError(f"/program/collective: {promise.name} is built in; its chunks are not to be given.")
    if kind not in _ROOTED:
        if promise.root != -1:
            raise ProgramFileError(f"/program/collective/root: {promise.name} has none.")
        return kind(ranks, promise.chunk_factor, promise.inplace)
    if not 0 <= promise.root < ranks:
        raise ProgramFileError(f"/program/collective/root: {promise.root} is not from 0 to {ranks - 1}.")
    return kind(ranks, promise.chunk_factor, promise.inplace, promise.root)


def _check_shapes(promise: Promise, ranks: int) -> None:
    for name in ("inputs", "outputs", "post", "pre"):
        if len(getattr(promise, name)) != ranks:
            raise ProgramFileError(
                f"/program/collective/{name}: {len(getattr(promise, name))} entries for {ranks} ranks."
            )
    for name, chunks, listed in (("pre", promise.inputs, promise.pre), ("post", promise.outputs, promise.post)):
        for rank in range(ranks):
            if not 0 <= chunks[rank] <= MAX_CHUNK_FACTOR or len(listed[rank]) != chunks[rank]:
                raise ProgramFileError(
                    f"/program/collective/{name}/{rank}: {len(listed[rank])} entries for {chunks[rank]} chunks."
                )
    for rank, chunks_of in enumerate(promise.post):
        for index, origins in enumerate(chunks_of):
            for source, chunk in origins or ():
                if not (0 <= source < ranks and 0 <= chunk < promise.inputs[source]):
                    where = f"/program/collective/post/{rank}/{index}"
                    raise ProgramFileError(f"{where}: there is no input chunk {chunk} of rank {source}.")
