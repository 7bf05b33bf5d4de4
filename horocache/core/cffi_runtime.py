"""The core over its C interface: an alternative to pybind11 for NumPy arrays, chosen with ``HOROCACHE_BINDING=cffi``.

Interface and behaviour are those of :class:`horocache._core.Runtime`. The declarations come from the library itself,
which carries the text of its header, so they always match it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from horocache.base.request import Request
from horocache.core.cffi_library import Result, load
from horocache.errors import ForkedProcessError, InvalidArgumentError, error_for

_PROPERTIES = (
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "alive",
    "mpi",
    "homogeneous",
    "nccl",
)
_DIVIDE_BY = ("all", "active")
# The fields of a Request that are numbers of the same name in hc_request.
_NUMBERS = (*("op", "reduce_op", "root", "prescale", "postscale", "tag", "first_ready_ns", "priority", "process_set"),)
_JOIN = 9
_BARRIER = 8
_REGISTER = 10
_OUT_OF_MEMORY = 10


def _unknown(handle: int) -> ValueError:
    return ValueError(f"Handle {handle} was not created or has been cleared.")


class Runtime:
    """One rank's daemon, reached through ``hc.h``. Takes NumPy arrays only.

    ``ffi``, ``lib`` and ``pointer`` (``hc_runtime*``) are for callers of functions of ``hc.h`` that it does not wrap.

    Role: any thread may call it. Owns the C runtime and keeps the arrays of operations in flight alive.
    """

    def __init__(
        self,
        arguments: Mapping[str, str] | None = None,
        epoch: int = 0,
        process_sets: Sequence[Sequence[int]] = (),
        communicator: int = 0,
        ranks: Sequence[int] = (),
        programs: bytes = b"",
        tuning: str = "",
    ) -> None:
        self.ffi, self.lib = load()
        self._dtypes = [self.ffi.string(self.lib.hc_dtype_name(i)).decode() for i in range(self.lib.hc_num_dtypes())]
        self._errors = threading.local()
        self._kept: dict[int, tuple[Any, ...]] = {}
        self._bytes_into_views = 0  # bytes, see count_bytes_into_views
        self._forked = False
        pairs = list((arguments or {}).items())
        names = [self.ffi.new("char[]", name.encode()) for name, _ in pairs]
        values = [self.ffi.new("char[]", value.encode()) for _, value in pairs]
        lists = [self.ffi.new("int32_t[]", list(members)) for members in (*process_sets, ranks)]
        *sets, own = [{"ranks": members, "count": len(members)} for members in lists]
        array = self.ffi.new("hc_process_set[]", sets)
        job = self.ffi.new(
            "hc_job*", {"sets": array, "num_sets": len(sets), "ranks": own, "communicator": communicator}
        )
        packed = self.ffi.from_buffer(programs)
        job.programs, job.programs_bytes = packed, len(programs)
        rules = self.ffi.new("char[]", tuning.encode())
        job.tuning = {"data": rules, "bytes": len(rules) - 1}
        out = self.ffi.new("hc_runtime**")

        def start(go_on: Any) -> int:
            job.go_on = go_on
            return int(self.lib.hc_start_job(names, values, len(pairs), job, epoch, out, self._error))

        self._patiently(start)
        self.pointer = self.ffi.gc(out[0], self.lib.hc_free)

    def __getattr__(self, name: str) -> int | bool:
        if name not in _PROPERTIES:
            raise AttributeError(name)
        value: int = self.lib.hc_get(self.pointer, _PROPERTIES.index(name))  # allowed in a child of fork(), too
        return bool(value) if name == "alive" else value

    def _live(self) -> Any:
        if self._forked:
            msg = "horocache cannot be used in a child of fork(); call init() in a new process instead."
            raise ForkedProcessError(msg)
        return self.pointer

    @property
    def _error(self) -> Any:
        # One buffer for each thread: cffi releases the GIL during a call.
        buffer = getattr(self._errors, "buffer", None)
        if buffer is None:
            buffer = self._errors.buffer = self.ffi.new("hc_error*")
        return buffer

    def _check(self, code: int) -> None:
        if code != 0:
            raise error_for(code, self.ffi.string(self._error.text).decode(errors="backslashreplace"))

    def stop(self) -> None:
        """Leave the job and join all threads."""
        self.lib.hc_stop(self._live())

    def log_record_path(self) -> None:
        """If an operation has failed, warn once where the flight record is."""
        self.lib.hc_log_record_path(self._live())

    def stop_with_process(self) -> bool:
        """Leave the job with the process, which is about to end.

        Returns:
            True if pending operations go on until the process has ended; False if the runtime has been stopped at once.
        """
        if not self.lib.hc_stop_with_process(self._live()):
            return False
        self.ffi.gc(self.pointer, None)  # the C runtime outlives the interpreter
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # and so do the arrays in _kept
        return True

    def forked_child(self) -> None:
        """In a child of fork(): close descriptors, and never free the parent's runtime."""
        self.lib.hc_forked_child(self._live())
        self.ffi.gc(self.pointer, None)
        self._forked = True

    def _tensors(self, arrays: Sequence[Any], kept: list[Any], writable: bool) -> Any:
        out = self.ffi.new("hc_tensor[]", max(len(arrays), 1))
        for slot, value in zip(out, arrays, strict=False):
            if value is None:  # this rank gets no result: a tensor without data
                continue
            array = np.asarray(value)
            name = array.dtype.name
            if name not in self._dtypes:
                msg = f"an array of dtype {name} cannot be communicated; supported: {', '.join(self._dtypes)}"
                raise InvalidArgumentError(msg)
            if not array.flags.c_contiguous or (writable and not array.flags.writeable):
                msg = (
                    "an output array is read-only"
                    if array.flags.c_contiguous
                    else "an array is not contiguous; pass a contiguous copy"
                )
                raise InvalidArgumentError(msg)
            shape = self.ffi.new("int64_t[]", list(array.shape) or [0])
            slot.data = self.ffi.cast("void*", array.ctypes.data)
            slot.dtype = self._dtypes.index(name)
            slot.ndim = array.ndim
            slot.shape = shape
            kept += [array, shape]
        kept.append(out)
        return out

    def _text(self, value: str | bytes | None, kept: list[Any]) -> dict[str, Any]:
        data = value if isinstance(value, bytes) else (value or "").encode(errors="surrogateescape")
        buffer = self.ffi.new("char[]", data)
        kept.append(buffer)
        return {"data": buffer, "bytes": len(data)}

    def submit(self, request: Request) -> int:
        """Submit an operation and return its handle."""
        kept: list[Any] = []
        filled = self.ffi.new("hc_request*")
        filled.num_tensors = len(request.inputs)
        filled.inputs = self._tensors(request.inputs, kept, writable=False)
        if request.outputs is not None:
            filled.outputs = self._tensors(request.outputs, kept, writable=True)
        for field in ("name", "layers", "backend"):
            setattr(filled, field, self._text(getattr(request, field), kept))
        if request.names is not None:
            filled.names = members = self.ffi.new("hc_text[]", [self._text(member, kept) for member in request.names])
            kept.append(members)
        for field in ("splits", "send_starts", "receive_rows", "receive_starts"):
            numbers = getattr(request, field)
            if numbers is not None:
                array = self.ffi.new("int64_t[]", list(numbers))
                setattr(filled, field, array)
                setattr(filled, f"num_{field}", len(array))
                kept.append(array)
        for field in _NUMBERS:
            setattr(filled, field, getattr(request, field))
        filled.group, filled.wait_follows = int(request.group), int(request.wait_follows)
        filled.divide_by = _DIVIDE_BY.index(request.divide_by)
        handle = self.ffi.new("int64_t*")
        self._check(self.lib.hc_submit(self._live(), filled, handle, self._error))
        self._kept[handle[0]] = (*kept, request.op, request.outputs is None)
        return int(handle[0])

    def allreduce_in_place(self, *_: Any) -> None:
        """Not accelerated in this binding: None, so that the caller takes the general path, ``submit``."""

    def allreduce_each_in_place(self, *_: Any) -> bool:
        """Not accelerated in this binding: False, so that the caller takes the general path for every tensor."""
        return False

    def allreduce_group_in_place(self, *_: Any) -> None:
        """Not accelerated in this binding: None, so that the caller takes the general path."""

    submit_gradient_group = allreduce_group_in_place

    def submit_gradients(self, slots: list[Any], *_: Any) -> list[Any]:
        """Not accelerated in this binding: all slots, so that the caller takes the general path for them."""
        return slots

    def finish_gradients(self, buckets: list[Any]) -> list[Any]:
        """Not accelerated in this binding: all buckets, so that the caller takes the general path for them."""
        return buckets

    def empty(self, shape: Sequence[int], dtype: str) -> Result:
        """Return a new tensor in memory that the ranks of this host share."""
        extents = list(shape)
        if dtype not in self._dtypes or min(extents, default=0) < 0:
            raise InvalidArgumentError(f"there is no tensor of {dtype} with the shape {extents}")
        stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        size = math.prod(extents) * stored.itemsize
        data = self.ffi.new("void**")
        memory = self.lib.hc_allocate(self._live(), size, data)
        if memory == self.ffi.NULL:
            raise error_for(_OUT_OF_MEMORY, f"no memory for a tensor of {size} bytes")
        free = self.lib.hc_free_memory
        owned = self.ffi.gc(self.ffi.cast("char*", data[0]), lambda _: free(memory))
        return Result(np.frombuffer(self.ffi.buffer(owned, size), stored).reshape(extents), dtype, [])

    def is_shared(self, tensor: Any) -> bool:
        """True if the array lies in shared memory of :meth:`empty`."""
        return bool(self.lib.hc_is_shared(self._live(), self.ffi.cast("void*", np.asarray(tensor).ctypes.data)))

    def poll(self, handle: int) -> bool:
        """True if the operation is finished. Raises ValueError if the handle is unknown or was consumed."""
        state = self.lib.hc_poll(self._live(), handle)
        if state < 0:
            raise _unknown(handle)
        return bool(state)

    def await_copies(self, results: list[Result], timeout_s: float) -> None:
        """Return at once: all results are in memory of the host."""

    def wait(self, handle: int, timeout_s: float = -1.0, _block: bool = False) -> list[Result] | int | None:
        """Wait for the operation and consume its handle. After a TimeoutError the handle stays valid."""
        null = self.ffi.NULL
        if not self.poll(handle):
            call = self.lib.hc_wait
            if self._asked(lambda go_on: int(call(self._live(), handle, timeout_s, go_on, null))) == 0:
                msg = f"handle {handle} is not done on rank {self.rank} after {timeout_s} s"
                raise TimeoutError(msg)
        kept = self._kept.pop(handle, None)
        if kept is None:  # another thread has waited for the handle and consumed it
            raise _unknown(handle)
        *_, op, allocated = kept
        try:
            self._check(self.lib.hc_outcome(self.pointer, handle, self._error))
            if op == _JOIN:
                return int(self.lib.hc_last_joined(self.pointer, handle))
            return self._results(handle) if allocated and op != _BARRIER else None
        finally:
            self.lib.hc_consume(self.pointer, handle)

    def wait_each(self, *_: Any) -> None:
        """Not accelerated in this binding: consumes nothing, so that the caller waits for each with :meth:`wait`."""

    def _results(self, handle: int) -> list[Result]:
        results = []
        tensor = self.ffi.new("hc_tensor*")
        rows = self.ffi.new("int64_t**")
        num_rows = self.ffi.new("int*")
        for index in range(self.lib.hc_num_results(self.pointer, handle)):
            self.lib.hc_result(self.pointer, handle, index, tensor, rows, num_rows)
            shape = [tensor.shape[i] for i in range(tensor.ndim)]
            dtype = self._dtypes[tensor.dtype]
            stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
            size = int(np.prod(shape, dtype=np.int64)) * stored.itemsize
            data = np.frombuffer(bytearray(self.ffi.buffer(tensor.data, size)), stored).reshape(shape)
            results.append(Result(data, dtype, [rows[0][i] for i in range(num_rows[0])]))
        return results

    def next_set(self) -> int:
        """Return the lowest number that a new process set can have on this rank."""
        return int(self.lib.hc_next_set(self._live()))

    def propose_set(self, number: int, ranks: Sequence[int]) -> int:
        """Begin to add a process set; returns the handle of the operation in which all ranks agree."""
        handle = self.ffi.new("int64_t*")
        with self._set_of(ranks) as proposed:
            self._check(self.lib.hc_propose_set(self._live(), number, proposed, handle, self._error))
        return self._without_tensors(handle[0])

    def declare_set(self, number: int, ranks: Sequence[int]) -> None:
        """Begin to add a process set that its members make among themselves."""
        with self._set_of(ranks) as declared:
            self._check(self.lib.hc_declare_set(self._live(), number, declared, self._error))

    @contextlib.contextmanager
    def _set_of(self, ranks: Sequence[int]) -> Iterator[Any]:
        members = self.ffi.new("int32_t[]", list(ranks))
        yield self.ffi.new("hc_process_set*", {"ranks": members, "count": len(members)})

    def connect_set(self, number: int) -> None:
        """Connect the set's members on this host."""
        call, null = self.lib.hc_connect_set, self.ffi.NULL
        self._patiently(lambda go_on: int(call(self._live(), number, go_on, null, self._error)))

    def open_set(self, number: int) -> None:
        """Connect the set's hosts and open the set."""
        self._check(self.lib.hc_open_set(self._live(), number, self._error))

    def propose_removal(self, number: int) -> int:
        """Begin to remove a process set; returns the handle of the operation in which all ranks agree."""
        handle = self.ffi.new("int64_t*")
        self._check(self.lib.hc_propose_removal(self._live(), number, handle, self._error))
        return self._without_tensors(handle[0])

    def leave_set(self, number: int) -> None:
        """Remove the set, together with its other members."""
        call, null = self.lib.hc_leave_set, self.ffi.NULL
        self._patiently(lambda go_on: int(call(self._live(), number, go_on, null, self._error)))

    def drop_set(self, number: int) -> None:
        """Undo the addition of a set."""
        self._check(self.lib.hc_drop_set(self._live(), number, self._error))

    def _asked(self, call: Callable[[Any], int]) -> int:
        """Call a function of the library that waits, with its callback ``go_on``, and return its result.

        An exception of one of Python's signal handlers ends the wait and is raised here.
        """
        raised: list[BaseException] = []

        def keep(kind: Any, value: BaseException, trace: Any) -> None:
            raised.append(value)

        # Python runs pending signal handlers when it calls this function. It passes their exceptions to `onerror`.
        go_on = self.ffi.callback("int(void*)", lambda _: 1, error=0, onerror=keep)
        code = call(go_on)
        if raised:
            raise raised[0]
        return code

    def _patiently(self, call: Callable[[Any], int]) -> None:
        self._check(self._asked(call))

    def _without_tensors(self, handle: int) -> int:
        self._kept[handle] = (_REGISTER, False)
        return handle

    def start_timeline(self, path: str, mark_rounds: bool) -> None:
        """Start the timeline, a file of this rank's operations."""
        self._check(self.lib.hc_start_timeline(self._live(), os.fsencode(path), int(mark_rounds), self._error))

    def watch_stacks(self, signal: int, file: int, ask: int, answer: int, own_folder: str) -> None:
        """Show the stacks that are written to ``file`` in stall reports and dumps; see hc_stacks in ``hc.h``."""
        keeps_lock = ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p).value
        way = [file, ask, answer, signal, self.ffi.cast("int (*)(void)", keeps_lock)]
        stacks = self.ffi.new("hc_stacks *", way)
        self._check(self.lib.hc_watch_stacks(self._live(), stacks, own_folder.encode(), self._error))

    def stop_timeline(self) -> None:
        """End the timeline and its file."""
        self.lib.hc_stop_timeline(self._live())

    def c_api(self) -> tuple[int, int]:
        """Return the addresses of the ``hc_api`` and of this rank's ``hc_runtime``."""
        address = self.ffi.cast
        return int(address("uintptr_t", self.lib.hc_get_api())), int(address("uintptr_t", self._live()))

    def backends(self, process_set: int) -> list[tuple[str, list[str], list[str]]]:
        """Return the backends of a process set: name, algorithms with the default first, operations."""
        out: list[tuple[str, list[str], list[str]]] = []

        def add(_: Any, name: Any, *lists: Any) -> None:
            algorithms, operations = ([each for each in self._str(one).split(",") if each] for one in lists)
            out.append((self._str(name), algorithms, operations))

        visit = self.ffi.callback("void(void*, const char*, const char*, const char*)", add)
        self.lib.hc_backends(self._live(), process_set, visit, self.ffi.NULL)
        return out

    def take_user_calls(self, timeout_s: float) -> None:
        """None: this binding starts no jobs with backends of the program."""

    def configure(self, settings: str) -> None:
        """On rank 0: change settings on all ranks in one round; see hc_configure in ``hc.h``."""
        if "\0" in settings:  # where the text would end for C
            msg = "settings: the text has a zero byte"
            raise InvalidArgumentError(msg)
        self._check(self.lib.hc_configure(self._live(), settings.encode(), self._error))

    @property
    def settings_changes(self) -> int:
        """How often this rank has changed its settings."""
        return int(self.lib.hc_settings(self._live(), self.ffi.NULL, self.ffi.NULL))

    def settings(self) -> tuple[int, str]:
        """Return how often this rank has changed its settings, and the last note."""
        notes: list[str] = []
        visit = self.ffi.callback("void(void*, const char*)", lambda _, note: notes.append(self._str(note)))
        changes = self.lib.hc_settings(self._live(), visit, self.ffi.NULL)
        return int(changes), notes[0]

    def log_operations(self, capacity: int) -> None:
        """Begin to list completed operations, at most ``capacity``; 0 ends the list."""
        self.lib.hc_log_operations(self._live(), capacity)

    def take_log(self) -> tuple[list[tuple[Any, ...]], int]:
        """Return the operations listed since the last call, as hc_record's members, and how many were lost."""
        members = [name for name, _ in self.ffi.typeof("hc_record").fields]
        out: list[tuple[Any, ...]] = []

        def add(_: Any, record: Any) -> None:
            values = (getattr(record, name) for name in members)
            out.append(tuple(value if isinstance(value, int) else self._str(value) for value in values))

        visit = self.ffi.callback("void(void*, const hc_record*)", add)
        lost = self.lib.hc_take_log(self._live(), visit, self.ffi.NULL)
        return out, int(lost)

    def abort(self, why: str) -> None:
        """Abort the job: the pending operations of all ranks fail."""
        self.lib.hc_abort(self._live(), why.encode())

    def count_step(self) -> None:
        """Count an optimizer step, for the metrics."""
        self.lib.hc_count_step(self._live())

    def count_bytes_into_views(self, size: int) -> None:
        """Count bytes of gradients that were copied into shared memory, for the metrics."""
        self._bytes_into_views += size

    def metrics(self) -> dict[str, int]:
        """Return this rank's counters by name."""
        out: dict[str, int] = {}
        visit = self.ffi.callback(
            "void(void*, const char*, uint64_t)", lambda _, name, value: out.update({self._str(name): value})
        )
        self.lib.hc_metrics(self._live(), visit, self.ffi.NULL)
        out["bytes_into_views"] = self._bytes_into_views
        return out

    def knobs(self) -> dict[str, tuple[str, str]]:
        """Return the value and the source of every knob, by name."""
        out: dict[str, tuple[str, str]] = {}
        visit = self.ffi.callback(
            "void(void*, const char*, const char*, const char*)",
            lambda _, name, value, source: out.update({self._str(name): (self._str(value), self._str(source))}),
        )
        self.lib.hc_knobs(self._live(), visit, self.ffi.NULL)
        return out

    def _str(self, text: Any) -> str:
        # Names are bytes; those that are not UTF-8 become lone surrogates, as in the names that Python gives.
        return str(self.ffi.string(text).decode(errors="surrogateescape"))
