"""The base class of backends that a program writes in Python, and what such a backend sees of an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from horocache._core import UserCall

Array = npt.NDArray[Any]

# The operations of backends, by horocache's names.
OPERATIONS = (
    *("allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "reduce", "gather", "scatter", "barrier"),
)
DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128", "bool", "uint16", "uint32", "uint64"),
)


class Group:
    """The ranks for which a backend object works.

    Attributes:
        process_set: number of the process set; 0 is that of all ranks.
        ranks: ranks of the job, in the order of their numbers within the group.
        rank: this process's number within the group.
        size: number of ranks.
        hosts: number of hosts of the job.
    """

    def __init__(
        self, process_set: int, ranks: Sequence[int], rank: int, hosts: int, exchange: Callable[[Any], list[Any]]
    ) -> None:
        self.process_set = process_set
        self.ranks = list(ranks)
        self.rank = rank
        self.size = len(self.ranks)
        self.hosts = hosts
        self._exchange = exchange

    def allgather_object(self, value: Any) -> list[Any]:
        """Return the objects that all ranks of the group give, by rank; by another backend than this one.

        Only in ``__init__``, where all ranks of the group are at the same time: to tell each other addresses, for
        example.

        Raises:
            HorocacheError: a rank is lost, or does not come in time.
        """
        return self._exchange(value)


class Call:
    """One operation, as :meth:`Backend.start` gets it.

    Arrays have one dimension. Elements of bfloat16, which NumPy lacks, come as uint16; ``dtype`` tells.

    Attributes:
        op: the operation, one of ``OPERATIONS``.
        reduce_op: of reductions: ``"sum"``, ``"min"``, ``"max"``, ``"product"``, ``"and"``, ``"or"`` or ``"xor"``.
        dtype: name of the element type.
        root: of broadcast, reduce, gather and scatter: a rank within the group; else -1.
        input: this rank's elements. In allreduce, broadcast and reduce, ``input`` and ``output`` are one array, which
            has this rank's elements and gets the result (of broadcast and reduce, those of the root matter). Otherwise
            ``input`` must not be changed.
        output: gets the result. Empty where this rank has none.
        sends: of operations on rows, by rank: ``(first, count)``, the elements of ``input`` for that rank. In allgather
            and gather each is the whole input. Empty: this rank sends nothing.
        receives: of operations on rows except reducescatter, by rank: ``(first, count)``, the elements of ``output``
            that come from that rank. Empty: this rank receives nothing.
    """

    def __init__(self, call: UserCall, is_cancelled: Callable[[], bool]) -> None:
        self._call = call
        self._is_cancelled = is_cancelled
        self.op = call.op
        self.reduce_op = call.reduce_op
        self.dtype = call.dtype
        self.root = call.root
        self.sends = call.sends
        self.receives = call.receives
        stored = np.dtype(np.uint16 if call.dtype == "bfloat16" else call.dtype)
        self.output: Array = np.frombuffer(call.output, stored)
        shares = call.op in ("allreduce", "broadcast", "reduce")
        self.input: Array = self.output if shares else np.frombuffer(call.input, stored)

    @property
    def cancelled(self) -> bool:
        """True once the operation is given up, because the job ends; the backend should stop and return."""
        return self._is_cancelled()


class Backend:
    """Base of backends that a program writes.

    horocache makes one object for each process set, on a thread of its own, when the set's first operation comes to the
    backend; all ranks of the set do so at the same time. On that thread it then runs one operation after the other, in
    an order that is the same on all ranks: ``work = start(call)``, then ``test(work)`` until that is true.

    An exception in one of these methods ends the job on all ranks, because the backend's code on the other ranks may
    wait for this rank for ever. A method that does not return is reported as a stalled operation, and fails after
    ``HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS``; until then it should look at ``call.cancelled``.

    Attributes:
        operations: the operations that the backend runs, of ``OPERATIONS``. Another one is UnsupportedError of the
            call, on all ranks, before anything is sent.
        dtypes: the element types that it moves, of ``DTYPES``; None: all.
        reduced_dtypes: the element types of allreduce, reduce and reducescatter; None: all.
    """

    operations: ClassVar[Sequence[str]] = OPERATIONS
    dtypes: ClassVar[Sequence[str] | None] = None
    reduced_dtypes: ClassVar[Sequence[str] | None] = None

    def __init__(self, group: Group) -> None:
        self.group = group

    @classmethod
    def missing(cls) -> str | None:
        """Return why the backend cannot run in this process, such as ``"torch is not installed"``; None: it can.

        ``init`` asks this, on every rank; a job does without a backend that is missing on all ranks, and does not start
        if only some ranks have it.
        """
        return None

    def start(self, call: Call) -> Any:
        """Begin an operation; returns an object for :meth:`test`."""
        raise NotImplementedError(f"{type(self).__name__} defines no start().")

    def test(self, work: Any) -> bool:
        """Return True once the operation that :meth:`start` began has ended and ``call.output`` has the result.

        Called again and again, with pauses of up to 1 ms while it returns False. It may also wait by itself.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no test().")

    def close(self) -> None:
        """Release what the object holds; called on its thread when the process set has ended."""
