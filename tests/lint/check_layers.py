"""Includes go down the stack of layers, never up; the pure layers use no clock, environment, socket, lock or thread.

The order is the one of HC_LAYERS in CMakeLists.txt, with the bindings above them, and above all what only tests use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from common import Finding, files, run

TOP = ("capi", "python", "tensorflow", "testing")
PURE = ("wire", "control")
IMPURE_HEADERS = {
    *("chrono", "thread", "mutex", "shared_mutex", "condition_variable", "atomic", "future", "semaphore", "latch"),
    *("barrier", "stop_token", "ctime", "time.h", "unistd.h", "pthread.h", "poll.h", "fcntl.h", "fstream", "iostream"),
    *("base/clock.h", "base/environment.h", "base/futex.h", "base/log.h", "base/mutex.h", "base/stillness.h"),
    "base/thread.h",
}
INCLUDE = re.compile(r'\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")')


def layer_order(root: Path) -> tuple[str, ...]:
    """Return the layers from the bottom up."""
    match = re.search(r"set\(HC_LAYERS ([^)]*)\)", (root / "CMakeLists.txt").read_text(encoding="utf-8"))
    if match is None:
        raise SystemExit("CMakeLists.txt: no line set(HC_LAYERS ...)")
    return (*match.group(1).split(), *TOP)


def check_include(layer: str, header: str, layers: tuple[str, ...]) -> str | None:
    """Return why a file of ``layer`` may not include ``header``; None if it may."""
    if layer in PURE and (header in IMPURE_HEADERS or header.startswith("sys/")):
        return f"{layer}/ is pure (no clock, environment, socket, lock or thread) and must not include {header}"
    below = header.split("/", maxsplit=1)[0] if "/" in header else layer
    if below not in layers:
        return None
    if layers.index(below) > layers.index(layer):
        return f"{layer}/ must not include {header}: {below}/ is above it ({' < '.join(layers)})"
    if layer == "tensorflow" and below not in ("tensorflow", "base") and header != "capi/hc.h":
        return "tensorflow/ is a library of its own, which has the core's C interface and base/ alone"
    return None


def check(root: Path) -> Iterator[Finding]:
    """Check every include of cpp_core."""
    layers = layer_order(root)
    for path in files(root, ("cpp_core",), (".h", ".cc")):
        layer = path.relative_to(root / "cpp_core").parts[0]
        if layer not in layers:
            yield Finding(path, 1, f"folder {layer}/ is no layer; add it to HC_LAYERS in CMakeLists.txt")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            match = INCLUDE.match(line)
            problem = check_include(layer, match.group(1) or match.group(2), layers) if match else None
            if problem:
                yield Finding(path, number, problem)


if __name__ == "__main__":
    run(check, __doc__)
