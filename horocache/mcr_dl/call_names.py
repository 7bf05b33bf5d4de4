"""Names of the calls that the program does not name.

Note [Names of calls without a name]
The core matches operations by name. Calls without a name belong to a *sequence*: those of one backend (as the program
writes it), one group and one thread, in the order of the program. The n-th call of a sequence meets the n-th call of
the same sequence on the other ranks. Three facts make this so:

1. The name of a call depends on nothing but the calls before it in its sequence: :class:`CallOrder` gives a name to
   each point of the program, not to the call that follows. Ranks that made the same calls so far give the next call the
   same name, whatever it is. If the ranks differ in call n, that call still has one name on all of them, and the core
   reports the difference as a MismatchError on all ranks. Timing, other sequences and the ranks' use of ``async_op``
   have no influence.
2. Names come back, so that a loop finds its responses in the cache. Let a rank use a name for its calls i1 < i2 < ....
   By 1, the other ranks use it for the same calls. The core accepts a name only while no operation of that name is in
   flight on this rank, and an operation ends only when all ranks have submitted it. So when a rank submits i2, all
   ranks have submitted i1, and i1 is over on this rank: the k-th use of a name meets the k-th use on the other ranks.
3. A call whose name is in flight does not wait for it, because the other ranks may need this thread first. Its request
   goes to the :class:`Backlog`, whose thread submits it as soon as the name is free. Requests of one name leave the
   backlog in the order of their calls, so 2 holds. (The request of a CUDA tensor depends on the current stream of its
   thread, which waits.)

For example, a loop with all_reduce(x) and bcast(y) makes calls 0, 1, 2, ...; after a while they get 130 names in turn,
so that call 130 has the name of call 0.

After a MismatchError in call n the ranks have different histories. A rank that has made no call since then begins new
names, which contain n. Other ranks do the same if they learn of it at the same point. A rank that has made further
calls in that sequence cannot tell how they are matched, and refuses the following ones.

A thread pool runs tasks in no fixed order. Its threads share one name for each backend and group, so a second operation
in flight is refused as a duplicate.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

from horocache.data_parallel.sequence_names import CallOrder
from horocache.errors import DuplicateNameError, MismatchError

S = TypeVar("S")
_NAP_S = 2e-4  # seconds between attempts to submit under a name that is in flight
_ATTEMPTS_APART = 4  # times the duration of an attempt, from one attempt to the next


class Sequence:
    """The names of one sequence of calls; see Note [Names of calls without a name].

    A call counts once it is submitted. A call that raises before that leaves the sequence as it was.

    Role: owned by its group; used by the threads that count together.

    Args:
        prefix: the beginning of the names, different from other sequences'.
        description: the backend and the group, for messages.
    """

    def __init__(self, prefix: str, description: str) -> None:
        self.lock = threading.Lock()  # held by the thread that makes a call, from the name to the submission
        self.order = CallOrder(prefix)
        self.lost_at = 0  # the number of the call after which the ranks' names may differ; 0: none
        self._description = description

    def submit(self, key: Hashable, start: Callable[[str], S]) -> tuple[S, CallName]:
        """Make the next call: ``start`` gets its name. Returns what ``start`` returns, and the name.

        Args:
            key: equal on all ranks whose calls are the same, and for the repetitions of a call in a loop.
            start: submits the operation.

        Raises:
            MismatchError: the ranks made different calls before, and cannot be matched by order any more.
        """
        with self.lock:
            if self.lost_at:
                raise self.lost()
            text = self.order.here.name
            started = start(text)
            self.order.name(key)
            return started, CallName(text, self, self.order.calls)

    def lost(self) -> MismatchError:
        """Return the error of calls after a mismatch that this rank learned of too late."""
        return MismatchError(
            f"the calls without a name on {self._description} differed between ranks in call {self.lost_at}, and this "
            "rank made further ones before it learned of it, so the order of calls cannot match them any more. Give "
            "operations names (name=...), or make another group."
        )

    def disagreed(self, number: int) -> None:
        """Handle a MismatchError of call ``number``."""
        with self.lock:
            if number == self.order.calls:
                self.order.begin_anew()
            else:
                self.lost_at = min(self.lost_at or number, number)


class CallName(NamedTuple):
    """The name of a call, as the ranks compare it; and its sequence with its number there, if it is in one."""

    text: str | bytes
    sequence: Sequence | None = None
    number: int = 0

    def disagreed(self) -> None:
        """Handle a MismatchError of the call."""
        if self.sequence is not None:
            self.sequence.disagreed(self.number)


class Ticket:
    """The place of a request in the backlog.

    Role: the backlog's thread fills it; the threads that wait for the operation read it.
    """

    def __init__(self) -> None:
        self._filled = threading.Event()
        self._handle = -1
        self._error: Exception | None = None

    def fill(self, handle: int, error: Exception | None = None) -> None:
        """Set the handle of the submitted operation, or the error of its submission."""
        self._handle, self._error = handle, error
        self._filled.set()

    def handle(self, timeout: float | None = None) -> int:
        """Wait for the submission and return the operation's handle.

        Raises:
            TimeoutError: the request was not submitted within ``timeout`` seconds. HorocacheError: it was refused.
        """
        if not self._filled.wait(timeout):
            raise TimeoutError(
                f"the operation has not been submitted after {timeout:g} s, because an earlier one of its name is in "
                "flight"
            )
        if self._error is not None:
            raise self._error
        return self._handle

    def filled(self) -> bool:
        """True if :meth:`handle` would return at once."""
        return self._filled.is_set()


class _Waiting:
    """A request in the backlog.

    Role: of the backlog's thread, once it is there.
    """

    def __init__(self, submit: Callable[[], int]) -> None:
        self.submit = submit
        self.ticket = Ticket()
        self._next_s = 0.0  # monotonic time of the next attempt

    def leaves(self) -> bool:
        """Try to submit the request; True if it need not wait any more."""
        begin = time.monotonic()
        if begin < self._next_s:
            return False
        try:
            self.ticket.fill(self.submit())
        except DuplicateNameError:
            # An attempt may compress the tensor again.
            self._next_s = begin + _ATTEMPTS_APART * (time.monotonic() - begin)
            return False
        except Exception as error:
            self.ticket.fill(-1, error)
        return True


class Backlog:
    """Requests whose names are in flight; a thread submits each as soon as its name is free.

    Role: owned by the session. The thread runs while there are requests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while requests are put or taken
        self._waiting: dict[str | bytes, deque[_Waiting]] = {}  # by name
        self._runs = False

    @property
    def empty(self) -> bool:
        """True if it has no request."""
        return not self._waiting

    def submit(self, name: str | bytes, submit: Callable[[], int], by_this_thread: bool = False) -> int | Ticket:
        """Submit a request and return its handle; if its name is in flight, put it into the backlog.

        Args:
            name: of the request.
            submit: submits it and returns the handle, or raises DuplicateNameError; it may be called again then, also
                by another thread.
            by_this_thread: wait here until the name is free, because the request depends on the calling thread.
        """
        while name not in self._waiting:
            try:
                return submit()
            except DuplicateNameError:
                if not by_this_thread:
                    break
                time.sleep(_NAP_S)
        return self.put(name, submit)

    def put(self, name: str | bytes, submit: Callable[[], int]) -> Ticket:
        """Put a request into the backlog, behind others of its name."""
        waiting = _Waiting(submit)
        with self._lock:
            self._waiting.setdefault(name, deque()).append(waiting)
            starts, self._runs = not self._runs, True
        if starts:
            threading.Thread(target=self._run, name="mcr_dl-backlog", daemon=True).start()
        return waiting.ticket

    def _run(self) -> None:
        while True:
            with self._lock:
                names = list(self._waiting)
                self._runs = bool(names)
            if not names:
                return
            for name in names:
                self._submit_first(name)
            time.sleep(_NAP_S)

    def _submit_first(self, name: str | bytes) -> None:
        if not self._waiting[name][0].leaves():  # only this thread removes it
            return
        with self._lock:
            queue = self._waiting[name]
            queue.popleft()
            if not queue:
                del self._waiting[name]
