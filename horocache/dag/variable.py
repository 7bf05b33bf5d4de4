"""Variables, which operations read and write."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from horocache.errors import InvalidArgumentError, MismatchError

if TYPE_CHECKING:
    from horocache.dag.engine import Engine


class Var:
    """A variable of an engine: a name for something that operations read and write.

    It holds no value. It is deleted with its last reference, once the operations that use it have ended.

    Role: made by :meth:`Engine.var`; used by any thread.

    Attributes:
        engine: the engine.
        name: for messages and drawings.
    """

    __slots__ = ("__weakref__", "_handle", "engine", "name")

    def __init__(self, engine: Engine, name: str, handle: int) -> None:
        """Wrap the core's handle."""
        self.engine = engine
        self.name = name
        self._handle: int | None = handle

    @property
    def handle(self) -> int:
        """The core's handle. Raises InvalidArgumentError if the variable has been deleted."""
        if self._handle is None:
            raise InvalidArgumentError(f"the variable {self.name!r} has been deleted.")
        return self._handle

    @property
    def version(self) -> int:
        """How many operations that write it have ended."""
        return self.engine.core.version(self.handle)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the operations that write it, of those pushed so far, have ended; see :meth:`Engine.wait`."""
        self.engine.wait(self, timeout=timeout)

    def delete(self) -> None:
        """Take no further operations. Those that use the variable end as usual; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self.engine.core.delete_variable(handle)

    def __await__(self) -> Generator[Any, None, None]:
        """Wait within asyncio, without a thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def end(error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self.engine.when_written(self, lambda error: loop.call_soon_threadsafe(end, error))
        return future.__await__()

    def __repr__(self) -> str:
        """Tell the name and the version."""
        return f"<Var {self.name!r}, {'deleted' if self._handle is None else f'version {self.version}'}>"

    def __del__(self) -> None:
        """Delete it."""
        if getattr(self, "_handle", None) is not None:
            self.delete()


class Lane(Var):
    """A variable that only orders the collectives of a lane: one by one, in the order of their pushes.

    It takes no exception from them. But if the ranks put different collectives into one place of the lane, it stops:
    the later ones end with the same MismatchError, without being submitted, as their order is not that of the other
    ranks.

    Role: made by :meth:`Engine.lane`.

    Attributes:
        stopped: the error at which the lane has stopped.
    """

    __slots__ = ("stopped",)

    def __init__(self, engine: Engine, name: str, handle: int) -> None:
        """Wrap the core's handle."""
        super().__init__(engine, name, handle)
        self.stopped: MismatchError | None = None
