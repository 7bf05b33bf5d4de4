"""Marks on functions that tell torch's compiler how to treat them.

The compiler reads a mark when it encounters the function. Calls outside of compiled programs cost the same as without
the mark, and the compiler, which takes a second to import, is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def _skip() -> Callable[[Any], object] | None:
    """Return a function that makes a code object, and all that it calls, run uncompiled; None in older torch."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    try:
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)
        assign: Callable[[Any, Any], object] = frames.set_code_exec_strategy
    except AttributeError:
        return None
    return lambda code: assign(code, strategy)


_skip_code = _skip()


def can_skip_frames() -> bool:
    """Return True if this torch can run a function and all that it calls uncompiled."""
    return _skip_code is not None


def _function(function: Any) -> Any:
    return function.__func__ if isinstance(function, MethodType) else function


def outside(function: F, why: str = "it is not an operation of a compiled graph") -> F:
    """Make a compiled program leave its graph for a call of ``function``, and continue compiled after it.

    Functions that it calls are not compiled, either, because they do not compute on tensors.
    """
    marked = _function(function)
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = f"horocache: {why}"
    if _skip_code is not None:
        _skip_code(marked.__code__)
    return function


def untraced(cls: C) -> C:
    """Make the methods of ``cls`` run uncompiled when torch's C++ code calls them within compiled functions.

    The compiler would otherwise trace every Python function that is called there. These methods read the memory of
    tensors and communicate with other processes, which a graph cannot express.
    """
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType) and _skip_code is not None:
            _skip_code(function.__code__)
    return cls


def traced_as(function: Callable[..., Any], variant: Callable[..., Any]) -> None:
    """Make the compiler trace ``variant`` instead of ``function``; a method's traced variant gets the object, too."""
    marked = _function(function)
    marked._torchdynamo_inline = variant
    if _skip_code is not None:
        _skip_code(marked.__code__)


def in_checkpoint() -> bool:
    """Return True if the compiler traces a checkpointed region. The compiler calls this itself while it traces."""
    from torch._dynamo.symbolic_convert import InstructionTranslator  # noqa: PLC0415  (imported when this is called)

    part: Any = InstructionTranslator.current_tx().output.current_tracer
    while part is not None and "activation_checkpoint" not in str(part.source_target):
        part = part.parent
    return part is not None


cast(Any, in_checkpoint)._dynamo_marked_constant = True
