"""What the Python packages need of a core: the pybind11 module and the cffi route over ``hc.h`` both have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from horocache._core import Result


class Runtime(Protocol):
    """What the API needs of a core: :class:`horocache._core.Runtime`, or the same over the C ABI."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    alive: bool
    mpi: int  # 0 without MPI, 1 if one thread at a time may call it, 2 if any may

    def submit(
        self,
        op: int,
        inputs: Sequence[Any],
        outputs: Sequence[Any] | None,
        name: str | bytes | None = None,
        names: Sequence[str] | None = None,
        reduce_op: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = -1,
        splits: Sequence[int] | None = None,
        process_set: int = 0,
        backend: str = "",
        layers: str = "",
        group: bool = False,
        wait_follows: bool = False,
        send_starts: Sequence[int] | None = None,
        receive_rows: Sequence[int] | None = None,
        receive_starts: Sequence[int] | None = None,
        priority: int = 0,
        divide_by: str = "all",
        tag: int = 0,
        first_ready_ns: int = 0,
    ) -> int:
        """Hand an operation over; returns its handle."""

    def allreduce_in_place(
        self,
        tensor: Any,
        name: str | bytes | None,
        reduce_op: int,
        prescale: float,
        postscale: float,
        wait_follows: bool,
        process_set: int,
        backend: str | None,
        priority: int,
        /,
    ) -> int | None:
        """``submit`` of one tensor that is its own output, faster; None if it has to go that way after all."""

    def allreduce_each_in_place(
        self, tensors: Sequence[Any], names: Any, plain_type: type | None, handles: list[int], /, *call: Any
    ) -> bool:
        """``allreduce_in_place`` of a list; False at the first tensor that has to go the general way."""

    def allreduce_group_in_place(
        self,
        tensors: Sequence[Any],
        name: str | bytes | None,
        names: Sequence[str | bytes] | None,
        plain_type: type | None,
        /,
        *call: Any,
    ) -> int | None:
        """``submit`` of a group whose tensors are their own outputs, faster; None if it has to go that way."""

    def submit_gradients(
        self, slots: list[Any], reduce_op: int, prescale: float, postscale: float, process_set: int, /
    ) -> list[Any]:
        """``allreduce_in_place`` of many gradients in one call; those that have to go the general way."""

    def submit_gradient_group(
        self, bucket: Any, tensors: list[Any], name: str, names: Sequence[str] | None, type_: type, /, *call: Any
    ) -> int | None:
        """``allreduce_group_in_place`` of a bucket's gradients; None if it has to go the general way."""

    def finish_gradients(self, buckets: list[Any], /) -> list[Any]:
        """``wait`` for many groups of gradients in one call; those that have to go the general way."""

    def empty(self, shape: Sequence[int], dtype: str, /) -> Result:
        """A tensor in memory that the ranks of this host share."""

    def is_shared(self, tensor: Any, /) -> bool:
        """Whether a tensor lies in such memory."""

    def poll(self, handle: int) -> bool:
        """Whether the operation is finished."""

    def wait(self, handle: int, timeout_s: float = -1.0, /) -> list[Result] | int | None:
        """Wait for the operation and consume its handle."""

    def wait_each(
        self, handles: tuple[int, ...], pending: dict[int, Any], finish: Any, done: list[Any], timeout_s: float, /
    ) -> None:
        """The same for many, up to the first that has to go the general way; see _core.pyi."""

    def stop(self) -> None:
        """End the runtime and join its threads."""

    def tell_record(self) -> None:
        """Warn once where the flight record is, if an operation has failed."""

    def stop_with_process(self) -> bool:
        """The same for a process that is about to end: the others hear of it, and of the code, when it calls exit().

        Returns:
            Whether that is so: then what is pending goes on meanwhile, and its tensors are never freed. False: the
            runtime has been stopped at once.
        """

    def knobs(self) -> dict[str, tuple[str, str]]:
        """Value and source of every knob."""

    def metrics(self) -> dict[str, Any]:
        """Counters."""

    def count_step(self) -> None:
        """Count a step of an optimizer, for the metrics."""

    def count_placed(self, size: int, /) -> None:
        """Count bytes of gradients that were copied into shared memory, for the metrics."""

    def next_set(self) -> int:
        """The lowest number that a new process set can have here."""

    def propose_set(self, number: int, ranks: Sequence[int], /) -> int:
        """Begin adding a process set; the handle of the operation in which all ranks agree."""

    def declare_set(self, number: int, ranks: Sequence[int], /) -> None:
        """Begin adding a process set that its members make among themselves."""

    def meet_set(self, number: int, /) -> None:
        """Meet the members on this host."""

    def enter_set(self, number: int, /) -> None:
        """Take the set in; when all ranks have met."""

    def propose_removal(self, number: int, /) -> int:
        """Begin removing a process set; the handle of the operation in which all ranks agree."""

    def leave_set(self, number: int, /) -> None:
        """Leave it with the other members."""

    def drop_set(self, number: int, /) -> None:
        """Undo an addition."""

    def start_timeline(self, path: str, mark_rounds: bool, /) -> None:
        """Begin to write a file of what this rank does."""

    def stop_timeline(self) -> None:
        """Finish the file."""

    def watch_stacks(self, signal: int, file: int, ask: int, answer: int, own_folder: str, /) -> None:
        """Show in reports what is written to ``file``: see hc_stacks of ``hc.h``."""

    def c_api(self) -> tuple[int, int]:
        """Addresses of a ``hc_api`` of ``hc.h`` and of this as its ``hc_runtime``."""

    def abort(self, why: str) -> None:
        """Fail all ranks' pending operations."""

    def forked_child(self) -> None:
        """In a child of fork: close descriptors, join nothing."""
