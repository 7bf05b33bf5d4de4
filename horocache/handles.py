"""Handles, names and arguments: what the collectives of all frameworks have in common.

Handles are ints. Each has a *finisher* in the session: what turns the core's answer into the caller's result.
Submission is counted in tenths of a microsecond here; where the code avoids a call or a keyword, that is why.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Generic, TypeVar

from horocache import _state
from horocache.adapter import TensorAdapter
from horocache.arguments import check_backend
from horocache.completion import finishes_many
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.process_set import ProcessSet, global_process_set
from horocache.thread_names import counts_by_itself

T = TypeVar("T")
Name = str | bytes | None
Finisher = Callable[[Any], Any]

# The first six have Horovod's numbers; the core's wire::ReduceOp has the same.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5
And = 6
Or = 7
Xor = 8
_REDUCE_OPS = {
    Average: "Average",
    Sum: "Sum",
    Adasum: "Adasum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
    And: "And",
    Or: "Or",
    Xor: "Xor",
}
RUNNABLE = frozenset(_REDUCE_OPS) - {Adasum}

# wire::Op of cpp_core/wire/message.h.
OP_ALLREDUCE = 0
OP_ALLGATHER = 1
OP_BROADCAST = 2
OP_REDUCESCATTER = 3
OP_ALLTOALL = 4
OP_REDUCE = 5
OP_GATHER = 6
OP_SCATTER = 7
OP_BARRIER = 8
OP_JOIN = 9
OP_SEND = 11
OP_RECV = 12
OP_NAMES = ("allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "reduce", "gather", "scatter")


def resolve_op(op: int | None, average: bool | None, *, stacklevel: int = 3) -> int:
    """The reduce operation that the two arguments mean; ``average`` is Horovod's old spelling.

    Args:
        op: a reduce operation, or None.
        average: True, False or None.
        stacklevel: as for :func:`warnings.warn`; 3 where the user called the function that calls this one.

    Raises:
        ValueError: both are given, or ``op`` is no reduce operation.
    """
    if average is not None:
        if op is not None:
            raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("average is deprecated; use op=Average or op=Sum.", DeprecationWarning, stacklevel=stacklevel)
        return Average if average else Sum
    op = Average if op is None else op
    return op if op == Adasum else check_op(op)


def check_op(op: int) -> int:
    """``op`` itself, if it can be run. Raises ValueError or UnsupportedError."""
    if not isinstance(op, int) or op not in _REDUCE_OPS:
        allowed = ", ".join(f"{name} ({number})" for number, name in _REDUCE_OPS.items())
        raise InvalidArgumentError(f"op={op!r} is no reduce operation; there are {allowed}.")
    if op == Adasum:
        raise UnsupportedError("Adasum is for allreduce and DistributedOptimizer only; use Average or Sum.")
    return op


def full_name(kind: str, name: Name) -> str | bytes | None:
    """The name that ranks compare: the operation, a dot, the user's name. None leaves it to the core."""
    if name is None:
        return None
    if isinstance(name, bytes):
        return kind.encode() + b"." + name
    if not isinstance(name, (str, int)):  # the text of other objects may not be the same on all ranks
        raise InvalidArgumentError(f"the name of an operation must be a str, bytes or int, not {name!r}.")
    text = f"{kind}.{name}"
    try:
        # File names and the like may hold bytes that are no UTF-8; Python keeps them as lone surrogates.
        return text if text.isascii() else text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"the name {name!r} cannot be encoded as UTF-8: {error.reason}.") from None


def set_id(process_set: ProcessSet) -> int:
    """The number of a registered process set. Raises ValueError for any other object."""
    number = process_set.process_set_id if isinstance(process_set, ProcessSet) else None
    if number is None:
        raise InvalidArgumentError(
            f"Process set provided does not exist, or has not been registered: {process_set!r}. Use "
            "global_process_set, or give the set to init(process_sets=[...])."
        )
    return number


