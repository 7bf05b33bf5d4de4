"""The semantics of every collective, once for all frameworks.

:class:`Collectives` is generic over a :class:`~horocache.collectives.tensor_adapter.TensorAdapter`: the functions of ``horocache`` are its
methods on NumPy arrays, and ``horocache.torch`` puts autograd around the same methods. The rest of what frameworks need
from here is re-exported below.
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

    Names: tensors are matched across ranks by name. Without one, a name is made from the order of the calls in the
    program, which must then be the same on all ranks. A name may be in flight once at a time. Messages have no names.

    All operations raise NotInitializedError before ``init``; InvalidArgumentError and UnsupportedError for arguments
    that this rank can judge alone; DuplicateNameError if the name is in flight; and, from the blocking form or
    :func:`synchronize`, MismatchError, PeerLostError, StallError, ShutDownError or AbortedError.

    Role: stateless but for the adapter; shared by all threads.
    """
