"""The C++ core, bound with pybind11. Private: use :mod:`horocache` or a framework binding."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

__version__: str

@final
class Result:
    """One tensor that the core allocated (allgather, alltoall, ...). Exports DLPack and buffers, zero-copy."""

    shape: tuple[int, ...]
    dtype: str
    rows: list[int]  # rows received from each rank; empty where the operation has none
    divisor_ranks: int  # what an average of the ranks' parts divides by
    def part(self, first: int, shape: Sequence[int]) -> Result: ...  # of the memory of Runtime.empty(), in elements
    def __dlpack__(self, *, stream: Any = None, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class GradientBucket:
    """The gradients that are submitted together; see gradients.h."""

    missing: int
    first_ready_ns: int
    group: bool
    submitted: bool
    direct: bool  # all its gradients went as they are, the last time
    priority: int
    slots: list[Any]
    handle: int | None

class GradientQueue:
    """Gradients that travel alone, between their completion and their submission."""

    slots: list[Any]
    bytes: int
    limit: int
    unplaced: list[Any]  # complete, and not in their places yet
    placed: int  # bytes that were copied into places and not counted yet
    pass_: int
    plain: bool
    note: Callable[[int], None] | None
    send: Callable[[], None]
    begin_pass: Callable[[], None]
    complete: Callable[[Any], None]
    adopt: Callable[[Any], None]
    pass_under_way: Callable[[], int]
    users: Callable[[int], int] | None
    references: int

class GradientSlot:
    """One parameter's gradient, and the hook that autograd calls when it is complete."""

    delay: int
    bytes: int
    index: int
    placed: bool
    irregular: bool
    param: Any
    name: str
    bucket: Any
    queue: GradientQueue
    view: Any
    place: int  # address of the view, as it was made
    compact: Any
    storage: int | None
    users: int
    grad: Any
    version: int
    address: int  # of its elements then; 0: not known

def gather_gradients(bucket: GradientBucket, /) -> list[Any] | None: ...
def rearm_gradients(buckets: Sequence[GradientBucket], passes: int, /) -> None: ...
def grad_references(param: Any, /) -> int: ...
def grad_is_alone(slot: GradientSlot, /) -> bool: ...  # nobody but the parameter has it, or its memory
def is_at_place(slot: GradientSlot, /) -> bool: ...  # whether the view has the memory that was made for it
def place_is_free(slot: GradientSlot, /) -> bool: ...

