"""Reduce, once for all frameworks: one rank, the root, gets the element-wise reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_REDUCE
from horocache.base.request import Request
from horocache.collectives.arguments import Name, check_backend, checked_root, full_name, set_id
from horocache.collectives.forms import (
    BACKEND,
    NAME,
    OP,
    POSTSCALE,
    PRESCALE,
    PROCESS_SET,
    ROOT,
    Collective,
    Text,
    forms,
)
from horocache.collectives.reduce_op import check_op
from horocache.collectives.submitter import Submitter
from horocache.core.process_set import ProcessSet

T = TypeVar("T")

REDUCE = Collective(
    "reduce",
    "_reduce_to_root",
    (ROOT, NAME, OP, PRESCALE, POSTSCALE, PROCESS_SET, BACKEND),
    Text(
        summary="Reduce the ranks' tensors element by element; one rank gets the result.",
        tensor="any shape, the same shape and dtype on all ranks. Not modified.",
        returns="On the root a new tensor of the same shape and dtype, with the same bits as from allreduce(); None on "
        "other ranks.",
        raises="InvalidArgumentError: ``root_rank`` is not in the set.\n"
        "MismatchError: shape, dtype, op, scales or root differ between ranks.",
    ),
    result="T | None",
    grouped=False,
    is_horovods=False,
)


@forms(REDUCE)
class Reduce(Submitter[T]):
    """Only the root gets the reduction. A base of :class:`horocache.collectives.operations.Collectives`."""

    def _reduce_to_root(
        self,
        tensors: Sequence[Any],
        root_rank: int,
        name: Name,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool,
    ) -> int:
        sources = self.checked(tensors, "reduce")
        root = checked_root("reduce", root_rank, process_set)
        buffers, private = self.dense(sources, sources)
        output: T | None = None
        if process_set.rank() == root:
            output = buffers[0] if private[0] else self.adapter.empty_like(buffers[0])
        return self.start(
            lambda _: output,
            Request(
                OP_REDUCE,
                buffers,
                [output],
                full_name("reduce", name),
                reduce_op=check_op(op),
                prescale=prescale,
                postscale=postscale,
                root=root,
                process_set=set_id(process_set),
                wait_follows=wait_follows,
                backend=check_backend(backend),
            ),
        )
