"""A dependency engine: functions run on threads as soon as what they read and write allows it."""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from horocache import _core
from horocache.core import context
from horocache.dag.collective import Collective, Flight
from horocache.dag.graph import Graph, Pushed
from horocache.dag.memory import MemoryVariables
from horocache.dag.variable import Lane, Var
from horocache.errors import ForkedProcessError, InvalidArgumentError, ShutDownError, StallError

P = ParamSpec("P")
R = TypeVar("R")

_CLOSE_S = 5.0
_EXIT_S = 1.0  # of the running operations of a program that ends
_MOST_QUEUES = 16
_MOST_NAMED = 5  # variables in a message


class Engine:
    """Runs functions in the order that follows from what they read and write.

    An operation runs when all earlier writers of what it reads, and all earlier users of what it writes, have ended;
    "earlier" is the order of :meth:`push`. Operations that are ready run on the threads of their queue, those of the
    highest priority first. For example, of

        engine.push(load, writes=[x])
        engine.push(double, reads=[x], writes=[y])
        engine.push(show, reads=[x])

    the second and the third run after the first, at the same time if there are two threads.

    Operations read and write variables (:meth:`var`) or tensors: a torch tensor or a NumPy array stands for its memory,
    which its views share.

    If a function raises an exception, what it writes has that exception from then on: operations that read or write it
    do not run, and pass the exception on. The next wait for a variable that has it raises it, once for each variable.

    The algorithm is that of MXNet's engine (Chen et al., 2015), with collectives as in Mamidala et al. (2018).

    Role: made by the program; any thread may use it. It ends with the program, or by :meth:`close`.
    """

    def __init__(
        self, threads: int | Mapping[str, int] = 1, *, naive: bool = False, record: bool = False, name: str = "dag"
    ) -> None:
        """Start the threads.

        Args:
            threads: number of threads, or of each queue by its name: ``{"cpu": 2, "copy": 1}``. A number stands for a
                queue ``cpu``. Functions that hold the GIL run one at a time whatever the number is.
            naive: run each operation within :meth:`push`, on the calling thread, for debugging and comparisons.
            record: keep what is pushed, for :meth:`graph`.
            name: for messages.

        Raises:
            InvalidArgumentError: a queue or its thread is missing.
        """
        numbers = {"cpu": threads} if isinstance(threads, int) else dict(threads)
        if not numbers or min(numbers.values()) < 1 or len(numbers) > _MOST_QUEUES:
            raise InvalidArgumentError(
                f"engine {name!r} needs 1 to {_MOST_QUEUES} queues with a thread or more each; it has {numbers}."
            )
        self.name = name
        self.threads = numbers
        self._queues = {queue: 0 if naive else number for number, queue in enumerate(numbers)}
        self.naive = naive
        self.core = _core.Engine([] if naive else list(numbers.values()), f"hc-{name}"[:12])
        self.recorded: list[Pushed] | None = [] if record else None
        self._memory = MemoryVariables(self)
        self._numbers = 0
        self._lock = threading.Lock()
        self._has_collectives = False
        self._watchers: set[_Watcher] = set()  # of when_written
        self.flight = Flight()
        _engines.add(self)

    # ---- variables

    def var(self, name: str | None = None) -> Var:
        """Make a variable."""
        return Var(self, name or self._next_name("var"), self.core.add_variable(True))

    def lane(self, name: str | None = None) -> Lane:
        """Make a lane for collectives that run one by one; it is the dummy variable of dependency chaining."""
        return Lane(self, name or self._next_name("lane"), self.core.add_variable(False))

    def _next_name(self, stem: str) -> str:
        with self._lock:
            self._numbers += 1
            return f"{stem}{self._numbers}"

    def variable_of(self, operand: Any) -> Var:
        """Return the variable that an operand of an operation stands for.

        Args:
            operand: a variable of this engine, a torch tensor or a NumPy array.

        Raises:
            InvalidArgumentError: it is something else, or a variable of another engine.
        """
        if isinstance(operand, Var):
            if operand.engine is not self:
                raise InvalidArgumentError(
                    f"{operand!r} is a variable of engine {operand.engine.name!r}, not of {self.name!r}."
                )
            return operand
        return self._memory.variable_of(operand)

    # ---- operations

    def push(
        self,
        function: Callable[[], object],
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        priority: int = 0,
        *,
        queue: str | None = None,
        always: bool = False,
        name: str | None = None,
    ) -> None:
        """Add an operation; returns at once, before it has run, except on a naive engine.

        Args:
            function: called without arguments on a thread of the queue.
            reads: variables and tensors that it reads.
            writes: those that it changes. One that is in both lists, or twice in one, counts once, as written.
            priority: of operations that are ready, the highest runs first.
            queue: name of the queue; by default the first.
            always: also run if something that it uses has an exception.
            name: for messages and drawings; by default the function's.

        Raises:
            InvalidArgumentError: a variable has been deleted or is another engine's, or the queue is unknown.
            ShutDownError: the engine is closed.
        """
        flags = _core.Engine.ALWAYS_RUNS if always else 0
        self._push(function, reads, writes, priority, queue, flags, name or _name_of(function))

    def push_async(
        self,
        function: Callable[[Completion], object],
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        priority: int = 0,
        *,
        queue: str | None = None,
        always: bool = False,
        name: str | None = None,
    ) -> None:
        """Add an operation that ends when ``function`` or another thread calls the completion that it gets.

        The other arguments are those of :meth:`push`. If the function raises an exception, the operation ends with it.
        """

        def run(operation: int, inherited: BaseException | None) -> None:
            function(Completion(self, operation))

        flags = _core.Engine.GOES_ON | (_core.Engine.ALWAYS_RUNS if always else 0)
        self._push(run, reads, writes, priority, queue, flags, name or _name_of(function))

    def collective(
        self,
        start: Callable[[], int],
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        priority: int = 0,
        *,
        then: Callable[[Any], object] | None = None,
        lane: Lane | None = None,
        instead: Callable[[BaseException], int] | None = None,
        queue: str | None = None,
        name: str | None = None,
    ) -> None:
        """Add a collective: an operation that ends when all ranks have run it.

        For example, ``engine.collective(lambda: hvd.allreduce_async_(x, name="x"), writes=[x])``.

        The ranks may push collectives in any order, as they match by name. A collective whose input has an exception on
        one rank raises InputFailedError on the others, which names the rank and has the exception's text; it needs no
        call of theirs that they would not make anyway.

        Args:
            start: calls one of the ``_async`` functions, with a ``name``, and returns its handle. It runs on the
                calling thread if all that it uses is ready.
            reads: see :meth:`push`.
            writes: see :meth:`push`.
            priority: of ready operations of the engine. The collective has a priority of its own; pass it to the
                function.
            then: called with the result of the collective, on a thread of the queue, before the operation ends.
            lane: its collectives run one by one, in the order of their pushes, which must be that of all ranks. Each
                waits on a thread of the queue, which therefore needs as many threads as there are lanes.
            instead: for messages between two ranks, on which no coordinator agrees: called instead of ``start`` with
                the exception of something that the operation uses, to send word of it; returns a handle. Without it,
                a message of such an operation is not sent.
            queue: see :meth:`push`.
            name: for messages and drawings.

        Raises:
            InvalidArgumentError, ShutDownError: see :meth:`push`. The operation ends with InvalidArgumentError if
            ``start`` gives no name.
        """
        self.prepared_collective(start, reads, writes, priority, then, lane, instead, queue, name).push()

    def prepared_collective(
        self,
        start: Callable[[], int],
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        priority: int = 0,
        then: Callable[[Any], object] | None = None,
        lane: Lane | None = None,
        instead: Callable[[BaseException], int] | None = None,
        queue: str | None = None,
        name: str | None = None,
    ) -> Prepared:
        """Do as :meth:`collective`, for a collective that a loop pushes again and again with the same tensors.

        The operations of one such collective must run one after the other, which a variable that it writes ensures.
        """
        self._has_collectives = True
        function = Collective(self, start, then, lane, instead)
        flags = _core.Engine.GOES_ON | _core.Engine.ALWAYS_RUNS | (_core.Engine.AT_ONCE if lane is None else 0)
        changes = writes if lane is None else [*writes, lane]
        return self._prepare(function, reads, changes, priority, queue, flags, name or _name_of(start))

    def _push(
        self,
        function: Callable[..., object],
        reads: Iterable[Any],
        writes: Iterable[Any],
        priority: int,
        queue: str | None,
        flags: int,
        name: str,
    ) -> None:
        self._prepare(function, reads, writes, priority, queue, flags, name).push()

    def _prepare(
        self,
        function: Callable[..., object],
        reads: Iterable[Any],
        writes: Iterable[Any],
        priority: int,
        queue: str | None,
        flags: int,
        name: str,
    ) -> Prepared:
        if isinstance(self.core, _Forked):
            raise self.core.error()
        number = 0 if queue is None else self._queues.get(queue, -1)
        if number < 0:
            raise InvalidArgumentError(
                f"engine {self.name!r} has no queue {queue!r}; it has {', '.join(self._queues)}."
            )
        of = self.variable_of
        read, written = [of(each) for each in reads], [of(each) for each in writes]
        if self.naive:
            flags |= _core.Engine.NAIVE
        return Prepared(self, function, read, written, (priority, number, flags, name), queue)

    def operation(
        self, *, writes: Iterable[str] = (), priority: int = 0, queue: str | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, None]]:
        """Make a function an operation: a call pushes it.

        Its arguments that are variables or tensors are read, and those that ``writes`` names are written.

        Args:
            writes: names of arguments.
            priority: see :meth:`push`.
            queue: see :meth:`push`.
        """
        written = frozenset(writes)

        def decorate(function: Callable[P, R]) -> Callable[P, None]:
            signature = inspect.signature(function)
            if missing := written - set(signature.parameters):
                raise InvalidArgumentError(f"{_name_of(function)} has no argument {', '.join(sorted(missing))}.")

            @functools.wraps(function)
            def pushed(*arguments: P.args, **keywords: P.kwargs) -> None:
                bound = signature.bind(*arguments, **keywords)
                bound.apply_defaults()
                operands = [
                    (name, value)
                    for name, given in bound.arguments.items()
                    for value in _each(signature.parameters[name], given)
                ]
                self.push(
                    lambda: function(*arguments, **keywords),
                    [value for name, value in operands if name not in written and self._memory.is_operand(value)],
                    [value for name, value in operands if name in written],
                    priority,
                    queue=queue,
                    name=_name_of(function),
                )

            return pushed

        return decorate

    # ---- waits

    def wait(self, *operands: Any, timeout: float | None = None) -> None:
        """Wait until the operations that write these, of those pushed so far, have ended.

        Args:
            operands: variables and tensors.
            timeout: seconds for all of them; None: no limit.

        Raises:
            InvalidArgumentError: called within an operation, where the wait could be for the operation itself; or a
                variable has been deleted. StallError: time is over; the message has the operations that run. Any
                exception of an operation on which an operand depends, once.
        """
        variables = [self.variable_of(operand) for operand in operands]
        handles = [variable.handle for variable in variables]
        if not self.core.wait(handles, -1.0 if timeout is None else timeout, self._runtime()):
            names = ", ".join(variable.name for variable in variables[:_MOST_NAMED])
            raise StallError(f"{names} not ready after {timeout:g} s: {self.describe()}.")

    def wait_quietly(self, *operands: Any) -> None:
        """Wait as :meth:`wait` does, without taking exceptions."""
        gate = self.lane("quiet wait")
        self.push(int, reads=operands, writes=[gate], always=True, name="quiet wait")
        self.wait(gate)

    def wait_all(self, timeout: float | None = None) -> None:
        """Wait until all operations have ended; raise the first exception that no wait has raised, and forget the rest.

        Args and exceptions are those of :meth:`wait`.
        """
        if not self.core.wait_all(-1.0 if timeout is None else timeout, self._runtime()):
            raise StallError(f"engine {self.name!r} was not idle after {timeout:g} s: {self.describe()}.")

    def _runtime(self) -> Any:
        """The runtime of the session, if operations may wait for it."""
        session = context.state.session if self._has_collectives else None
        runtime = None if session is None else session.runtime
        return runtime if isinstance(runtime, _core.Runtime) else None

    def when_written(self, variable: Any, call: Callable[[BaseException | None], object]) -> None:
        """Have ``call`` called, on a thread of the engine, when the writers pushed so far have ended.

        Args:
            variable: a variable or a tensor.
            call: gets the exception of the variable, which it then no longer has, or None.
        """
        of = self.variable_of(variable)
        watcher = _Watcher(call)
        with self._lock:
            self._watchers.add(watcher)

        def tell() -> None:
            with self._lock:
                self._watchers.discard(watcher)
            call(self.core.take_failure(of.handle))

        self.push(tell, reads=[of], always=True, name="when written")

    def take_failure(self, variable: Any) -> BaseException | None:
        """Return the exception that a variable or tensor has now, and no longer has then; None if it has none."""
        return self.core.take_failure(self.variable_of(variable).handle)

    def describe(self) -> str:
        """Tell which operations have not ended, the oldest first."""
        pending = self.core.pending()
        if not pending:
            return "no operation is pending"
        told = [
            f"{name} ({state}{f' for {seconds:.1f} s' if seconds else ''})" for name, state, seconds in pending[:10]
        ]
        more = f" and {len(pending) - 10} more" if len(pending) > 10 else ""
        return f"{', '.join(told)}{more}"

    def graph(self) -> Graph:
        """Return the operations pushed so far and what orders them, for drawings.

        Raises:
            InvalidArgumentError: the engine was made without ``record=True``.
        """
        if self.recorded is None:
            raise InvalidArgumentError(f"engine {self.name!r} has kept nothing; make it with record=True.")
        return Graph.of(self.recorded)

    def close(self, timeout: float = _CLOSE_S) -> None:
        """End the operations that have not started with ShutDownError, and wait for those that run.

        Raises:
            StallError: some still run after ``timeout`` seconds; their threads are left to themselves.
        """
        left = self.core.close(timeout)
        with self._lock:
            untold, self._watchers = self._watchers, set()
        for watcher in untold:
            watcher.call(ShutDownError("the engine is closed"))
        if left:
            raise StallError(f"engine {self.name!r}: still running after {timeout:g} s: {', '.join(left)}.")

    def __repr__(self) -> str:
        """Tell the name and the numbers of variables and operations."""
        counters = self.core.counters()
        return f"<Engine {self.name!r}, {counters['variables']} variables, {counters['pending']} operations pending>"


