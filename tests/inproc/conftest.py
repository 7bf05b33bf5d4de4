"""N runtimes in N threads of one process, over an arena on the heap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from horocache import _core
from horocache.base.request import Request

PATIENCE_S = 60.0


def submit(runtime: Any, *arguments: Any, **more: Any) -> int:
    """Submit an operation with the fields of a Request; return its handle."""
    return runtime.submit(Request(*arguments, **more))


def run_ranks(
    size: int,
    body: Callable[[int, Any], Any],
    process_sets: Sequence[Sequence[int]] = (),
    programs: bytes = b"",
    **knobs: str,
) -> list[Any]:
    """Run ``body(rank, runtime)`` on a thread per rank; returns the results by rank, or raises the first error."""
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


@pytest.fixture(params=[1, 2, 3, 4])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)
