"""What torch's compiler is told about functions of horocache.

Everything here is a mark on a function that the compiler reads when it meets the function: calls outside of compiled
programs cost what they cost without it, and the compiler, which takes a second to import, is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def _skip() -> Callable[[Any], object] | None:
    """What lets frames of a code object, and those that they call, run uncompiled; newer torch has it."""
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
    """True if this torch can run a function and all that it calls uncompiled."""
    return _skip_code is not None


def _function(function: Any) -> Any:
    return function.__func__ if isinstance(function, MethodType) else function


def outside(function: F, why: str = "it is no operation of a compiled graph") -> F:
    """Let a compiled program leave its graph for a call of ``function``, and go on compiled after it.

    What the function calls is not compiled either: these are no computations on tensors.
    """
    marked = _function(function)
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = f"horocache: {why}"
    if _skip_code is not None:
        _skip_code(marked.__code__)
    return function


def untraced(cls: C) -> C:
    """A class whose methods torch calls from C++ in the middle of compiled functions: they run as they are.

    The compiler looks at every Python function that is called then. These read the memory of tensors and talk to other
    processes, of which a graph knows nothing.
    """
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType) and _skip_code is not None:
            _skip_code(function.__code__)
    return cls


def traced_as(function: Callable[..., Any], twin: Callable[..., Any]) -> None:
    """Let a compiled program read ``twin`` where it calls ``function``; a method's twin gets the object, too."""
    marked = _function(function)
    marked._torchdynamo_inline = twin
    if _skip_code is not None:
        _skip_code(marked.__code__)


def in_checkpoint() -> bool:
    """Whether what the compiler reads is in a checkpointed region; called by the compiler itself, as it reads."""
    from torch._dynamo.symbolic_convert import InstructionTranslator  # noqa: PLC0415  (imported when this is called)

    part: Any = InstructionTranslator.current_tx().output.current_tracer
    while part is not None and "activation_checkpoint" not in str(part.source_target):
        part = part.parent
    return part is not None


cast(Any, in_checkpoint)._dynamo_marked_constant = True