class Prepared:
    """An operation with its variables, to be pushed.

    Role: made by an engine; owned by the caller.
    """

    __slots__ = ("_core", "_engine", "_pushed", "_read", "_written")

    def __init__(
        self,
        engine: Engine,
        function: Callable[..., object],
        read: list[Var],
        written: list[Var],
        how: tuple[int, int, int, str],
        queue: str | None,
    ) -> None:
        """Keep the arguments of the core's push, and the variables, which must live until then."""
        self._engine = engine
        self._read, self._written = read, written
        priority, number, flags, name = how
        handles = [var.handle for var in read], [var.handle for var in written]
        self._core = _core.PreparedOperation(engine.core, function, *handles, priority, number, flags, name)
        self._pushed = Pushed(name, [var.name for var in read], [var.name for var in written], queue)

    def push(self) -> None:
        """Push the operation; see :meth:`Engine.push`."""
        self._core.push()
        if self._engine.recorded is not None:
            self._engine.recorded.append(self._pushed)


class _Watcher:
    """A function that :meth:`Engine.when_written` is to call."""

    def __init__(self, call: Callable[[BaseException | None], object]) -> None:
        self.call = call


class Completion:
    """Ends an operation of :meth:`Engine.push_async`; any thread may call it, once."""

    __slots__ = ("_engine", "_operation")

    def __init__(self, engine: Engine, operation: int) -> None:
        """Wrap the core's handle."""
        self._engine, self._operation = engine, operation

    def __call__(self, error: BaseException | None = None) -> None:
        """End the operation, with an exception or without.

        Raises:
            InvalidArgumentError: it has ended before.
        """
        self._engine.core.complete(self._operation, error)


def _each(parameter: inspect.Parameter, given: Any) -> Iterable[Any]:
    """The values of a parameter, which are several for ``*args`` and ``**keywords``."""
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple(given)
    return tuple(given.values()) if parameter.kind is inspect.Parameter.VAR_KEYWORD else (given,)


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


class _Forked:
    """Stands for the core's engine in the child of a fork, which has none of its threads."""

    def __getattr__(self, name: str) -> NoReturn:
        raise self.error()

    def error(self) -> ForkedProcessError:
        """The error of every call."""
        return ForkedProcessError("an engine does not work in a child of fork(); make a new one there.")

    def delete_variable(self, variable: int) -> None:
        """Do nothing."""


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Threads that run Python functions must not outlive the interpreter."""
    for engine in list(_engines):
        engine.core.close(_EXIT_S)
    _core.drop_nothing_more()


def _forget_all() -> None:
    for engine in list(_engines):
        engine.core.leak()
        engine.core = cast("_core.Engine", _Forked())
    _engines.clear()
    _core.forget_parents_engines()


os.register_at_fork(after_in_child=_forget_all)
