"""Alltoall, once for all frameworks: every rank sends rows to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_ALLTOALL
from horocache.base.request import Request
from horocache.collectives.arguments import Name, check_backend, full_name, set_id, whole_numbers
from horocache.collectives.forms import BACKEND, NAME, PROCESS_SET, Collective, Parameter, Text, forms
from horocache.collectives.submitter import Submitter
from horocache.core.process_set import ProcessSet
from horocache.errors import InvalidArgumentError

T = TypeVar("T")

_RAISES = (
    "InvalidArgumentError: the splits do not fit the tensor or the number of ranks, or an argument is invalid on this "
    "rank.\n"
    "MismatchError: dtype, backend or another dimension than the first differs between ranks; names two ranks and both "
    "values.\n"
    "UnsupportedError: the backend does not exist, or the tensor's device, layout or dtype is not supported."
)
ALLTOALL = Collective(
    "alltoall",
    "_alltoall",
    (
        Parameter(
            "splits",
            "Any",
            "one integer per rank, a sequence or a tensor, for all tensors of a group: number of rows that go to that "
            "rank, in rank order. None: the rows are divided evenly, and their number must be a multiple of the number "
            "of ranks.",
            "None",
        ),
        NAME,
        PROCESS_SET,
        BACKEND,
    ),
    Text(
        summary="Send a slice of rows to every rank and receive one from each.",
        tensor="shape ``(n, ...)``; ``n`` may differ from rank to rank, the other dimensions may not. Not modified.",
        returns="A new tensor with the received rows, in rank order. If ``splits`` is given, and always from the "
        "asynchronous form: a pair of this tensor and the number of rows from each rank.",
        raises=_RAISES,
    ),
    result="T | tuple[T, T]",
    group_result="list[T] | list[tuple[T, T]]",
    in_place=Text(
        summary="Send a slice of rows to every rank, and store the rows that come from each in the tensor itself.",
        tensor="shape ``(n, ...)``; as many rows as it gets. Otherwise it keeps its values.",
        returns="The tensor itself. If ``splits`` is given, and always from the asynchronous form: a pair of the "
        "tensor and the number of rows from each rank.",
        raises=f"{_RAISES}\nInvalidArgumentError: when the rows have come, their number is not that of the tensor.",
    ),
)
ALLTOALLV = Collective(
    "alltoallv",
    "_alltoallv",
    (
        Parameter("sendcounts", "Any", "number of rows that go to each rank."),
        Parameter(
            "recvcounts",
            "Any",
            "number of rows expected from each rank; it must match what the rank sends. None accepts any number.",
            "None",
        ),
        Parameter(
            "sdispls",
            "Any",
            "the row of the tensor at which the part for each rank begins. Parts may overlap and leave gaps. None: one "
            "part follows the other, from row 0.",
            "None",
        ),
        Parameter(
            "rdispls",
            "Any",
            "the row of the result at which the part from each rank begins. Parts must not overlap; rows that no part "
            "covers are zero. None: one part follows the other.",
            "None",
        ),
        NAME,
        PROCESS_SET,
        BACKEND,
    ),
    Text(
        summary="Send rows to every rank and receive rows from each, with the position of each rank's rows.",
        details="Every list is a sequence or a tensor with one integer for each rank. The lists may differ from rank "
        "to rank.",
        tensor="shape ``(n, ...)``; ``n`` may differ from rank to rank, the other dimensions may not. A scalar counts "
        "as one row. Not modified.",
        returns="A pair: a new tensor of ``max(rdispls + recvcounts)`` rows, and the number of rows from each rank.",
        raises="MismatchError: dtype or another dimension differs between ranks; or a rank expects another number of "
        "rows than it gets.\n"
        "InvalidArgumentError: a rank's lists do not fit its tensor or the number of ranks, or received parts overlap.",
    ),
    result="tuple[T, T]",
    grouped=False,
    is_horovods=False,
)


@forms(ALLTOALL, ALLTOALLV)
class Alltoall(Submitter[T]):
    """Every rank sends rows to every rank. A base of :class:`horocache.collectives.operations.Collectives`."""

    def _alltoall(
        self,
        tensors: Sequence[Any],
        splits: Any,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        group: bool,
        in_place: bool,
        wait_follows: bool,
    ) -> int:
        kind = "grouped_alltoall" if group else "alltoall"
        sources = self.checked(tensors, kind, in_place)
        set_id(process_set)
        rows = [self._rows(source, splits, process_set.size()) for source in sources]
        buffers = [
            self.adapter.dense(self.adapter.first_rows(source, sum(own)))[0]
            for source, own in zip(sources, rows, strict=True)
        ]
        as_pairs = splits is not None or not wait_follows  # a blocking call without splits returns the tensors alone

        def finish(answer: Any) -> Any:
            pairs = self._pairs(answer)
            if in_place:
                stored = zip(sources, pairs, strict=True)
                pairs = [(self._store_all(source, output), received) for source, (output, received) in stored]
            results = pairs if as_pairs else [output for output, _ in pairs]
            return results if group else results[0]

        return self.start(
            finish,
            Request(
                OP_ALLTOALL,
                buffers,
                None,
                full_name(kind, name),
                # The tensors of a group share `splits`. Without it, the rows of each tensor are divided evenly.
                splits=None if group and splits is None else rows[0],
                process_set=set_id(process_set),
                group=group,
                wait_follows=wait_follows,
                backend=check_backend(backend),
            ),
        )

    def _alltoallv(
        self,
        tensors: Sequence[Any],
        sendcounts: Any,
        recvcounts: Any,
        sdispls: Any,
        rdispls: Any,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool,
    ) -> int:
        (source,) = self.checked(tensors, "alltoallv")
        lists = {"sendcounts": sendcounts, "recvcounts": recvcounts, "sdispls": sdispls, "rdispls": rdispls}
        numbers = [whole_numbers("alltoallv", what, values) for what, values in lists.items()]
        send_rows, receive_rows, send_starts, receive_starts = numbers
        if send_rows is None:
            raise InvalidArgumentError("alltoallv needs sendcounts: how many rows go to each rank.")
        return self.start(
            lambda answer: self._pairs(answer)[0],
            Request(
                OP_ALLTOALL,
                [self.rows_to_send(source, send_rows, send_starts)],
                None,
                full_name("alltoallv", name),
                process_set=set_id(process_set),
                splits=send_rows,
                wait_follows=wait_follows,
                backend=check_backend(backend),
                send_starts=send_starts,
                receive_rows=receive_rows,
                receive_starts=receive_starts,
            ),
        )

    def _pairs(self, answer: Any) -> list[tuple[T, T]]:
        return [(self.adapter.from_result(result), self.adapter.integers(result.rows)) for result in answer]

    def _store_all(self, tensor: Any, values: Any) -> Any:
        had, came = self.adapter.shape(tensor)[0], self.adapter.shape(values)[0]
        if had != came:
            raise InvalidArgumentError(
                f"alltoall in place: {came} rows came for a tensor of {had}, which keeps its values. Use alltoall."
            )
        self.adapter.copy_into(tensor, values)
        self.adapter.written(tensor)
        return tensor

    def _rows(self, source: T, splits: Any, ranks: int) -> list[int]:
        shape = self.adapter.shape(source)
        if not shape:
            raise InvalidArgumentError("alltoall does not support scalar inputs: they have no rows to send.")
        if splits is None:
            if shape[0] % ranks:
                raise InvalidArgumentError(
                    "splits not provided, but first dimension of tensor is not an even multiple of the number of "
                    f"workers: {shape[0]} rows, {ranks} workers."
                )
            return [shape[0] // ranks] * ranks
        rows = whole_numbers("alltoall", "splits", splits) or []
        if len(rows) != ranks:
            raise InvalidArgumentError(
                f"Number of entries in splits does not equal number of workers: {len(rows)} entries, {ranks} workers."
            )
        if min(rows) < 0:
            raise InvalidArgumentError(f"splits must not be negative; they are {rows}.")
        if sum(rows) > shape[0]:
            raise InvalidArgumentError(
                f"Sum of splits entries is greater than the first dimension of tensor: {sum(rows)} > {shape[0]}."
            )
        return rows
