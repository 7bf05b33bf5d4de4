"""The interface of the core to the Python packages, implemented by the pybind11 module and the cffi binding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from horocache._core import Result, UserCalls
    from horocache.base.request import Request


class Runtime(Protocol):
    """One rank's daemon as the API uses it: :class:`horocache._core.Runtime`, or the same over the C ABI.

    The in-place and gradient methods are a fast path for the usual case. For the rest the caller takes the general
    path, ``submit`` and ``wait``, which makes a copy or raises the error.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool  # every host has the same number of ranks
    alive: bool
    lost_a_rank: bool
    mpi: int  # 0 without MPI, 1 if one thread at a time may call MPI, 2 if any thread may
    nccl: int  # the version of NCCL that CUDA tensors can use, for example 22809; 0: none

    def submit(self, request: Request) -> int:
        """Submit an operation and return its handle."""

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
        full_name: bool = False,
        /,
    ) -> int | None:
        """Fast ``submit`` of one tensor that is its own output; None if it needs the general path.

        ``full_name``: the name is what the ranks compare; otherwise it gets the prefix "allreduce.".
        """

    def allreduce_each_in_place(
        self, tensors: Sequence[Any], names: Any, plain_type: type | None, handles: list[int], /, *call: Any
    ) -> bool:
        """``allreduce_in_place`` of a list of tensors; False at the first tensor that needs the general path."""

    def allreduce_group_in_place(
        self,
        tensors: Sequence[Any],
        name: str | bytes | None,
        names: Sequence[str | bytes] | None,
        plain_type: type | None,
        /,
        *call: Any,
    ) -> int | None:
        """Fast ``submit`` of a group whose tensors are their own outputs; None if it needs the general path."""

    def submit_gradients(
        self, slots: list[Any], reduce_op: int, prescale: float, postscale: float, process_set: int, /
    ) -> list[Any]:
        """``allreduce_in_place`` of many gradients in one call; returns those that need the general path."""

    def submit_gradient_group(
        self, bucket: Any, tensors: list[Any], name: str, names: Sequence[str] | None, type_: type, /, *call: Any
    ) -> int | None:
        """``allreduce_group_in_place`` of a bucket's gradients; None if it needs the general path."""

    def finish_gradients(self, buckets: list[Any], /) -> list[Any]:
        """``wait`` for many buckets of gradients in one call; returns those that need the general path."""

    def empty(self, shape: Sequence[int], dtype: str, /) -> Result:
        """Return a new tensor in memory that the ranks of this host share."""

    def is_shared(self, tensor: Any, /) -> bool:
        """True if the tensor lies in shared memory of :meth:`empty`."""

    def poll(self, handle: int) -> bool:
        """True if ``wait`` would return at once."""

    def wait(self, handle: int, timeout_s: float = -1.0, block: bool = False, /) -> list[Result] | int | None:
        """Wait for the operation, with ``block`` also for the device that runs it, and consume its handle."""

    def await_copies(self, results: list[Result], timeout_s: float) -> None:
        """Wait until the copies of results on a device have been made."""

    def wait_each(
        self, handles: tuple[int, ...], pending: dict[int, Any], finish: Any, done: list[Any], timeout_s: float, /
    ) -> None:
        """``wait`` for many operations, up to the first that needs the general path; see _core.pyi."""

    def stop(self) -> None:
        """Leave the job and join all threads."""

    def log_record_path(self) -> None:
        """If an operation has failed, warn once where the flight record is."""

    def stop_with_process(self) -> bool:
        """Leave the job with the process, which is about to end.

        Returns:
            True if the rank leaves when the process calls exit(): the other ranks then learn the exit code, too. Until
            then pending operations go on, and their tensors are never freed. False if the runtime has been stopped at
            once.
        """

    def knobs(self) -> dict[str, tuple[str, str]]:
        """Return the value and the source of every knob, by name."""

    def metrics(self) -> dict[str, Any]:
        """Return this rank's counters by name."""

    def count_step(self) -> None:
        """Count an optimizer step, for the metrics."""

    def count_bytes_into_views(self, size: int, /) -> None:
        """Count bytes of gradients that were copied into shared memory, for the metrics."""

    def next_set(self) -> int:
        """Return the lowest number that a new process set can have on this rank."""

    def propose_set(self, number: int, ranks: Sequence[int], /) -> int:
        """Begin to add a process set; returns the handle of the operation in which all ranks agree."""

    def declare_set(self, number: int, ranks: Sequence[int], /) -> None:
        """Begin to add a process set that its members make among themselves."""

    def connect_set(self, number: int, /) -> None:
        """Connect the set's members on this host."""

    def open_set(self, number: int, /) -> None:
        """Connect the set's hosts and open the set; requires that :meth:`connect_set` has succeeded on all ranks."""

    def propose_removal(self, number: int, /) -> int:
        """Begin to remove a process set; returns the handle of the operation in which all ranks agree."""

    def leave_set(self, number: int, /) -> None:
        """Remove the set, together with its other members."""

    def drop_set(self, number: int, /) -> None:
        """Undo the addition of a set."""

    def start_timeline(self, path: str, mark_rounds: bool, /) -> None:
        """Start the timeline, a file of this rank's operations."""

    def stop_timeline(self) -> None:
        """End the timeline and its file."""

    def watch_stacks(self, signal: int, file: int, ask: int, answer: int, own_folder: str, /) -> None:
        """Show the stacks that are written to ``file`` in stall reports and dumps; see hc_stacks in ``hc.h``."""

    def c_api(self) -> tuple[int, int]:
        """Return the addresses of the ``hc_api`` of ``hc.h`` and of this rank's ``hc_runtime``."""

    def backends(self, process_set: int) -> list[tuple[str, list[str], list[str]]]:
        """Return the backends of a process set: name, algorithms with the default first, operations."""

    def configure(self, settings: str) -> None:
        """On rank 0: change settings on all ranks in one round; see hc_configure in ``hc.h``."""

    settings_changes: int  # how often this rank has changed its settings

    def settings(self) -> tuple[int, str]:
        """Return how often this rank has changed its settings, and the last note."""

    def take_user_calls(self, timeout_s: float) -> tuple[int, str, UserCalls] | None:
        """Return the set, the backend and the calls of a new process set with a backend of the program."""

    def log_operations(self, capacity: int) -> None:
        """Begin to list completed operations, at most ``capacity``; 0 ends the list."""

    def take_log(self) -> tuple[list[tuple[Any, ...]], int]:
        """Return the operations listed since the last call, as hc_record's members, and how many were lost."""

    def abort(self, why: str) -> None:
        """Abort the job: the pending operations of all ranks fail."""

    def forked_child(self) -> None:
        """In a child of fork(): close descriptors, without joining threads."""
