"""Keeps the operators of :mod:`horocache.torch.compile.custom_ops` in order in the code that Inductor generates.

Inductor makes each effectful operator depend on the previous one. torch 2.13 stores these dependencies under names of
buffers and looks them up under names of operations, so they are lost, and operators that share no data are sorted by
memory use. This module stores them under the names of operations.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from horocache.errors import UnsupportedError
from torch._library.effects import EffectType


def keep_order_in_generated_code(operators: Iterable[Any]) -> None:
    """Register the lowerings of the operators with Inductor, once, if Inductor is loaded.

    Fake kernels call this: Inductor runs them itself, after it has been imported and before it lowers a graph. Inductor
    takes a second to import, so horocache does not import it.
    """
    if (lowering := sys.modules.get("torch._inductor.lowering")) is None:
        return
    for operator in operators:
        if operator not in lowering.lowerings:
            lowering.register_lowering(operator, type_promotion_kind=None)(_lowering_of(operator, lowering))


def _lowering_of(operator: torch._ops.OpOverload[Any, Any], lowering: Any) -> Any:
    call_it = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lower(*arguments: Any) -> Any:
        graph = lowering.V.graph
        if graph.cpp_wrapper:  # torch 2.13 crashes where operators return lists of tensors
            raise UnsupportedError(
                "collectives cannot be in the C++ code that Inductor generates with cpp_wrapper=True or for export. "
                "Compile without it, or call them outside of the compiled part."
            )
        first = len(graph.operations)
        previous = graph.effectful_ops.get(EffectType.ORDERED)
        result = call_it(*arguments)
        if previous is not None:
            for operation in graph.operations[first:]:
                graph.additional_star_deps[operation.get_operation_name()].add(previous.get_name())
        return result

    return lower