@final
class Runtime:
    """One rank's daemon: starts its threads in the constructor, joins them in stop().

    ``arguments`` maps knob names to text, over the environment. Raises :class:`horocache.errors.StartupError`,
    ``VersionSkewError`` or ``InvalidArgumentError``.
    """

    def __init__(
        self,
        arguments: Mapping[str, str] = ...,
        epoch: int = 0,
        process_sets: Sequence[Sequence[int]] = ...,  # besides the global one; ranks ascending
        communicator: int = 0,  # an MPI_Comm as a number, whose ranks are the job's; 0: none
        ranks: Sequence[int] = ...,  # the job is these ranks of what it would be otherwise; empty: all
        programs: bytes = ...,  # as horocache.lang.formats.core_words makes them
    ) -> None: ...
    def stop(self) -> None: ...
    def stop_with_process(self) -> bool: ...
    def tell_record(self) -> None: ...
    def forked_child(
        self,
    ) -> None: ...  # in a child of fork(): closes descriptors; every later call raises ForkedProcessError
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...
    @property
    def mpi(self) -> int: ...  # 0 without MPI, 1 if one thread at a time may call it, 2 if any may
    @property
    def alive(self) -> bool: ...
    def submit(
        self,
        op: int,  # wire::Op
        inputs: Sequence[Any],  # tensors (DLPack exchange table, buffer protocol, or __dlpack__); kept alive until done
        outputs: Sequence[Any]
        | None,  # same length, contiguous, writable, may be the inputs, None for a tensor of which
        # this rank gets no result; None: the core allocates
        name: str | bytes | None = None,  # of the tensor or the group; None takes the lowest free automatic name
        names: Sequence[str] | None = None,  # of a group's members; None derives them from `name`
        reduce_op: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = -1,
        splits: Sequence[int] | None = None,  # rows for each rank: alltoall, scatter at the root, reducescatter
        process_set: int = 0,
        backend: str = "",
        layers: str = "",
        group: bool = False,  # the tensors are one group even if there is only one
        wait_follows: bool = False,  # the caller calls wait() next: a blocking call wakes nobody for its submission
        send_starts: Sequence[int] | None = None,  # where the parts begin: alltoall, scatter at the root
        receive_rows: Sequence[int] | None = None,  # expected from each rank: allgather, alltoall, gather at the root
        receive_starts: Sequence[int] | None = None,  # where they begin in the result: there, too
        priority: int = 0,  # of what is agreed on in one round, higher runs earlier; equal on all ranks
        divide_by: str = "all",  # join: "all" or "active"
        tag: int = 0,  # send, recv: `root` is the other rank, of the job; a recv's output is its input
        first_ready_ns: int = 0,  # of a group, for the timeline: time.monotonic_ns() when its first tensor was there
    ) -> int: ...
    def next_set(self) -> int: ...  # the lowest number that a new set can have here
    def propose_set(self, number: int, ranks: Sequence[int]) -> int: ...  # a handle to wait for
    def declare_set(self, number: int, ranks: Sequence[int]) -> None: ...  # instead, by the members alone
    def meet_set(self, number: int) -> None: ...  # after that, on all ranks
    def enter_set(self, number: int) -> None: ...  # when that has succeeded on all
    def propose_removal(self, number: int) -> int: ...  # a handle to wait for
    def leave_set(self, number: int) -> None: ...  # after that, on all ranks
    def drop_set(self, number: int) -> None: ...  # undoes the first three; on all ranks, or none
    def start_timeline(self, path: str, mark_rounds: bool) -> None: ...  # rank 0 writes path, the others next to it
    def stop_timeline(self) -> None: ...
    # after faulthandler.register
    def watch_stacks(self, signal: int, file: int, ask: int, answer: int, own_folder: str) -> None: ...
    def allreduce_in_place(
        self,
        tensor: Any,
        name: str | bytes | None,  # without the operation's name before it, which submit() needs
        reduce_op: int,
        prescale: float,
        postscale: float,
        wait_follows: bool,
        process_set: int,
        backend: str | None,
        priority: int,
        /,
    ) -> int | None: ...  # None: not contiguous, not writable, of no known type or name: what submit() has an error for
    def allreduce_each_in_place(
        self,
        tensors: Sequence[Any],
        names: Sequence[str | bytes] | None,
        plain_type: type | None,
        handles: list[int],  # of the first tensors; those of the others are appended
        reduce_op: int,
        prescale: float,
        postscale: float,
        wait_follows: bool,
        process_set: int,
        backend: str | None,
        priority: int,
        /,
    ) -> bool: ...  # False: the next one is not of the type, or what allreduce_in_place() returns None for
    def allreduce_group_in_place(
        self,
        tensors: Sequence[Any],
        name: str | bytes | None,  # as submit() needs it, and so are the names
        names: Sequence[str | bytes] | None,
        plain_type: type | None,
        reduce_op: int,
        prescale: float,
        postscale: float,
        wait_follows: bool,
        process_set: int,
        backend: str | None,
        priority: int,
        /,
    ) -> int | None: ...  # None: no list or tuple, or one of the tensors is not of the type, ...
    def submit_gradients(
        self, slots: list[Any], reduce_op: int, prescale: float, postscale: float, process_set: int
    ) -> list[Any]: ...  # those that it could not submit, in place and each under its own name
    def submit_gradient_group(
        self,
        bucket: GradientBucket,
        tensors: list[Any],
        name: str,
        names: Sequence[str] | None,
        type: type,
        plain: bool,  # they are what gather_gradients() found
        reduce_op: int,
        prescale: float,
        postscale: float,
        process_set: int,
    ) -> int | None: ...  # as allreduce_group_in_place()
    def finish_gradients(self, buckets: list[Any]) -> list[Any]: ...  # waits; those that need a closer look
    def empty(self, shape: Sequence[int], dtype: str) -> Result: ...  # in memory that the ranks of the host share
    def is_shared(self, tensor: Any) -> bool: ...  # whether its memory is that of empty()
    def poll(self, handle: int) -> bool: ...  # ValueError for a handle that is unknown or was consumed
    def wait(self, handle: int, timeout_s: float = -1.0, /) -> list[Result] | int | None:
        """Wait for ``handle`` and consume it. Releases the GIL; signal handlers run at least every 100 ms.

        Returns None if outputs were given, a list of Result if the core allocated, the last rank for join.
        ``timeout_s`` < 0: the stall knobs alone limit the wait; a TimeoutError on time-out leaves the handle as it was.
        """
    def wait_each(
        self, handles: tuple[int, ...], pending: dict[int, Any], finish: Any, done: list[Any], timeout_s: float, /
    ) -> None:
        """Wait for many and consume them, up to the first that fails, is unknown or is to be finished otherwise.

        ``pending`` has a tuple of each, which begins with ``finish``. Those that ended well are taken out of it, and
        what follows in their tuples is appended to ``done``.
        """
    def knobs(self) -> dict[str, tuple[str, str]]: ...  # name -> (value, source)
    def metrics(self) -> dict[str, Any]: ...
    def count_step(self) -> None: ...  # of an optimizer, for the metrics
    def count_placed(self, size: int) -> None: ...  # bytes of gradients that were copied into shared memory
    def c_api(self) -> tuple[int, int]: ...  # addresses of a hc_api of hc.h and of this as its hc_runtime
    def abort(self, why: str) -> None: ...  # all ranks' pending operations fail with AbortedError

