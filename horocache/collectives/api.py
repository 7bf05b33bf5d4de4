"""The semantics of every collective, defined once for all frameworks.

:class:`Collectives` is generic over a :class:`~horocache.collectives.tensor_adapter.TensorAdapter`. The functions of
``horocache`` are its methods on NumPy arrays, and ``horocache.torch`` adds autograd to the same methods. This module
also re-exports the other names that frameworks need.
"""

from __future__ import annotations

from typing import TypeVar

from horocache.base.operation_codes import OP_ALLREDUCE
from horocache.collectives.allgather_broadcast import Broadcast
from horocache.collectives.allreduce_in_place import AllreduceInPlace
from horocache.collectives.arguments import Name, full_name, set_id
from horocache.collectives.barrier import barrier
from horocache.collectives.completion import poll, synchronize
from horocache.collectives.in_place import InPlace
from horocache.collectives.join import join
from horocache.collectives.reduce_op import Adasum, And, Average, Max, Min, Or, Product, Sum, Xor, check_op, resolve_op
from horocache.collectives.rooted import Gather, Reduce, Scatter
from horocache.collectives.send_recv import Messages
from horocache.collectives.shared_tensor import SharedMemory

__all__ = [
    "OP_ALLREDUCE",
    "Adasum",
    "And",
    "Average",
    "Collectives",
    "Max",
    "Min",
    "Name",
    "Or",
    "Product",
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

T = TypeVar("T")


class Collectives(
    AllreduceInPlace[T],
    Reduce[T],
    InPlace[T],
    Gather[T],
    Broadcast[T],
    Scatter[T],
    Messages[T],
    SharedMemory[T],
):
    """The collectives on one framework's tensors, and messages between two ranks.

    Names: the ranks match tensors by name. An omitted name is generated from the order of the calls in the program,
    which must then be the same on all ranks. A name can be in flight only once at a time. Messages have no names.

    Errors: every operation raises NotInitializedError before ``init``, InvalidArgumentError and UnsupportedError for
    arguments that this rank can check alone, and DuplicateNameError if the name is in flight. The blocking form and
    :func:`synchronize` also raise MismatchError, PeerLostError, StallError, ShutDownError and AbortedError.

    Role: stateless except for the adapter; shared by all threads.
    """
