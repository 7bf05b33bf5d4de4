"""The state of mcr_dl between ``init`` and ``finalize``: its backends, groups and operations in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from threading import get_ident, main_thread
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from horocache.base.thread_names import counts_by_itself
from horocache.collectives.arguments import full_name
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.core.session import Session as Daemon
from horocache.errors import InvalidArgumentError, NotInitializedError, UnsupportedError
from horocache.mcr_dl.call_names import Backlog, CallName, Sequence
from horocache.mcr_dl.work import Work

if TYPE_CHECKING:
    from horocache.mcr_dl.comms_log import CommsLog

S = TypeVar("S")

AUTO = "auto"
MANY = 8  # operations in flight from which on each call looks whether the oldest are over
MAIN = main_thread().ident


def chosen_name(name: Any) -> str | bytes:
    """Return the name of a call, as the ranks compare it, for the name that the program gives."""
    if type(name) is str and name.isascii():
        return "mcr_dl." + name
    text = full_name("mcr_dl", name)
    assert text is not None
    return text


class Route:
    """The backends and the group of operations that name the same ones.

    Role: owned by the calls of the group; shared by all threads.

    Args:
        session: the session.
        calls: of the group.
        label: the backends as the program writes them.
        names: the names of the backends among which the core chooses.
        backend: the same, with algorithms, as the core takes it.
    """

    def __init__(self, session: Session, calls: GroupCalls, label: str, names: Iterable[str], backend: str) -> None:
        self.session = session
        self._calls = calls
        self.group = calls.group
        self.label = label
        self.names = frozenset(names)
        self.backend = backend
        self.number = calls.group.number
        self.main = calls.sequence(label, "")  # of the main thread, and of threads that Python has not started

    def sequence(self) -> Sequence | None:
        """Return the sequence to which the calling thread's calls without a name belong; None in a thread of a pool."""
        if get_ident() == MAIN or not counts_by_itself():
            return self.main
        scope, pool = context.current().thread_names.scope()
        return None if pool else self._calls.sequence(self.label, scope)

    def submit(self, name: Any, key: Hashable, start: Callable[[Any, bool], S]) -> tuple[S, CallName]:
        """Submit an operation. Returns what ``start`` returns, and the name.

        Args:
            name: the program's name for the operation, or None; see Note [Names of calls without a name].
            key: see :meth:`Sequence.submit`.
            start: submits the operation. It gets its name, and True if the request may wait in the backlog while the
                name is in flight; a name that the program has given, or that a pool's threads share, is then refused.
        """
        if name is not None:
            text = chosen_name(name)
            return start(text, False), CallName(text)
        sequence = self.sequence()
        if sequence is not None:
            return sequence.submit(key, lambda text: start(text, True))
        scope, _ = context.current().thread_names.scope()
        text = f"{self._calls.prefix(self.label, scope)}#"
        return start(text, False), CallName(text)


class Group:
    """Some ranks of the job; :func:`~horocache.mcr_dl.new_group` makes it. Operations on it involve only these ranks.

    A rank that is not in the group has the object, too; its operations on the group raise InvalidArgumentError.

    Role: a value that users keep and pass to operations.

    Args:
        process_set: the ranks, as horocache has them.
        label: a text that differs from other groups'; empty for the group of all ranks.
    """

    def __init__(self, process_set: ProcessSet, label: str) -> None:
        self.process_set = process_set
        self.label = label

    @property
    def number(self) -> int:
        """The number of the process set."""
        number = self.process_set.process_set_id
        if number is None:
            raise InvalidArgumentError(f"{self!r} has been removed; make another one with new_group().")
        return number

    @property
    def ranks(self) -> list[int]:
        """The global ranks of the group, ascending."""
        return self.process_set.ranks

    def size(self) -> int:
        """The number of ranks in the group."""
        return self.process_set.size()

    def rank(self) -> int:
        """This process's rank in the group, from 0; -1 if it is not in the group."""
        return self.process_set.rank() if self.process_set.included() else -1

    def __repr__(self) -> str:
        """Tell the global ranks."""
        ranks = "all ranks" if self.process_set is global_process_set else f"ranks {self.process_set.ranks}"
        return f"<mcr_dl.Group {self.label}: {ranks}>"


