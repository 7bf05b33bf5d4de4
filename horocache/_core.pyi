"""The C++ core, bound with pybind11. Private: use :mod:`horocache` or a framework binding."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, final

from horocache.base.request import Request

T = TypeVar("T")

__version__: str

# The names of the fields of a Request, in the order in which Runtime.submit reads them.
def request_fields() -> list[str]: ...

@final
class Result:
    """A tensor that the core allocated.

    In memory of the host, it is exported by DLPack and the buffer protocol, without a copy.
    """

    shape: tuple[int, ...]
    dtype: str
    rows: list[int]  # rows received from each rank; empty if the operation has no rows
    divisor_ranks: int  # divisor of an average over the ranks' parts
    # The CUDA device of the operation's tensors, to which the adapter copies the result; -1: they are on the CPU.
    cuda_device: int
    on_device: bool  # True if it is in the device's memory: copy_to is then the way to its elements
    # Queues a copy on the current stream of the target's framework, behind the operation. The target is on cuda_device.
    def copy_to(self, target: Any) -> None: ...
    def __dlpack__(self, *, stream: Any = None, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class GradientBucket:
    """Gradients that are submitted together. See Note [Counting gradients down] in torch_gradients/gradients.h."""

    missing: int  # gradients that are not complete
    first_ready_ns: int  # when the first gradient of a group was complete; 0: none is complete
    group: bool
    submitted: bool
    direct: bool  # True if the last submission had all its gradients as they are
    priority: int
    slots: list[Any]
    handle: int | None  # of the operation in flight

class GradientQueue:
    """Gradients without a group, between their completion and their submission; and the functions that slots call."""

    slots: list[Any]  # the queued gradients
    bytes: int  # of the queued gradients
    limit: int  # bytes from which on the queue is submitted
    unmoved: list[Any]  # complete gradients of groups, not in their bucket views yet
    moved_bytes: int  # copied into bucket views, and not in the metrics yet
    pass_: int  # the backward pass at whose end the queue is submitted; -1: none
    plain: bool  # True if gradients are submitted as they are, not compressed
    note: Callable[[int], None] | None
    submit: Callable[[], None]
    begin_pass: Callable[[], None]
    complete: Callable[[Any], None]
    allocate_view: Callable[[Any], None]
    pass_under_way: Callable[[], int]
    users: Callable[[int], int] | None  # number of tensors on a storage; None: bucket views are not used
    references: int  # reference count of a gradient that only its parameter has

class GradientSlot:
    """One parameter's gradient, and the hook that autograd calls after each backward pass."""

    passes_left: int  # backward passes until the gradient is complete
    bytes: int
    index: int  # of the parameter
    wants_view: bool  # True if the gradient belongs in a bucket view
    moves_at_once: bool  # True: it moves there in its hook, not in a batch
    irregular: bool  # True if the gradient cannot be submitted as it is
    param: Any
    name: str
    bucket: Any
    queue: GradientQueue
    view: Any  # the bucket view: a tensor in shared memory, or None
    view_address: int  # the view's original address
    compact: Any  # the tensor to submit for the view
    storage: int | None  # address of the view's storage
    users: int  # use count of that storage while only the slot uses it
    grad: Any  # the gradient in flight, or None
    version: int  # version of `grad` when it was complete
    address: int  # address of its elements then; 0: unknown

# The tensors to submit for a complete bucket; None if a gradient cannot be submitted as it is.
def gather_gradients(bucket: GradientBucket, /) -> list[Any] | None: ...

# Prepares the buckets for the next step.
def rearm_gradients(buckets: Sequence[GradientBucket], passes: int, /) -> None: ...

# Reference count of a parameter's gradient, including the caller's reference.
def grad_references(param: Any, /) -> int: ...

# True if the slot has a bucket view with the memory that was allocated for it.
def view_is_intact(slot: GradientSlot, /) -> bool: ...

# True if, besides, only the slot uses it.
def view_is_free(slot: GradientSlot, /) -> bool: ...

