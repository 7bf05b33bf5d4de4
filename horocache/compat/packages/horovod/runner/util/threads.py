"""``horovod.runner.util.threads``: starts threads; Horovod's tests use it."""

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
        args: the function's arguments.
        name: the name of the thread; generated when omitted.
        daemon: True if the process may end without waiting for the thread.
        silent: True if an exception ends the thread without a message.

    Returns:
        The started thread.

    Raises:
        InvalidArgumentError: ``args`` is not a tuple.
    """
    if not isinstance(args, tuple):
        raise InvalidArgumentError(f"in_thread() needs its arguments as a tuple, not as {type(args).__name__}.")

    def quiet() -> None:
        try:
            target(*args)
        except Exception:  # ignored, because the caller asked for it by silent=True
            return

    thread = threading.Thread(target=quiet) if silent else threading.Thread(target=target, args=args)
    thread.name, thread.daemon = name or thread.name, daemon
    thread.start()
    return thread