class GroupCalls:
    """The routes and the sequences of calls of one group.

    Role: owned by the session; shared by all threads.
    """

    def __init__(self, session: Session, group: Group) -> None:
        self.group = group
        self.routes: dict[str, Route] = {}  # by the backends as the program writes them
        self._session = session
        self._sequences: dict[tuple[str, str], Sequence] = {}

    def prefix(self, label: str, scope: str) -> str:
        """Return the beginning of names, for backends as the program writes them and the text of a thread."""
        return f"mcr_dl/{label}" + (self.group.label and f"@{self.group.label}") + (scope and f"#{scope}")

    def sequence(self, label: str, scope: str) -> Sequence:
        """Return the sequence of calls without a name for these backends and this thread."""
        found = self._sequences.get((label, scope))
        if found is None:
            of_thread = f" in thread {scope!r}" if scope else ""
            of_group = f" and {self.group!r}" if self.group.label else ""
            made = Sequence(self.prefix(label, scope), f"backend {label!r}{of_group}{of_thread}")
            found = self._sequences.setdefault((label, scope), made)
        return found

    def route(self, label: str) -> Route:
        """Return the route to these backends for the ranks of the group."""
        found = self.routes.get(label)
        if found is None:
            found = self.routes[label] = self._session.make_route(self, label)
        return found