# The place of a tensor in the array that NCCL gets for the small tensors of an operation. 0: in front; 1: behind these;
# 2: it is not in the array.
def flat_part(bytes: int, /) -> int: ...

# Gives the functions with which tensors of a type that has no DLPack exchange table are read: the first one returns the
# capsule of a tensor, and lets no stream wait; the second one the handle of the current stream of a CUDA device.
def read_with(type: type, to_capsule: Callable[[Any], Any], current_stream: Callable[[int], int]) -> None: ...

@final
class WindowBlock:
    """This rank's memory of a window that is not connected yet."""

    @property
    def offset(self) -> int: ...  # in this rank's region

class Window:
    """A connected window; see cpp_core/moe/window.h. One thread at a time uses it."""

    def name_tag(self, tag: int, name: str) -> None: ...  # names the calls with a tag, for errors
    # Begins a round. rows: of this rank's batches, by rank. epsilon: results of other ranks before the countdown of tau
    # seconds; limit: most seconds.
    def enter(
        self,
        rows: Sequence[int],
        tag: int,
        row_bytes: tuple[int, int],  # of batches, of results
        epsilon: int,
        tau: float,
        limit: float,
        wait_for_room: bool,
    ) -> None: ...
    # Ends the step before, and waits for the next one: "send", "serve", "take" or "leave"; peer; rows; batch; result.
    def next(self) -> tuple[str, int, int, memoryview, memoryview]: ...
    def fail(self, why: str) -> None: ...  # ends the round with an error on all ranks
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def round(self) -> int: ...  # the current or the last one
    def outcomes(self) -> list[int]: ...  # of this rank's batches, by rank; see horocache.moe.exchanges.Outcome
    def waited(self) -> list[float]: ...  # seconds, by rank
    def served(self) -> list[bool]: ...  # by rank
    # Calls of other windows that ranks have begun and this rank has not, such as "; rank 1 is in layer 'b' (forward)".
    def calls_elsewhere(self) -> str: ...
    def has_closed(self, rank: int) -> bool: ...

# process_set None: this rank alone.
def allocate_window(
    runtime: Runtime,
    process_set: int | None,
    hosts: Sequence[bool],
    depth: int,
    batch_bytes: int,
    result_bytes: int,
) -> WindowBlock: ...
def connect_window(runtime: Runtime, block: WindowBlock, offsets: Sequence[int]) -> Window: ...

