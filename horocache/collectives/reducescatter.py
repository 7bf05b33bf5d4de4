"""Reducescatter, once for all frameworks: every rank gets its part of the reduced rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_REDUCESCATTER
from horocache.base.request import Request
from horocache.collectives.arguments import Name, check_backend, full_name, set_id, whole_numbers
from horocache.collectives.forms import (
    BACKEND,
    COMPRESSION,
    NAME,
    OP,
    POSTSCALE,
    PRESCALE,
    PROCESS_SET,
    Collective,
    Parameter,
    Text,
    forms,
)
from horocache.collectives.reduce_op import check_op
from horocache.collectives.submitter import Submitter
from horocache.collectives.transforms import AnyCompressor, layer_list
from horocache.core.process_set import ProcessSet

T = TypeVar("T")

_RAISES = (
    "MismatchError: shape, dtype, op, scales, compression or backend differ between ranks; names two ranks and both "
    "values.\n"
    "InvalidArgumentError: an argument is invalid on this rank.\n"
    "UnsupportedError: the backend does not exist, the tensor's device, layout or dtype is not supported, the op is "
    "Adasum or not defined for the dtype, or the compression is a codec."
)
REDUCESCATTER = Collective(
    "reducescatter",
    "_reducescatter",
    (NAME, COMPRESSION, OP, PROCESS_SET, PRESCALE, POSTSCALE, BACKEND),
    Text(
        summary="Reduce the ranks' tensors and divide the rows of the result among the ranks, in rank order.",
        tensor="shape ``(n, ...)``, the same on all ranks; not a scalar. Not modified. If ``n`` is not a multiple of "
        "the number of ranks, the first ranks get one row more.",
        returns="A new tensor with this rank's rows.",
        raises=_RAISES,
    ),
    in_place=Text(
        summary="Reduce the ranks' tensors, and store this rank's rows of the result in the tensor itself.",
        tensor="shape ``(n, ...)``, the same on all ranks; not a scalar. This rank's rows get the result, the other "
        "rows keep their values. If ``n`` is not a multiple of the number of ranks, the first ranks get one row more.",
        returns="This rank's rows, which share the tensor's memory.",
        raises=_RAISES,
    ),
)
REDUCESCATTERV = Collective(
    "reducescatterv",
    "_reducescatterv",
    (
        Parameter(
            "recvcounts",
            "Any",
            "one integer per rank, a sequence or a tensor, the same on all ranks: number of rows of the result that "
            "the rank gets. Their sum is ``n``.",
        ),
        NAME,
        OP,
        PRESCALE,
        POSTSCALE,
        PROCESS_SET,
        BACKEND,
    ),
    Text(
        summary="Reduce the ranks' tensors and give each rank its number of rows of the result, in rank order.",
        tensor="shape ``(n, ...)``, the same on all ranks; not a scalar. Not modified.",
        returns="A new tensor of shape ``(recvcounts[own rank], ...)``.",
        raises="MismatchError: ``recvcounts``, shape, dtype, op, scales or backend differ between ranks.\n"
        "InvalidArgumentError: on a rank, ``recvcounts`` does not fit the tensor or the number of ranks.",
    ),
    grouped=False,
    is_horovods=False,
)


@forms(REDUCESCATTER, REDUCESCATTERV)
class Reducescatter(Submitter[T]):
    """Every rank gets its part of the reduced rows. A base of :class:`horocache.collectives.operations.Collectives`."""

    def _reducescatter(
        self,
        tensors: Sequence[Any],
        name: Name,
        compression: AnyCompressor | None,
        op: int,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
        backend: str | None,
        group: bool,
        in_place: bool,
        wait_follows: bool,
        kind: str = "reducescatter",
        splits: Sequence[int] | None = None,
    ) -> int:
        kind = f"grouped_{kind}" if group else kind
        sources = self.checked(tensors, kind, in_place)
        layers = layer_list(compression, group)
        encoded, contexts = layers.encode(sources)
        self.count_compressed(sources, encoded)
        buffers, _ = self.dense(sources, encoded)

        def finish(answer: Any) -> Any:
            results = layers.decode(self.tensors(answer), contexts)
            if in_place:
                stored = zip(sources, results, strict=True)
                results = [self._store_own(source, values, process_set) for source, values in stored]
            return results if group else results[0]

        return self.start(
            finish,
            Request(
                OP_REDUCESCATTER,
                buffers,
                None,
                full_name(kind, name),
                reduce_op=check_op(op),
                prescale=prescale,
                postscale=postscale,
                process_set=set_id(process_set),
                splits=splits,
                layers=layers.signature,
                group=group,
                wait_follows=wait_follows,
                backend=check_backend(backend),
            ),
        )

    def _reducescatterv(
        self,
        tensors: Sequence[Any],
        recvcounts: Any,
        name: Name,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        backend: str | None,
        wait_follows: bool,
    ) -> int:
        rows = whole_numbers("reducescatterv", "recvcounts", recvcounts)
        call = (tensors, name, None, op, process_set, prescale, postscale, backend, False, False, wait_follows)
        return self._reducescatter(*call, "reducescatterv", rows)

    def _store_own(self, tensor: Any, values: Any, process_set: ProcessSet) -> Any:
        each, more = divmod(self.adapter.shape(tensor)[0], process_set.size())
        rank = process_set.rank()
        start = rank * each + min(rank, more)
        rows = tensor[start : start + self.adapter.shape(values)[0]]
        self.adapter.copy_into(rows, values)
        self.adapter.written(tensor)
        return rows
