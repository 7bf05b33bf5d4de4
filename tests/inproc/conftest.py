"""N runtimes in N threads of one process, over an arena on the heap."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ranks import with_parameters

from horocache import _core

PATIENCE_S = 60.0
KNOBS = frozenset(knob["name"] for knob in _core.knob_table())


def run_ranks(
    size: int,
    body: Callable[[int, Any], Any],
    process_sets: Sequence[Sequence[int]] = (),
    programs: bytes = b"",
    **knobs: str,
) -> list[Any]:
    """Run ``body(rank, runtime)`` on a thread per rank; return the results by rank, or raise the first error."""
    runtimes = _core.start_in_process(size, knobs, process_sets, programs)
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []

    def main(rank: int) -> None:
        try:
            results[rank] = body(rank, runtimes[rank])
        except BaseException as error:  # raised by the test's thread
            errors.append((rank, error))
            runtimes[rank].abort(f"rank {rank} raised {error!r}")
        finally:
            runtimes[rank].stop()

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    if errors:
        raise errors[0][1]
    return results


def on_ranks(
    *sizes: Any,
    process_sets: Sequence[Sequence[int]] = (),
    programs: bytes | Callable[[int], bytes] = b"",
    **knobs: str,
) -> Callable[..., Any]:
    """Make a function a test that runs on every rank, each with a thread and a runtime of its own.

    The function's parameters ``rank`` and ``runtime`` are the rank's number and its runtime. The ranks share the
    values of the other parameters, which are parameters of the test. A parameter with the name of a knob also sets
    that knob, and ``size`` is the number of ranks.

    Args:
        sizes: the numbers of ranks, perhaps as ``pytest.param``; the test runs with each of them.
        process_sets: the ranks of each process set besides the global one.
        programs: the library of compiled programs, or a function that returns it for a number of ranks.
        knobs: the texts of knobs, by name.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        own = [name for name in inspect.signature(body).parameters if name not in ("rank", "runtime")]

        @functools.wraps(body)
        def test(size: int, **case: Any) -> None:
            case_knobs = {name: value for name, value in case.items() if name in KNOBS}
            arguments = {"size": size, **case} if "size" in own else case
            library = programs(size) if callable(programs) else programs
            bound = functools.partial(body, **arguments)
            run_ranks(size, bound, process_sets, library, **{**knobs, **case_knobs})

        names = ["size", *(name for name in own if name != "size")]
        return pytest.mark.parametrize("size", sizes)(with_parameters(test, names))

    return decorate


@pytest.fixture
def event() -> threading.Event:
    """An event that the ranks share."""
    return threading.Event()


@pytest.fixture
def barrier(size: int) -> threading.Barrier:
    """A barrier of all ranks."""
    return threading.Barrier(size, timeout=PATIENCE_S)
