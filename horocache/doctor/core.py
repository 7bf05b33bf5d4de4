"""Findings of ``doctor`` about the core: version, kernels, the launcher of this process, and every knob."""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from horocache.core.launcher_environment import own_environment
from horocache.doctor.finding import Finding, State
from horocache.errors import HorocacheError

_REINSTALL = "install it again: pip install --force-reinstall --no-deps horocache (in a checkout: make build)"


def look() -> Iterator[Finding]:
    """Check the installation."""
    yield Finding("horocache", "python", f"{sys.version.split()[0]} at {sys.executable}")
    installed = installed_version()
    yield Finding("horocache", "version", installed or "not installed (run from a checkout)")
    try:
        from horocache import _core  # noqa: PLC0415  (that it cannot be loaded is a finding)
    except ImportError as error:
        yield Finding("horocache", "core", f"cannot be loaded: {error}", State.PROBLEM, _REINSTALL)
        return
    yield _build(_core, installed)
    yield Finding("horocache", "kernels", f"{_core.cpu_kernels()} for reductions")
    yield _c_library(_core)
    try:
        values = _core.parse_knobs({})
    except HorocacheError as error:
        yield Finding("knobs", "environment", str(error), State.PROBLEM, "correct or unset that variable")
        return
    yield _identity(_core)
    yield from _knobs(_core, values)


def _build(core: Any, installed: str | None) -> Finding:
    where = getattr(core, "__file__", "(built in)")
    if installed is not None and core.__version__ != installed:
        value = f"{core.__version__} at {where}, but the package is {installed}"
        return Finding("horocache", "core", value, State.PROBLEM, _REINSTALL)
    return Finding("horocache", "core", f"{core.__version__} at {where}")


def _c_library(core: Any) -> Finding:
    path = Path(core.__file__).with_name("libhorocache.so")
    if path.exists():
        return Finding("horocache", "C interface", str(path))
    return Finding("horocache", "C interface", "libhorocache.so is missing", State.WARNING, _REINSTALL)


def _identity(core: Any) -> Finding:
    try:
        found = core.identity()
    except HorocacheError as error:
        fix = "start ranks with horocacherun, torchrun or srun, or unset the variables named"
        return Finding("horocache", "launcher", str(error), State.PROBLEM, fix)
    if found["source"] == "none":
        return Finding("horocache", "launcher", "none: init() here makes a job of one rank", State.INFO)
    value = f"{found['source']}: rank {found['rank']} of {found['size']}, job {found['job']}"
    return Finding("horocache", "launcher", value)


def _knobs(core: Any, values: Mapping[str, tuple[str, str]]) -> Iterator[Finding]:
    for knob in core.knob_table():
        value, source = values[knob["name"]]
        state = State.OK if source == "default" else State.INFO
        yield Finding("knobs", knob["name"], f"{value or '(none)'}  [{_variable(knob, source)}]", state)
    aliases = {knob["alias"] for knob in core.knob_table()}
    for name in sorted(own_environment()):
        if name.startswith("HOROVOD_") and name not in aliases:
            fix = "unset it; the table of knobs in the documentation names the variables of Horovod that count"
            yield Finding("knobs", name, "is set, but means nothing to horocache", State.WARNING, fix)


def _variable(knob: dict[str, str], source: str) -> str:
    name = {"environment": f"HOROCACHE_{knob['name'].upper()}", "horovod environment": knob["alias"]}.get(source)
    return f"{source}: {name}" if name else source


def installed_version() -> str | None:
    """Return the installed version; None in a checkout."""
    try:
        return importlib.metadata.version("horocache")
    except importlib.metadata.PackageNotFoundError:
        return None
