"""``horovod.runner.util.threads``: threads that Horovod's tests start."""

import threading
from collections.abc import Callable
from typing import Any

from horocache.errors import InvalidArgumentError


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a thread that calls ``target(*args)``.

    Args:
        target: any function.
        args: its arguments.
        name: the thread's.
        daemon: whether the process ends without waiting for it.
        silent: whether an exception ends the thread without a word.

    Raises:
        InvalidArgumentError: ``args`` is not a tuple.
    """
    if not isinstance(args, tuple):
        raise InvalidArgumentError(f"in_thread() needs its arguments as a tuple, not as {type(args).__name__}.")

    def quiet() -> None:
        try:
            target(*args)
        except Exception:  # what the caller has asked for
            return

    thread = threading.Thread(target=quiet) if silent else threading.Thread(target=target, args=args)
    thread.name, thread.daemon = name or thread.name, daemon
    thread.start()
    return thread
