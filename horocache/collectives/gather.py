"""Gather, once for all frameworks: one rank, the root, gets the rows of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_GATHER
from horocache.base.request import Request
from horocache.collectives.arguments import Name, check_backend, checked_root, full_name, set_id, whole_numbers
from horocache.collectives.forms import BACKEND, NAME, PROCESS_SET, ROOT, Collective, Parameter, Text, forms
from horocache.collectives.submitter import Submitter
from horocache.core.process_set import ProcessSet

T = TypeVar("T")

_TENSOR = (
    "shape ``(n_r, ...)``; ``n_r`` may differ from rank to rank and may be 0, the other dimensions may not. A scalar "
    "counts as one row. Not modified."
)
GATHER = Collective(
    "gather",
    "_gather_to_root",
    (ROOT, NAME, PROCESS_SET, BACKEND),
    Text(
        summary="Concatenate the ranks' tensors along the first dimension; one rank gets the result.",
        tensor=_TENSOR,
        returns="On the root a new tensor of shape ``(sum of n_r, ...)``, in rank order; None on other ranks.",
        raises="InvalidArgumentError: ``root_rank`` is not in the set.\n"
        "MismatchError: dtype, another dimension or root differ between ranks.",
    ),
    result="T | None",
    grouped=False,
    is_horovods=False,
)
GATHERV = Collective(
    "gatherv",
    "_gatherv",
    (
        ROOT,
        Parameter(
            "recvcounts",
            "Any",
            "on the root, one integer per rank, a sequence or a tensor: number of rows expected from that rank; it "
            "must match what the rank sends. None accepts any number.",
            "None",
        ),
        Parameter(
            "displs",
            "Any",
            "on the root, one integer per rank, a sequence or a tensor: the row of the result at which that rank's "
            "part begins. Parts must not overlap; rows that no part covers are zero. None: one part follows the other.",
            "None",
        ),
        NAME,
        PROCESS_SET,
        BACKEND,
    ),
    Text(
        summary="Concatenate the ranks' tensors on one rank, each rank's part at its own position.",
        tensor=_TENSOR,
        returns="On the root a new tensor of ``max(displs + recvcounts)`` rows; None on other ranks.",
        raises="MismatchError: dtype, another dimension or root differ between ranks; the root expects another number "
        "of rows than it gets, which fails on all ranks; or the root's lists are wrong.\n"
        "InvalidArgumentError: on the root, the lists do not fit the number of ranks; on all ranks, parts overlap or "
        "``root_rank`` is not in the set.",
    ),
    result="T | None",
    grouped=False,
    is_horovods=False,
)


@forms(GATHER, GATHERV)
class Gather(Submitter[T]):
    """The root gets the rows of all ranks. A base of :class:`horocache.collectives.operations.Collectives`."""

    def _gather_to_root(
        self,
        tensors: Sequence[Any],
        root_rank: int,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool,
    ) -> int:
        call = (name, process_set, backend, wait_follows)
        return self._gatherv(tensors, root_rank, None, None, *call, kind="gather")

    def _gatherv(
        self,
        tensors: Sequence[Any],
        root_rank: int,
        recvcounts: Any,
        displs: Any,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool,
        kind: str = "gatherv",
    ) -> int:
        adapter = self.adapter
        (source,) = self.checked(tensors, kind)
        root = checked_root(kind, root_rank, process_set)
        is_root = process_set.rank() == root

        def finish(answer: Any) -> T | None:
            return adapter.from_result(answer[0]) if is_root else None

        return self.start(
            finish,
            Request(
                OP_GATHER,
                [adapter.dense(adapter.as_rows(source))[0]],
                None,
                full_name(kind, name),
                process_set=set_id(process_set),
                root=root,
                wait_follows=wait_follows,
                backend=check_backend(backend),
                receive_rows=whole_numbers(kind, "recvcounts", recvcounts) if is_root else None,
                receive_starts=whole_numbers(kind, "displs", displs) if is_root else None,
            ),
        )
