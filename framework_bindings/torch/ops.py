"""The collectives on torch tensors, differentiable where they are blocking and return new tensors.

They are the methods of :class:`horocache.collectives.operations.Collectives`. Those with a gradient formula take the
way of autograd if a tensor requires a gradient. The others are asynchronous, store their results in their tensors, or
give some ranks no result, and messages have a peer whose operations this rank's graph does not record.

``ops.pyi``, which ``make docs`` writes, shows the functions to type checkers and editors.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from horocache.collectives.api import check_op, resolve_op
from horocache.collectives.operations import NAMES

from . import autograd
from .adapter import collectives
from .compression import Compression

Tensors = Sequence[torch.Tensor]
Arguments = Mapping[str, Any]  # of a public function, by name, defaults filled in


class Formula(NamedTuple):
    """A collective with a gradient."""

    forward: Callable[[Tensors, Arguments, bool], Any]  # (tensors, arguments, True for a group) -> results
    note: str  # of the docstring


def _apply(function: Any, *arguments: Any) -> Any:
    return function.apply(*arguments)


def _compression(arguments: Arguments) -> Any:
    return Compression.none if arguments["compression"] is None else arguments["compression"]


def _scales(arguments: Arguments) -> tuple[float, float]:
    return arguments["prescale_factor"], arguments["postscale_factor"]


def _place(arguments: Arguments) -> tuple[Any, Any]:
    return arguments["process_set"], arguments["backend"]


def _allreduce(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    op = resolve_op(arguments["op"], arguments["average"])
    how = (arguments["name"], _compression(arguments), op, _scales(arguments), *_place(arguments))
    return _apply(autograd.Allreduce, *how, group, arguments["priority"], *tensors)


def _allgather(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    return _apply(autograd.Allgather, arguments["name"], *_place(arguments), group, *tensors)


def _broadcast(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    root, name = arguments["root_rank"], arguments["name"]
    return _apply(autograd.Broadcast, root, name, *_place(arguments), group, *tensors)


def _alltoall(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    splits = arguments["splits"]
    results = _apply(autograd.Alltoall, splits, arguments["name"], *_place(arguments), group, *tensors)
    outputs, received = results[: len(tensors)], results[len(tensors) :]
    return outputs if splits is None else list(zip(outputs, received, strict=True))


def _reducescatter(tensors: Tensors, arguments: Arguments, group: bool) -> Any:
    how = (arguments["name"], _compression(arguments), check_op(arguments["op"]), *_place(arguments))
    return _apply(autograd.Reducescatter, *how, _scales(arguments), group, *tensors)


_LIKE_FORWARD = "Differentiable for Average and Sum: the backward pass {}. Any other op raises UnsupportedError there."
FORMULAS = {
    "allreduce": Formula(_allreduce, _LIKE_FORWARD.format("reduces the gradient in the same way, on the same backend")),
    "allgather": Formula(
        _allgather,
        "Differentiable: the backward pass averages the gradient over the ranks; each rank gets the rows of its own "
        "tensor.",
    ),
    "broadcast": Formula(
        _broadcast, "Differentiable: the root gets the mean of the ranks' gradients, the other ranks get zeros."
    ),
    "alltoall": Formula(
        _alltoall,
        "Differentiable: the backward pass sends each row of the gradient to the rank that the row came from.",
    ),
    "reducescatter": Formula(_reducescatter, _LIKE_FORWARD.format("scales the gradient and gathers it")),
}


def _needs_grad(tensors: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def _differentiable(method: Any, formula: Formula, group: bool) -> Callable[..., Any]:
    """Return a function with the method's arguments that takes the way of autograd if a tensor requires a gradient."""
    signature = inspect.signature(method)
    first = next(iter(signature.parameters))

    @functools.wraps(method)
    def call(*positional: Any, **named: Any) -> Any:
        given = positional[0] if positional else named.get(first)
        tensors = [given] if not group else given if isinstance(given, (list, tuple)) else []
        if not _needs_grad(tensors):  # the method also refuses what is not a list
            return method(*positional, **named)
        bound = signature.bind(*positional, **named)
        bound.apply_defaults()
        results = formula.forward(tensors, bound.arguments, group)
        return list(results) if group else results[0]

    summary, _, rest = str(method.__doc__).partition("\n\n")
    call.__doc__ = f"{summary}\n\n{textwrap.fill(formula.note, 112)}\n\n{rest}"
    call.__module__, call.__qualname__ = __name__, call.__name__
    return call


def _function(name: str) -> Any:
    method = getattr(collectives, name)
    formula = FORMULAS.get(name.removeprefix("grouped_"))
    return method if formula is None else _differentiable(method, formula, name.startswith("grouped_"))


__all__ = list(NAMES)
globals().update({name: _function(name) for name in NAMES})