class Session:
    """The state of mcr_dl from ``init`` to ``finalize``.

    Role: owned by this module; shared by all threads. It ends with the session of the daemon.

    Args:
        daemon: the running session of horocache.
        backends: the names that the program gave, in its order.
        owns_daemon: True if ``init`` started the daemon, and ``finalize`` is to end it.
    """

    def __init__(self, daemon: Daemon, backends: list[str], owns_daemon: bool) -> None:
        self.daemon = daemon
        self.runtime = daemon.runtime
        self.backends = backends
        self.owns_daemon = owns_daemon
        self.log: CommsLog | None = None
        self.number = state.count_session(daemon)
        self.backlog = Backlog()
        self.groups: dict[Group, GroupCalls] = {}  # those that are open
        self.world = self.add_group(Group(global_process_set, ""))
        self.made_groups = 0  # by new_group, whose calls are in the same order on all ranks
        self.routes = self.world.routes  # of the group of all ranks, by the backends as the program writes them
        self.in_flight: dict[Work, None] = {}  # in the order of submission, or of the last look
        self._unseen: deque[Work] = deque(maxlen=64)  # have failed, and the caller has not waited

    # ---- routes

    def calls_of(self, group: Any) -> GroupCalls:
        """Return the calls of a group that a program names: None is that of all ranks, and a ProcessSet is allowed.

        Raises:
            InvalidArgumentError: it is something else, has been destroyed, or this rank is not in it.
        """
        if group is None:
            return self.world
        if isinstance(group, ProcessSet):
            return self._calls_of_set(group)
        if not isinstance(group, Group):
            raise InvalidArgumentError(f"group must come from new_group(), or be a ProcessSet or None, not {group!r}.")
        found = self.groups.get(group)
        if found is None:
            raise InvalidArgumentError(
                f"{group!r} has been destroyed, or belongs to an earlier init(); make another one with new_group()."
            )
        group.process_set.rank()  # raises if this rank is not in it
        return found

    def _calls_of_set(self, process_set: ProcessSet) -> GroupCalls:
        if process_set is global_process_set:
            return self.world
        process_set.rank()
        number = process_set.process_set_id
        if number is None:
            raise InvalidArgumentError(f"{process_set!r} is not registered; see horocache.add_process_set().")
        label = f"set{number}"
        known = next((calls for group, calls in list(self.groups.items()) if group.label == label), None)
        return known or self.add_group(Group(process_set, label))

    def add_group(self, group: Group) -> GroupCalls:
        """Accept calls of a group from now on."""
        made = self.groups[group] = GroupCalls(self, group)
        return made

    def route(self, backend: Any, group: Any) -> Route:
        """Return the route of a call.

        Raises:
            InvalidArgumentError: a backend was not given to ``init``, an algorithm is unknown, or this rank is not in
                the group. UnsupportedError: the group has none of the backends.
        """
        calls = self.world if group is None else self.calls_of(group)
        return calls.route(backend if type(backend) is str else "|".join(backend))

    def make_route(self, calls: GroupCalls, label: str) -> Route:
        """Look up the backends of a label: ``auto``, or names with algorithms between ``|``."""
        group = calls.group
        there = {name: algorithms for name, algorithms, _ in self.runtime.backends(group.number)}
        asked = self.backends if label == AUTO else [text.strip() for text in label.split("|")]
        for text in asked:
            self._check(text, there)
        usable = [text for text in asked if text.partition("/")[0] in there]
        if not usable:
            raise UnsupportedError(
                f"the {len(group.ranks)} rank(s) {group.ranks} cannot use backend {label!r}: for them there are "
                f"{', '.join(there)}."
            )
        backend = "|".join(usable)
        if label == AUTO:
            # A backend alone, without others to choose from, would not be subject to the rules of the selector.
            backend = "" if usable == list(there) else backend if len(usable) > 1 else f"{backend}|{backend}"
        return Route(self, calls, label, (text.partition("/")[0] for text in usable), backend)

    def _check(self, text: str, there: dict[str, list[str]]) -> None:
        name, _, algorithm = text.partition("/")
        if name not in self.backends:
            raise InvalidArgumentError(
                f"backend {name!r} was not given to mcr_dl.init(); these were: {', '.join(self.backends)}."
            )
        if algorithm and name in there and algorithm not in there[name]:
            raise InvalidArgumentError(
                f"backend {name!r} has no algorithm {algorithm!r}; it has: {', '.join(there[name])}."
            )

    # ---- operations in flight

    def adopt(self, work: Work) -> Work:
        """Keep track of an operation until it is over, and finish old ones that are over."""
        if len(self.in_flight) >= MANY:
            self._sweep()
        self.in_flight[work] = None
        return work

    def _sweep(self) -> None:
        for work in list(islice(self.in_flight, 2)):
            if not work.is_completed():  # it may never be, so the others get their turn
                self.in_flight.pop(work, None)
                self.in_flight[work] = None
            elif work.exception() is not None:
                self._unseen.append(work)

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait for all operations in flight that may run on one of these backends.

        Raises:
            HorocacheError: the first failure among them, and among dropped operations that have ended since the last
                call.
        """
        wanted = frozenset(names)
        errors: list[BaseException] = []
        failed = [work for work in list(self._unseen) if work.route.names & wanted]
        for work in [*failed, *list(self.in_flight)]:
            if work.seen or not work.route.names & wanted:
                continue
            try:
                work.wait()
            except Exception as error:
                errors.append(error)
        for work in failed:
            if work in self._unseen:
                self._unseen.remove(work)
        if errors:
            raise errors[0]


class _State:
    """The process-wide state, of which ``state`` is the one instance; :mod:`horocache.mcr_dl.lifecycle` sets it."""

    session: Session | None = None
    daemon: Daemon | None = None  # for which the next two are
    sessions = 0  # of mcr_dl that have begun; all ranks begin the same ones
    # Of monitored barriers, by the number of the process set. They outlive a session, because their messages do.
    mailboxes: ClassVar[dict[int, Any]] = {}

    def count_session(self, daemon: Daemon) -> int:
        """Return the number of a session that begins, of those of the daemon."""
        if self.daemon is not daemon:
            self.daemon, self.sessions = daemon, 0
            self.mailboxes.clear()
        self.sessions += 1
        return self.sessions


state = _State()


def running() -> Session | None:
    """Return the session that runs, or None."""
    session = state.session
    return session if session is not None and session.daemon is context.state.session else None


def current() -> Session:
    """Return the session that runs.

    Raises:
        NotInitializedError: ``init`` has not been called, or ``finalize`` or ``horocache.shutdown`` has.
            ForkedProcessError: it runs in this process's parent.
    """
    session = state.session
    if session is not None and session.daemon is context.state.session:
        return session
    if context.state.session is None and context.state.inherited is not None:
        raise context.why_not_running()
    raise NotInitializedError("mcr_dl has not been initialized, or has been finalized; call mcr_dl.init() first.")
