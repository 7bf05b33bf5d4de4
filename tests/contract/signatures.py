"""Checks that a function takes the arguments of Horovod's function, in their order and with their defaults."""

from __future__ import annotations

import inspect
from types import ModuleType

SHORT = {
    "ps": "process_set=global_process_set",
    "scales": "prescale_factor=1.0, postscale_factor=1.0",
    "compression": "compression=Compression.none",
    "devices": "device_dense='', device_sparse=''",
}


def lines_of(signatures: str) -> list[str]:
    """The signatures, one per line, with their abbreviations expanded."""
    return [line.format(**SHORT) for line in signatures.strip().splitlines()]


def _expected(line: str, module: ModuleType) -> list[tuple[str, object]]:
    """The parameters that a line describes, as (name, default)."""
    names = vars(module) | {"__builtins__": {}}
    function = eval(f"lambda {line[line.index('(') + 1 : -1]}: 0", names)
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


def check_signature(line: str, module: ModuleType) -> None:
    """Raise AssertionError unless the module's function of that name accepts calls by the signature ``line``."""
    name = line.partition("(")[0]
    parameters = list(inspect.signature(getattr(module, name)).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    wanted = _expected(line, module)
    got = [(p.name, p.default) for p in positional[: len(wanted)]]
    assert [n for n, _ in got] == [n for n, _ in wanted]
    for (argument, default), (_, want) in zip(got, wanted, strict=True):
        # None stands for Compression.none in functions that all frameworks share.
        assert default == want or (argument == "compression" and default is None), argument
    more = [p for p in parameters if p not in positional[: len(wanted)]]
    assert all(p.default is not p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in more)
