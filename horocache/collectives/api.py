"""The semantics of every collective, defined once for all frameworks.

:class:`Collectives` is generic over a :class:`~horocache.collectives.tensor_adapter.TensorAdapter`. The functions of
``horocache`` are its methods on NumPy arrays, and ``horocache.torch`` adds autograd to the same methods. This module
also re-exports the other names that frameworks need.
"""

from __future__ import annotations

from horocache.base.operation_codes import OP_ALLREDUCE
from horocache.collectives.arguments import Name, full_name, set_id
from horocache.collectives.barrier import barrier
from horocache.collectives.completion import Handle, poll, synchronize
from horocache.collectives.join import join
from horocache.collectives.operations import Collectives
from horocache.collectives.reduce_op import (
    Adasum,
    And,
    Average,
    Max,
    Min,
    Or,
    Product,
    ReduceOp,
    Sum,
    Xor,
    check_op,
    resolve_op,
)

__all__ = [
    "OP_ALLREDUCE",
    "Adasum",
    "And",
    "Average",
    "Collectives",
    "Handle",
    "Max",
    "Min",
    "Name",
    "Or",
    "Product",
    "ReduceOp",
    "Sum",
    "Xor",
    "barrier",
    "check_op",
    "full_name",
    "join",
    "poll",
    "resolve_op",
    "set_id",
    "synchronize",
]