class Runtime:
    """One rank's daemon. The constructor starts its threads, and stop() joins them.

    ``arguments`` maps knob names to text and overrides the environment. The constructor raises
    :class:`horocache.errors.StartupError`, ``VersionSkewError`` or ``InvalidArgumentError``.
    """

    def __init__(
        self,
        arguments: Mapping[str, str] = ...,
        epoch: int = 0,
        process_sets: Sequence[Sequence[int]] = ...,  # besides the global set; ranks ascending
        communicator: int = 0,  # an MPI_Comm, converted to a number, whose ranks form the job; 0: none
        ranks: Sequence[int] = ...,  # restricts the job to these of its ranks; empty: all ranks
        programs: bytes = ...,  # compiled programs, packed by horocache.lang.formats.core_words
        tuning: str = ...,  # rank 0: selector rules of a tuning table, for all ranks
        # Of the program: name, operations, the element types that it moves, and those that it reduces.
        backends: Sequence[tuple[str, list[str], list[str], list[str]]] = ...,
    ) -> None: ...
    def stop(self) -> None: ...
    def stop_with_process(self) -> bool: ...
    def log_record_path(self) -> None: ...
    # For a child of fork(): closes descriptors. Later calls raise ForkedProcessError, except the properties.
    def forked_child(self) -> None: ...
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
    def homogeneous(self) -> bool: ...
    @property
    def mpi(self) -> int: ...  # 0 without MPI, 1 if one thread at a time may call MPI, 2 if any thread may
    @property
    def nccl(self) -> int: ...  # the version of NCCL that CUDA tensors can use, for example 22809; 0: none
    @property
    def alive(self) -> bool: ...
    @property
    def lost_a_rank(self) -> bool: ...
    def submit(self, request: Request) -> int: ...  # queues the operation; returns its handle
    # Process sets that are added and removed while the job runs; see hc.h. All ranks of the job make these calls.
    def next_set(self) -> int: ...  # the lowest number that a new set can have on this rank
    def propose_set(self, number: int, ranks: Sequence[int]) -> int: ...  # handle of the operation that agrees
    def declare_set(self, number: int, ranks: Sequence[int]) -> None: ...  # instead of propose_set; only members call
    def connect_set(self, number: int) -> None: ...  # after the operation: connects the members on this host
    def open_set(self, number: int) -> None: ...  # after connect_set on all ranks: connects the hosts, opens the set
    def propose_removal(self, number: int) -> int: ...  # handle of the operation that agrees
    def leave_set(self, number: int) -> None: ...  # after the operation: removes the set
    def drop_set(self, number: int) -> None: ...  # undoes an addition that failed on a rank
    def start_timeline(self, path: str, mark_rounds: bool) -> None: ...  # rank 0 writes path, the others beside it
    def stop_timeline(self) -> None: ...
    @property
    def writes_timeline(self) -> bool: ...
    def trace_exchange(  # of a layer of experts; args is an object in JSON, times are of time.monotonic_ns()
        self, layer: str, name: str, args: str, begin_ns: int, end_ns: int
    ) -> None: ...
    # Requires that faulthandler.register() has installed a handler of `signal`; see hc_stacks in hc.h.
    def watch_stacks(self, signal: int, file: int, ask: int, answer: int, own_folder: str) -> None: ...
    def allreduce_in_place(
        self,
        tensor: Any,
        name: str | bytes | None,  # without the prefix "allreduce.", which submit() needs
        reduce_op: int,
        prescale: float,
        postscale: float,
        wait_follows: bool,
        process_set: int,
        backend: str | None,
        priority: int,
        full_name: bool = False,  # True: the name gets no prefix
        /,
    ) -> int | None: ...  # None: take the general path, submit(), which makes a copy or raises the error
    def allreduce_each_in_place(
        self,
        tensors: Sequence[Any],
        names: Sequence[str | bytes] | None,
        plain_type: type | None,
        handles: list[int],  # of the first tensors; the handles of the rest are appended
        reduce_op: int,
        prescale: float,
        postscale: float,
        wait_follows: bool,
        process_set: int,
        backend: str | None,
        priority: int,
        /,
    ) -> bool: ...  # False: the next tensor is not of exactly `plain_type`, or needs the general path
    def allreduce_group_in_place(
        self,
        tensors: Sequence[Any],
        name: str | bytes | None,  # as for submit(); so are `names`
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
    ) -> int | None: ...  # None: take the general path, for example if a tensor is not of exactly `plain_type`
    def submit_gradients(
        self, slots: list[Any], reduce_op: int, prescale: float, postscale: float, process_set: int
    ) -> list[Any]: ...  # submits each under its own name; returns those that need the general path
    def submit_gradient_group(
        self,
        bucket: GradientBucket,
        tensors: list[Any],
        name: str,
        names: Sequence[str] | None,
        type: type,
        plain: bool,  # True if `tensors` is the list that gather_gradients() returned
        reduce_op: int,
        prescale: float,
        postscale: float,
        process_set: int,
    ) -> int | None: ...  # None: take the general path
    def finish_gradients(self, buckets: list[Any]) -> list[Any]: ...  # waits; returns those that need the general path
    def empty(self, shape: Sequence[int], dtype: str) -> Result: ...  # in memory that the ranks of this host share
    def is_shared(self, tensor: Any) -> bool: ...  # True if its memory is shared memory of empty()
    def poll(self, handle: int) -> bool: ...  # True if done or launched; ValueError for an unknown or consumed handle
    def wait(self, handle: int, timeout_s: float = -1.0, block: bool = False, /) -> list[Result] | int | None:
        """Wait for ``handle`` and consume it. Releases the GIL; signal handlers run at least every 100 ms.

        Returns None if outputs were given, a list of Result if the core allocated them, for join the rank that joined
        last. For an operation that a device has been given, the caller's current stream waits instead of the thread,
        unless ``block``. Raises TimeoutError after ``timeout_s`` seconds; the handle then stays valid. If ``timeout_s``
        is negative, only the stall knobs limit the wait.
        """
    # Waits until the copies that Result.copy_to has queued have been made; raises TimeoutError as `wait` does.
    def await_copies(self, results: list[Result], timeout_s: float) -> None: ...
    def wait_each(
        self, handles: tuple[int, ...], pending: dict[int, Any], finish: Any, done: list[Any], timeout_s: float, /
    ) -> None:
        """Wait for each handle and consume it, up to the first that fails, is unknown or has another finisher.

        ``pending`` maps each handle to a tuple ``(finisher, argument)``; the wait stops at a finisher that is not
        ``finish``. Handles that succeed are removed from ``pending``, and their arguments are appended to ``done``.
        """
    def knobs(self) -> dict[str, tuple[str, str]]: ...  # name -> (value, source)
    def metrics(self) -> dict[str, Any]: ...
    def count_step(self) -> None: ...  # counts an optimizer step for the metrics
    def count_bytes_into_views(
        self, size: int
    ) -> None: ...  # counts bytes of gradients that were copied into shared memory
    # The backends of a process set: name, algorithms (the first is the default), operations.
    def backends(self, process_set: int) -> list[tuple[str, list[str], list[str]]]: ...
    # Settings of the set of all ranks, which rank 0 changes on all ranks in one round; see hc_configure in hc.h.
    def configure(self, settings: str) -> None: ...
    @property
    def settings_changes(self) -> int: ...  # how often this rank has changed its settings
    def settings(self) -> tuple[int, str]: ...  # the same, and the last note
    # The process set, the backend and the calls of a new process set, for which the program starts a thread.
    def take_user_calls(self, timeout_s: float) -> tuple[int, str, UserCalls] | None: ...
    # Completed operations, at most `capacity`; 0 ends the list.
    def log_operations(self, capacity: int) -> None: ...
    # Those since the last call, as the members of hc_record in hc.h, and how many were lost.
    def take_log(self) -> tuple[list[tuple[Any, ...]], int]: ...
    def c_api(self) -> tuple[int, int]: ...  # addresses of the hc_api of hc.h and of this rank's hc_runtime
    def abort(self, why: str) -> None: ...  # the pending operations of all ranks fail with AbortedError

