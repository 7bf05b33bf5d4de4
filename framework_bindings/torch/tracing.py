"""What torch's compiler is told about functions of horocache.

Everything here is a mark on a function that the compiler reads when it meets the function: calls outside of compiled
programs cost what they cost without it, and the compiler, which takes a second to import, is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

# Numbers that a compiled program takes as constants, and guards: another job's make it compile again.
_CONSTANTS = frozenset(
    (
        "cross_rank",
        "cross_size",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "rank",
        "size",
        *(f"{library}_built" for library in ("ccl", "cuda", "ddl", "gloo", "mpi", "nccl", "rocm")),
        "gloo_enabled",
        "mpi_enabled",
    )
)


def _graphs_take_collectives() -> bool:
    """Whether torch can keep collectives in a graph; see Note [Collectives in compiled graphs]."""
    return (
        _skip_code is not None
        and hasattr(torch.library, "register_autograd")
        and hasattr(torch.library.Library, "_register_effectful_op")
    )


def tell_the_compiler(public: Mapping[str, Any], shared: object) -> None:
    """Mark functions: those with a twin, those that are constants, and all others as outside of graphs.

    Args:
        public: the names of ``horocache.torch``.
        shared: has, as methods, operations that other modules call and that other frameworks share.
    """
    if _graphs_take_collectives():
        from .compiled import give_twins  # noqa: PLC0415  (it needs what older torch does not have)

        give_twins(public)
    methods = [getattr(shared, name) for name in dir(shared) if not name.startswith("_")]
    for thing in (*methods, *public.values()):
        known = hasattr(thing, "_torchdynamo_inline") or getattr(thing, "__name__", "") in _CONSTANTS
        if isinstance(thing, (FunctionType, MethodType)) and not known:
            outside(thing)
