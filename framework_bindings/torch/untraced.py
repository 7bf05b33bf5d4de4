"""Keeps torch.compile away from code that torch calls back from C++ in the middle of compiled functions."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch

T = TypeVar("T", bound=type)


def untraced(cls: T) -> T:
    """A class whose methods, and what they call, run as they are while a compiled function runs.

    Dynamo looks at every Python function that is called then. These read the memory of tensors and talk to other
    processes, of which a graph knows nothing. ``torch.compiler.disable`` would do, but imports the whole compiler.
    """
    eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if not hasattr(eval_frame, "set_code_exec_strategy"):  # before torch 2.8
        return cls
    skip = eval_frame._FrameAction.SKIP
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function):
            eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return cls