class UserCall:
    """An operation that a backend of the program runs; memory and parts are in elements of ``dtype``."""

    @property
    def op(self) -> str: ...
    @property
    def reduce_op(self) -> str: ...  # never an average
    @property
    def dtype(self) -> str: ...
    @property
    def root(self) -> int: ...
    @property
    def input(self) -> memoryview: ...  # bytes
    @property
    def output(self) -> memoryview: ...  # bytes; of allreduce, broadcast and reduce the same memory as `input`
    @property
    def sends(self) -> list[tuple[int, int]]: ...  # of operations on rows, by rank: first element and count
    @property
    def receives(self) -> list[tuple[int, int]]: ...

class Engine:
    """The dependency engine; see ``cpp_core/dag/engine.h``. Variables and operations are numbers."""

    ALWAYS_RUNS: int  # flags of a PreparedOperation: also if something that the operation uses has a failure
    GOES_ON: int  # the function gets the operation's number and the exception that it inherits; it ends by complete()
    AT_ONCE: int  # runs within push() if it is ready then
    NAIVE: int  # the engine has no threads

    def __init__(self, threads: list[int], name: str) -> None: ...  # threads of each queue; none: the naive engine
    def add_variable(self, carries: bool) -> int: ...  # False: it only orders operations, and takes no failure
    def delete_variable(self, variable: int) -> None: ...
    def version(self, variable: int) -> int: ...
    def is_used(self, variable: int) -> bool: ...  # True if an operation uses it, or waits to
    def is_idle(self, variable: int) -> bool: ...  # True if nothing pushed uses it any more, and it has no failure
    def take_failure(self, variable: int) -> BaseException | None: ...
    def complete(self, operation: int, exception: BaseException | None) -> None: ...
    def follow(self, runtime: Runtime, handle: int, operation: int, consume: bool) -> None:
        """End an operation when that of the runtime's ``handle`` is done.

        ``consume``: the handle, which has no results, is consumed then; otherwise the engine's operation runs again, to
        consume it. Raises InvalidArgumentError if the handle's operation has an automatic name.
        """
    # False after the limit; below 0: none. `runtime` learns that a thread waits. They raise what they take.
    def wait(self, variables: list[int], timeout_s: float, runtime: Runtime | None) -> bool: ...
    def wait_all(self, timeout_s: float, runtime: Runtime | None) -> bool: ...
    def close(self, timeout_s: float) -> list[str]: ...  # names of the operations that still run
    def leak(self) -> None: ...  # it is never destroyed, for a child of fork
    def counters(self) -> dict[str, int]: ...
    def pending(self) -> list[tuple[str, str, float]]: ...  # name, state, seconds since its start; the oldest first

