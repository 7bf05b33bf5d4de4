"""The start of every collective: it checks tensors, submits them to the core and returns a handle.

Each handle has a *finisher* in the session: a function that converts the core's answer to the caller's result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from horocache.base.operation_codes import OP_NAMES
from horocache.base.request import Request
from horocache.base.thread_names import counts_by_itself
from horocache.collectives.arguments import REFUSED, check_list, check_numbers, full_name, set_id
from horocache.collectives.completion import finishes_many
from horocache.collectives.tensor_adapter import TensorAdapter
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import InvalidArgumentError

T = TypeVar("T")
Finisher = Callable[[Any], Any]


def _finish(finish: Finisher, answer: Any) -> Any:
    return finish(answer)


class Submitter(Generic[T]):
    """Checks tensors, submits them to the core and returns a handle.

    Role: base of the classes with the operations; stateless except for the adapter, shared by all threads.
    """

    def __init__(self, adapter: TensorAdapter[T]) -> None:
        self.adapter = adapter
        self._as_is = adapter.as_is
        self._plain_type = adapter.plain_type
        self._written = adapter.written
        self._all_written = adapter.all_written
        finishes_many[self._written] = self._all_written

    def start(self, finish: Finisher, request: Request) -> int:
        """Submit an operation to the core and keep its finisher for :func:`synchronize`; returns the handle."""
        session = context.current()
        taken = None
        if request.name is None and counts_by_itself():
            taken = session.thread_names.take(request.op, request.process_set, session.pending)
            request = request._replace(name=full_name(OP_NAMES[request.op], taken.name))
        try:
            handle = session.runtime.submit(request)
        except REFUSED:  # checked only then: a check beforehand would cost every call time
            check_numbers((request.prescale, request.postscale), request.priority)
            raise
        session.pending[handle] = (_finish, finish)
        if taken is not None:
            taken.handles[taken.place] = handle
        return handle

    def as_they_are(self, tensors: Sequence[Any], in_place: bool) -> bool:
        """True if the core can work on the tensors of the call as they are, as it can in nearly every call."""
        as_is = self._as_is
        if type(tensors) is not list or not tensors:
            return False
        for tensor in tensors:  # noqa: SIM110  (a generator would cost as much as the test)
            if not as_is(tensor, in_place):
                return False
        return True

    def checked(self, tensors: Sequence[Any], kind: str, in_place: bool = False) -> list[T]:
        """Return the tensors of a call, each checked and converted by the adapter."""
        check_list(tensors, kind)
        sources = [self.adapter.check(tensor) for tensor in tensors]
        if in_place:
            for tensor, source in zip(tensors, sources, strict=True):
                if source is not tensor:
                    raise InvalidArgumentError(
                        f"{kind} in place needs a tensor to store the result in, not {tensor!r}."
                    )
                self.adapter.check_writable(source)
        return sources

    def equal_parts(self, tensor: Any, kind: str, process_set: ProcessSet) -> tuple[Any, int]:
        """Check that the tensor is writable; returns it with the number of its rows that belong to each rank."""
        (source,) = self.checked([tensor], kind, in_place=True)
        set_id(process_set)
        shape, ranks = self.adapter.shape(source), process_set.size()
        if not shape or shape[0] % ranks:
            raise InvalidArgumentError(
                f"{kind} in place needs equally many rows for each of {ranks} ranks; the tensor has shape {shape}."
            )
        return source, shape[0] // ranks

    def dense(self, sources: list[T], encoded: list[T]) -> tuple[list[T], list[bool]]:
        """Return contiguous tensors to send; and for each, True if its memory is private, not the user's."""
        buffers, private = [], []
        for source, tensor in zip(sources, encoded, strict=True):
            buffer, copied = self.adapter.dense(tensor)
            buffers.append(buffer)
            private.append(copied or tensor is not source)
        return buffers, private

    def count_compressed(self, given: Sequence[Any], encoded: Sequence[Any]) -> None:
        """Count the bytes of the tensors that a compressor has changed."""
        changed = [(tensor, sent) for tensor, sent in zip(given, encoded, strict=True) if sent is not tensor]
        if changed:
            sizes = sum(tensor.nbytes for tensor, _ in changed), sum(sent.nbytes for _, sent in changed)
            context.current().compressed.add(*sizes)

    def tensors(self, answer: Any) -> list[T]:
        """Return the framework's tensors for the results that the core allocated."""
        return [self.adapter.from_result(result) for result in answer]

    def rows_to_send(self, source: T, rows: Sequence[int] | None, starts: Sequence[int] | None) -> T:
        """Return contiguous memory with the rows of ``source`` that are sent, or with all rows.

        Without ``starts``, rows behind the last part are left out. Invalid numbers are passed on to the core, which
        refuses them on all ranks.
        """
        source = self.adapter.as_rows(source)
        if rows is not None and starts is None and min(rows) >= 0 and sum(rows) <= self.adapter.shape(source)[0]:
            source = self.adapter.first_rows(source, sum(rows))
        return self.adapter.dense(source)[0]
