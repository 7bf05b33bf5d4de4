"""Broadcast, once for all frameworks: every rank gets the values of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_BROADCAST
from horocache.base.request import Request
from horocache.collectives.arguments import Name, check_backend, checked_root, full_name, set_id
from horocache.collectives.forms import BACKEND, NAME, PROCESS_SET, ROOT, Collective, Text, forms
from horocache.collectives.submitter import Submitter
from horocache.core.process_set import ProcessSet

T = TypeVar("T")

_RAISES = (
    "MismatchError: shape, dtype, root or backend differ between ranks; names two ranks and both values.\n"
    "InvalidArgumentError: ``root_rank`` is not in the set, or an argument is invalid on this rank.\n"
    "UnsupportedError: the backend does not exist, or the tensor's device, layout or dtype is not supported."
)
BROADCAST = Collective(
    "broadcast",
    "_broadcast",
    (ROOT, NAME, PROCESS_SET, BACKEND),
    Text(
        summary="Copy the root's tensor to all ranks.",
        tensor="any shape, the same shape and dtype on all ranks; only the root's values are used. Not modified.",
        returns="A new tensor with the root's values.",
        raises=_RAISES,
    ),
    in_place=Text(
        summary="Copy the root's tensor to all ranks, and store the values in the tensor itself.",
        tensor="any shape, the same shape and dtype on all ranks; gets the root's values. A read-only tensor is an "
        "error.",
        returns="The tensor itself.",
        raises=_RAISES,
    ),
)


@forms(BROADCAST)
class Broadcast(Submitter[T]):
    """Every rank gets the values of one rank. A base of :class:`horocache.collectives.operations.Collectives`."""

    def _broadcast(
        self,
        tensors: Sequence[Any],
        root_rank: int,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        group: bool,
        in_place: bool,
        wait_follows: bool,
        names: Sequence[Name] | None = None,
        kind: str = "broadcast",
    ) -> int:
        kind = f"grouped_{kind}" if group and names is None else kind
        adapter = self.adapter
        sources = self.checked(tensors, kind, in_place)
        root = checked_root("broadcast", root_rank, process_set)
        buffers, private = self.dense(sources, sources)
        outputs = [b if in_place or own else adapter.empty_like(b) for b, own in zip(buffers, private, strict=True)]

        def finish(_: object) -> Any:
            if not in_place:
                return outputs if group else outputs[0]
            for source, output, own in zip(sources, outputs, private, strict=True):
                if own:
                    adapter.copy_into(source, output)
                else:
                    adapter.written(source)
            return list(tensors) if group else tensors[0]

        return self.start(
            finish,
            Request(
                OP_BROADCAST,
                buffers,
                outputs,
                full_name(kind, name),
                process_set=set_id(process_set),
                root=root,
                group=group,
                wait_follows=wait_follows,
                backend=check_backend(backend),
                names=names,
            ),
        )

    def broadcast_parameters_async_(
        self, tensors: Sequence[T], names: Sequence[Any], root_rank: int, process_set: ProcessSet
    ) -> int:
        """Start the broadcast of a model's parameters, in place, as one group; returns one handle.

        The group has the name of its first parameter. Each member has its own parameter's name, by which the core finds
        that groups belong together whose first parameters differ between ranks, and reports that at once.
        """
        members = [full_name("parameter", str(name)) for name in names]
        call = (tensors, root_rank, str(names[0]), process_set, None, True, True, False)
        return self._broadcast(*call, names=members, kind="parameters")
