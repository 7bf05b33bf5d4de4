"""Scatter, once for all frameworks: every rank gets some of the rows of one rank, the root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_SCATTER
from horocache.base.request import Request
from horocache.collectives.arguments import Name, check_backend, checked_root, full_name, set_id, whole_numbers
from horocache.collectives.forms import BACKEND, NAME, PROCESS_SET, ROOT, Collective, Parameter, Text, forms
from horocache.collectives.submitter import Submitter
from horocache.core.process_set import ProcessSet

T = TypeVar("T")

_OTHERS = (
    "On other ranks a tensor of the same dtype and shape, except that it may have any number of rows, including 0: its "
    "values are not read. Not modified."
)
SCATTER = Collective(
    "scatter",
    "_scatter",
    (ROOT, NAME, PROCESS_SET, BACKEND),
    Text(
        summary="Divide one rank's rows evenly among the ranks, in rank order.",
        tensor=f"on the root, shape ``(n, ...)``, where ``n`` is a multiple of the number of ranks. {_OTHERS}",
        returns="A new tensor with this rank's rows, ``n`` divided by the number of ranks.",
        raises="InvalidArgumentError: ``root_rank`` is not in the set; on the root, ``n`` is not a multiple of the "
        "number of ranks.\n"
        "MismatchError: dtype, another dimension or root differ between ranks; on other ranks, the root's arguments "
        "are wrong.",
    ),
    grouped=False,
    is_horovods=False,
)
SCATTERV = Collective(
    "scatterv",
    "_scatterv",
    (
        ROOT,
        Parameter(
            "sendcounts",
            "Any",
            "on the root, one integer per rank, a sequence or a tensor: number of rows that the rank gets. None: the "
            "same number for each rank.",
            "None",
        ),
        Parameter(
            "displs",
            "Any",
            "on the root, one integer per rank, a sequence or a tensor: the row of the tensor at which the rank's part "
            "begins. Parts may overlap and leave gaps. None: one part follows the other, from row 0.",
            "None",
        ),
        NAME,
        PROCESS_SET,
        BACKEND,
    ),
    Text(
        summary="Give each rank its number of one rank's rows, from its own position in the root's tensor.",
        tensor=f"on the root, shape ``(n, ...)``. {_OTHERS}",
        returns="A new tensor with this rank's rows.",
        raises="InvalidArgumentError: ``root_rank`` is not in the set; on the root, the lists do not fit its tensor or "
        "the number of ranks.\n"
        "MismatchError: dtype, another dimension or root differ between ranks; on other ranks, the root's arguments "
        "are wrong.",
    ),
    grouped=False,
    is_horovods=False,
)


@forms(SCATTER, SCATTERV)
class Scatter(Submitter[T]):
    """Every rank gets some of the root's rows. A base of :class:`horocache.collectives.operations.Collectives`."""

    def _scatter(
        self,
        tensors: Sequence[Any],
        root_rank: int,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool,
    ) -> int:
        call = (name, process_set, backend, wait_follows)
        return self._scatterv(tensors, root_rank, None, None, *call, kind="scatter")

    def _scatterv(
        self,
        tensors: Sequence[Any],
        root_rank: int,
        sendcounts: Any,
        displs: Any,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool,
        kind: str = "scatterv",
    ) -> int:
        (source,) = self.checked(tensors, kind)
        root = checked_root(kind, root_rank, process_set)
        send_rows: Sequence[int] | None = None
        send_starts: Sequence[int] | None = None
        if process_set.rank() == root:
            send_rows = whole_numbers(kind, "sendcounts", sendcounts)
            send_starts = whole_numbers(kind, "displs", displs)
            buffer = self.rows_to_send(source, send_rows, send_starts)
        else:  # only the tensor's dtype and the shape of its rows are used
            buffer = self.rows_to_send(source, [0], None)
        return self.start(
            lambda answer: self.adapter.from_result(answer[0]),
            Request(
                OP_SCATTER,
                [buffer],
                None,
                full_name(kind, name),
                process_set=set_id(process_set),
                root=root,
                splits=send_rows,
                wait_follows=wait_follows,
                backend=check_backend(backend),
                send_starts=send_starts,
            ),
        )