class PreparedOperation:
    """An operation of an engine, which can be pushed several times. ``flags`` are those of Engine."""

    def __init__(
        self,
        engine: Engine,
        function: Callable[..., object],
        reads: list[int],
        writes: list[int],
        priority: int,
        queue: int,
        flags: int,
        name: str,
    ) -> None: ...
    def push(self) -> None: ...

def drop_nothing_more() -> None: ...  # at the end of the interpreter
def forget_parents_engines() -> None: ...  # in the child of a fork
def with_failed_input(reason: str, function: Callable[[], T]) -> T:
    """Call a function; the operations that it submits fail on all ranks with InputFailedError, with this reason."""

class UserCalls:
    """A backend's operations in one process set; see Note [Backends of the program] in data/backends/user/calls.h."""

    def take(self, timeout_s: float) -> UserCall | None: ...  # None in time, and once closed
    def finish(self, error: str = "") -> None: ...  # ends the call that was taken; an error ends the job
    @property
    def closed(self) -> bool: ...

def knob_table() -> list[dict[str, str]]: ...  # name type default minimum maximum alias scope doc

# The knobs as a Runtime with these arguments has them: name -> (value, source). Raises InvalidArgumentError.
def parse_knobs(arguments: Mapping[str, str] = ...) -> dict[str, tuple[str, str]]: ...

# rank size local_rank local_size cross_rank cross_size job source, from the environment.
def identity() -> dict[str, int | str]: ...
def launcher_variables(environment: Mapping[str, str]) -> str: ...  # the variables of other launchers, as text
def cpu_kernels() -> str: ...  # the reduction kernels that "auto" chooses: scalar, avx2 or avx512
def keep_freed_memory() -> bool: ...  # makes malloc keep freed memory from now on; False: it cannot, see base/memory.h
def start_in_process(
    size: int,
    arguments: Mapping[str, str] = ...,
    process_sets: Sequence[Sequence[int]] = ...,
    programs: bytes = ...,
) -> list[Runtime]: ...  # a runtime for each rank, all in this process; for tests
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
    ports: Sequence[tuple[float, float, float]] = ...,  # (latency in ns, ns per byte, gap in ns)
    port_of: Sequence[int] = ...,  # index of the port, by sender * ranks + receiver; -1: no delay
) -> list[int]: ...  # runs a program with all its ranks in this process; ns of each repetition; see program/local_run.h
