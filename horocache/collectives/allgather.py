"""Allgather, once for all frameworks: every rank gets the rows of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_ALLGATHER
from horocache.base.request import Request
from horocache.collectives.arguments import Name, check_backend, full_name, set_id, whole_numbers
from horocache.collectives.completion import synchronize
from horocache.collectives.forms import BACKEND, NAME, PROCESS_SET, Collective, Parameter, Text, forms
from horocache.collectives.submitter import Finisher, Submitter
from horocache.core.process_set import ProcessSet, global_process_set

T = TypeVar("T")

_TENSOR = (
    "shape ``(n_r, ...)``; ``n_r`` may differ from rank to rank and may be 0, the other dimensions may not. A scalar "
    "counts as one row. Not modified."
)
_RAISES = (
    "MismatchError: dtype, backend or another dimension than the first differs between ranks; names two ranks and both "
    "values.\n"
    "InvalidArgumentError: an argument is invalid on this rank.\n"
    "UnsupportedError: the backend does not exist, or the tensor's device, layout or dtype is not supported."
)
ALLGATHER = Collective(
    "allgather",
    "_allgather",
    (NAME, PROCESS_SET, BACKEND),
    Text(
        summary="Concatenate the ranks' tensors along the first dimension; every rank gets the result.",
        tensor=_TENSOR,
        returns="A new tensor of shape ``(sum of n_r, ...)``, in rank order.",
        raises=_RAISES,
    ),
    in_place=Text(
        summary="Fill in the other ranks' rows of a tensor, as ``MPI_Allgather`` does with ``MPI_IN_PLACE``.",
        tensor="shape ``(ranks * n, ...)``, the same on all ranks. This rank's rows are "
        "``[rank * n : (rank + 1) * n]``, where ``rank`` is its rank in the set. The other rows are overwritten.",
        returns="The tensor itself.",
        raises=_RAISES.replace(
            "is invalid on this rank",
            "is invalid on this rank, or the number of rows is not a multiple of the number of ranks",
        ),
    ),
)
ALLGATHERV = Collective(
    "allgatherv",
    "_allgatherv",
    (
        Parameter(
            "recvcounts",
            "Any",
            "one integer per rank, a sequence or a tensor: number of rows expected from that rank; it must match what "
            "the rank sends. None accepts any number.",
            "None",
        ),
        Parameter(
            "displs",
            "Any",
            "one integer per rank, a sequence or a tensor: the row of this rank's result at which that rank's part "
            "begins. Parts must not overlap; rows that no part covers are zero. None: one part follows the other. The "
            "lists may differ from rank to rank.",
            "None",
        ),
        NAME,
        PROCESS_SET,
        BACKEND,
    ),
    Text(
        summary="Concatenate the ranks' tensors along the first dimension, each rank's part at its own position.",
        tensor=_TENSOR,
        returns="A new tensor of ``max(displs + recvcounts)`` rows.",
        raises="MismatchError: dtype or another dimension differs between ranks; a rank expects another number of rows "
        "than it gets, which fails on all ranks; or another rank's lists are wrong.\n"
        "InvalidArgumentError: this rank's lists do not fit the number of ranks; or, on all ranks, parts overlap.",
    ),
    grouped=False,
    is_horovods=False,
)


@forms(ALLGATHER, ALLGATHERV)
class Allgather(Submitter[T]):
    """Every rank gets the rows of all ranks. A base of :class:`horocache.collectives.operations.Collectives`."""

    def _allgather(
        self,
        tensors: Sequence[Any],
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        group: bool,
        in_place: bool,
        wait_follows: bool,
    ) -> int:
        kind = "grouped_allgather" if group else "allgather"
        if not in_place:
            finish = self.tensors if group else self._first
            return self._gather(tensors, kind, name, process_set, finish, group, wait_follows, backend)
        own = []
        for tensor in tensors:
            source, rows = self.equal_parts(tensor, kind, process_set)
            rank = process_set.rank()
            own.append(source[rank * rows : (rank + 1) * rows])

        def store(answer: Any) -> Any:
            gathered = self.tensors(answer)
            for tensor, result, values in zip(tensors, answer, gathered, strict=True):
                self._store_rows(tensor, values, result.rows)
            return list(tensors) if group else tensors[0]

        return self._gather(own, kind, name, process_set, store, group, wait_follows, backend)

    def _allgatherv(
        self,
        tensors: Sequence[Any],
        recvcounts: Any,
        displs: Any,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool,
    ) -> int:
        call = (tensors, "allgatherv", name, process_set, self._first, False, wait_follows, backend)
        return self._gather(*call, recvcounts, displs)

    def _gather(
        self,
        tensors: Sequence[Any],
        kind: str,
        name: Name,
        process_set: ProcessSet,
        finish: Finisher,
        group: bool,
        wait_follows: bool = False,
        backend: str | None = None,
        recvcounts: Any = None,
        displs: Any = None,
    ) -> int:
        adapter = self.adapter
        rows = whole_numbers(kind, "recvcounts", recvcounts)
        starts = whole_numbers(kind, "displs", displs)
        inputs = [adapter.dense(adapter.as_rows(tensor))[0] for tensor in self.checked(tensors, kind)]
        return self.start(
            finish,
            Request(
                OP_ALLGATHER,
                inputs,
                None,
                full_name(kind, name),
                process_set=set_id(process_set),
                group=group,
                wait_follows=wait_follows,
                backend=check_backend(backend),
                receive_rows=rows,
                receive_starts=starts,
            ),
        )

    def _first(self, answer: Any) -> T:
        return self.tensors(answer)[0]

    def _store_rows(self, tensor: Any, values: Any, rows: Sequence[int]) -> None:
        """Store the ranks' rows in the tensor; the rows of a rank that has joined keep their values."""
        each = self.adapter.shape(tensor)[0] // len(rows)
        at = 0
        for rank, count in enumerate(rows):
            if count:
                self.adapter.copy_into(tensor[rank * each : (rank + 1) * each], values[at : at + count])
            at += count
        self.adapter.written(tensor)

    def allgather_with_rows(
        self,
        tensors: Sequence[T],
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        group: bool = True,
        *,
        backend: str | None = None,
    ) -> list[tuple[T, list[int]]]:
        """Gather several tensors; returns each result with the number of rows from each rank."""
        kind = "grouped_allgather" if group else "allgather"

        def finish(answer: Any) -> list[tuple[T, list[int]]]:
            return [(self.adapter.from_result(result), list(result.rows)) for result in answer]

        result: list[tuple[T, list[int]]] = synchronize(
            self._gather(tensors, kind, name, process_set, finish, group, True, backend)
        )
        return result

    def allgather_to_average_async(
        self,
        tensors: Sequence[T],
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start a grouped allgather; :func:`synchronize` returns the results and the divisor of an average."""

        def finish(answer: Any) -> tuple[list[T], int]:
            return self.tensors(answer), answer[0].divisor_ranks

        return self._gather(tensors, "grouped_allgather", name, process_set, finish, True, backend=backend)
