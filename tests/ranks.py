"""Tests whose body runs on the ranks of a job."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from horocache.testing import run_ranks


def with_parameters(function: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """Give a function the signature from which pytest takes its parameters; return it."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def calling_thread_is_in(function: str) -> Callable[[], bool]:
    """Return a condition: the thread that calls this function is in a function with that name."""
    caller = threading.get_ident()

    def holds() -> bool:
        frames = traceback.walk_stack(sys._current_frames()[caller])  # noqa: SLF001  (the only way to ask)
        return any(frame.f_code.co_name == function for frame, _ in frames)

    return holds


def signal_in_a_wait(begins: Callable[[], bool], signum: int) -> None:
    """Send this process a signal in the wait that begins soon after ``begins()`` has become true, within 40 s."""
    deadline = time.monotonic() + 40

    def send() -> None:
        while not begins():
            if time.monotonic() > deadline:
                raise TimeoutError("the wait that a signal was to interrupt has not begun")
            time.sleep(0.001)
        time.sleep(0.2)
        os.kill(os.getpid(), signum)

    threading.Thread(target=send).start()


def on_ranks(*sizes: int, run: Callable[..., Any] = run_ranks, init: bool = True, **options: Any) -> Callable[..., Any]:
    """Make a function a test that runs on every rank of a job.

    Each rank calls ``horocache.init()`` before the function and ``horocache.shutdown()`` after it. The ranks get the
    test's parameters, and the names of its module that it uses, by value. The parameters
    ``binding`` and ``moe_exchange`` also set these knobs.

    Args:
        sizes: the numbers of ranks; the test runs with each of them.
        run: starts the ranks, like :func:`horocache.testing.run_ranks`.
        init: False leaves ``horocache.init()`` to the function.
        options: more arguments for ``run``.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(body).parameters)

        def on_a_rank(case: dict[str, Any]) -> None:
            import horocache

            if init:
                horocache.init()
            body(**case)

        # run() sends the functions of this module by value.
        on_a_rank.__module__ = body.__module__

        @functools.wraps(body)
        def test(**case: Any) -> None:
            size = case.pop("_size") if len(sizes) > 1 else sizes[0]
            knobs = {name: case[name] for name in ("binding", "moe_exchange") if name in case}
            run(on_a_rank, size, args=(case,), **{**options, "knobs": {**options.get("knobs", {}), **knobs}})

        if len(sizes) == 1:
            return with_parameters(test, parameters)
        return pytest.mark.parametrize("_size", sizes)(with_parameters(test, ["_size", *parameters]))

    return decorate
