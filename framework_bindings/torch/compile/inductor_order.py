"""Keeps the operators of :mod:`horocache.torch.compile.custom_ops` in order in the code that Inductor generates.

Inductor makes each effectful operator depend on the one before it. torch 2.13 writes these dependencies down under the
names of buffers and looks them up under the names of operations, so they are lost, and operators that share no data are
sorted by memory use. Here they are written down under the right names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from horocache.errors import UnsupportedError
from torch._library.effects import EffectType


def keep_order_in_generated_code(operators: Iterable[Any]) -> None:
    """Register how Inductor lowers the operators, once, if it is loaded.

    Fake kernels call this: Inductor runs them itself, after it has been imported and before it lowers a graph. It takes
    a second to import, so nobody else imports it.
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