def knob_table() -> list[dict[str, str]]: ...  # name type default minimum maximum alias scope doc
def parse_knobs(
    arguments: Mapping[str, str] = ...,
) -> dict[str, tuple[str, str]]: ...  # as Runtime would; raises InvalidArgumentError
def identity() -> dict[
    str, int | str
]: ...  # rank size local_rank local_size cross_rank cross_size job source, from the environment
def launcher_variables(environment: Mapping[str, str]) -> str: ...  # of other launchers, as lines
def cpu_kernels() -> str: ...  # the reduction kernels that "auto" chooses: scalar, avx2 or avx512
def keep_freed_memory() -> bool: ...  # whether malloc keeps it from now on; see KeepFreedMemory of base/memory.h
def start_in_process(
    size: int,
    arguments: Mapping[str, str] = ...,
    process_sets: Sequence[Sequence[int]] = ...,
    programs: bytes = ...,
) -> list[Runtime]: ...  # ranks as threads of one process, for tests
def run_program(
    packed: bytes,
    inputs: Sequence[Any],  # writable arrays, by rank
    outputs: Sequence[Any],
    dtype: str,
    elements: int,
    reduce_op: int = 1,
    protocol: int = 0,
    slots: int = 0,
    message_bytes: int = 0,
    repetitions: int = 1,
    seed: int = 0,
    patience_s: float = 10.0,
    ports: Sequence[tuple[float, float, float]] = ...,  # latency in ns, ns per byte, gap in ns
    port_of: Sequence[int] = ...,  # by sender * ranks + receiver
) -> list[int]: ...  # a program with all its ranks in this process, ns; see program/local_run.h
def simulate(scenario: Mapping[str, Any]) -> dict[str, Any]: ...  # "violation": empty if all holds
def bench_control(
    strategy: str, ranks: int, tensors: int, cache: bool, steps: int = 5, radix: int = 4, ranks_per_host: int = 8
) -> dict[str, float]: ...  # cost of agreement per step, all ranks in one thread