def checked_root(kind: str, root_rank: int, process_set: ProcessSet) -> int:
    """The root's number within the set. Raises InvalidArgumentError for a rank outside of it."""
    set_id(process_set)
    ranks = process_set.ranks if process_set.process_set_id else range(_state.size())
    if root_rank not in ranks:
        raise InvalidArgumentError(
            f"{kind} received invalid root rank {root_rank} for provided process set, "
            f"which has the ranks {list(ranks)}."
        )
    return ranks.index(root_rank)


def check_number(name: str, value: Any) -> None:
    """InvalidArgumentError unless the core can take ``value`` as a number; ``name`` is the argument's."""
    try:
        math.fabs(value)  # converts as the core does: whatever has __float__ will do, but no text
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InvalidArgumentError(f"{name} must be a number; it is {value!r}.") from None


def check_scales(scales: tuple[Any, Any]) -> None:
    """InvalidArgumentError unless the factors before and after a reduction are numbers."""
    for name, value in zip(("prescale_factor", "postscale_factor"), scales, strict=True):
        check_number(name, value)


def check_priority(priority: Any) -> None:
    """InvalidArgumentError unless the core can take it."""
    if not isinstance(priority, Integral) or not -(1 << 31) <= int(priority) < 1 << 31:
        raise InvalidArgumentError(f"priority must be a whole number of 32 bits; it is {priority!r}.")


def check_numbers(scales: tuple[Any, Any], priority: Any) -> None:
    """InvalidArgumentError unless the core can take them: for when it could not take something."""
    check_scales(scales)
    check_priority(priority)


def check_list(tensors: Any, kind: str) -> None:
    """InvalidArgumentError unless it is a list or tuple that is not empty; ``kind`` names the operation."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise InvalidArgumentError(f"{kind} needs a list with at least one tensor, not {tensors!r}.")


def barrier(process_set: ProcessSet = global_process_set, *, backend: str | None = None) -> None:
    """Return when every rank of the set has called it, or has joined. Raises as :func:`synchronize`.

    Args:
        process_set: the ranks that take part.
        backend: what runs it, such as ``"shm"``; all ranks must name the same. None leaves it to the selector.
    """
    number = set_id(process_set)
    name = check_backend(backend)
    runtime = _state.current().runtime
    runtime.wait(runtime.submit(OP_BARRIER, (), None, process_set=number, backend=name, wait_follows=True))


def join(device: int = -1, process_set: ProcessSet = global_process_set, divide_by: str = "all") -> int:
    """Say that this rank has no more data for a process set, and wait until every rank of the set has said so.

    Meanwhile it takes part in the others' operations on the set without data of its own: reductions leave it out,
    gathers and alltoall take no rows from it, rows for it are dropped, and a barrier counts it as arrived. Operations
    with a root need one that has data: else they raise UnsupportedError on all ranks that called them, and the job goes
    on. What this rank submitted before is completed with its data. Other threads of this rank may use other process
    sets meanwhile, but not this one.

    Args:
        device: accepted because Horovod has it, which makes zeros on that device; no zeros are made here.
        process_set: the ranks that are to join.
        divide_by: what Average divides by from the moment the first rank joins: the number of ``"all"`` ranks of the
            set, as in Horovod, or that of the ``"active"`` ones, which have not joined. The same on all ranks.

    Returns:
        The global rank that joined last, the same on all ranks.

    Raises:
        InvalidArgumentError: this rank is not in the set, or ``divide_by`` is neither. MismatchError: ranks differ in
            ``divide_by``; names two of them, on all ranks, once all have joined; until then the first one's value held.
            The job goes on. Others as :func:`synchronize`.
    """
    if not isinstance(device, Integral):
        raise InvalidArgumentError(f"join takes the number of a device, not {device!r}; did you mean process_set=?")
    if divide_by not in ("all", "active"):
        raise InvalidArgumentError(f"divide_by={divide_by!r}; it is 'all' (ranks) or 'active' (those with data).")
    number = set_id(process_set)
    runtime = _state.current().runtime
    answer = runtime.wait(runtime.submit(OP_JOIN, (), None, process_set=number, wait_follows=True, divide_by=divide_by))
    assert isinstance(answer, int)
    return answer


def _finish(finish: Finisher, answer: Any) -> Any:
    return finish(answer)


class Submitter(Generic[T]):
    """How every collective starts: checked tensors in, a handle out.

    Role: base of the classes with the operations; stateless but for the adapter, shared by all threads.
    """

    def __init__(self, adapter: TensorAdapter[T]) -> None:
        self.adapter = adapter
        self._as_is = adapter.as_is
        self._plain_type = adapter.plain_type
        self._written = adapter.written
        self._all_written = adapter.all_written
        finishes_many[self._written] = self._all_written

    def start(
        self,
        finish: Finisher,
        op: int,
        inputs: Sequence[T],
        outputs: Sequence[T | None] | None,
        name: Name,
        process_set: ProcessSet,
        reduce_op: int = Sum,
        scales: tuple[float, float] = (1.0, 1.0),
        root: int = -1,
        splits: Sequence[int] | None = None,
        layers: str = "",
        group: bool = False,
        wait_follows: bool = False,
        backend: str | None = None,
        send_starts: Sequence[int] | None = None,
        receive_rows: Sequence[int] | None = None,
        receive_starts: Sequence[int] | None = None,
        priority: int = 0,
    ) -> int:
        """Submit to the core and keep the finisher for :func:`synchronize`."""
        session = _state.current()
        number = set_id(process_set)
        prescale, postscale = scales
        taken = None
        if name is None and counts_by_itself():
            taken = session.thread_names.take(op, number, session.pending)
            name = full_name(OP_NAMES[op], taken.name)
        try:
            # By position: keywords would double the cost of the call, and a star adds a fifth.
            handle = session.runtime.submit(
                op,
                inputs,
                outputs,
                name,
                None,
                reduce_op,
                prescale,
                postscale,
                root,
                splits,
                number,
                "" if backend is None else check_backend(backend),
                layers,
                group,
                wait_follows,
                send_starts,
                receive_rows,
                receive_starts,
                priority,
            )
        except (TypeError, OverflowError):  # only then: every call would pay for a look beforehand
            check_numbers(scales, priority)
            raise
        session.pending[handle] = (_finish, finish)
        if taken is not None:
            taken.handles[taken.place] = handle
        return handle

    def as_they_are(self, tensors: Sequence[Any], in_place: bool) -> bool:
        """Whether the core can work on the very tensors of the call: the way of nearly every call."""
        as_is = self._as_is
        if type(tensors) is not list or not tensors:
            return False
        for tensor in tensors:  # noqa: SIM110  (a generator would cost as much as the test)
            if not as_is(tensor, in_place):
                return False
        return True

    def checked(self, tensors: Sequence[Any], kind: str, in_place: bool = False) -> list[T]:
        """The tensors of a call, each accepted by the adapter."""
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

    def dense(self, sources: list[T], encoded: list[T]) -> tuple[list[T], list[bool]]:
        """Contiguous tensors to send, and which of them are no memory of the user's."""
        buffers, private = [], []
        for source, tensor in zip(sources, encoded, strict=True):
            buffer, copied = self.adapter.dense(tensor)
            buffers.append(buffer)
            private.append(copied or tensor is not source)
        return buffers, private

    def tensors(self, answer: Any) -> list[T]:
        """The framework's tensors for what the core allocated."""
        return [self.adapter.from_result(result) for result in answer]

    def rows_to_send(self, source: T, rows: Sequence[int] | None, starts: Sequence[int] | None) -> T:
        """Contiguous memory with the rows of ``source`` that are read, or all of it.

        Parts one after the other may leave the end of the tensor away. Numbers that fit neither way go on to the core,
        which refuses them on all ranks.
        """
        source = self.adapter.as_rows(source)
        if rows is not None and starts is None and min(rows) >= 0 and sum(rows) <= self.adapter.shape(source)[0]:
            source = self.adapter.first_rows(source, sum(rows))
        return self.adapter.dense(source)[0]
