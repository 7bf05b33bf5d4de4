"""All collectives in one class, and the table of their descriptions, from which the lists of public names come."""

from __future__ import annotations

from typing import TypeVar

from horocache.collectives.allgather import ALLGATHER, ALLGATHERV, Allgather
from horocache.collectives.allreduce import ALLREDUCE, Allreduce
from horocache.collectives.alltoall import ALLTOALL, ALLTOALLV, Alltoall
from horocache.collectives.broadcast import BROADCAST, Broadcast
from horocache.collectives.forms import forms_of
from horocache.collectives.gather import GATHER, GATHERV, Gather
from horocache.collectives.reduce import REDUCE, Reduce
from horocache.collectives.reducescatter import REDUCESCATTER, REDUCESCATTERV, Reducescatter
from horocache.collectives.scatter import SCATTER, SCATTERV, Scatter
from horocache.collectives.send_recv import Messages
from horocache.collectives.shared_tensor import SharedMemory

T = TypeVar("T")

COLLECTIVES = (
    *(ALLREDUCE, ALLGATHER, ALLGATHERV, BROADCAST, ALLTOALL, ALLTOALLV, REDUCESCATTER, REDUCESCATTERV),
    *(REDUCE, GATHER, GATHERV, SCATTER, SCATTERV),
)
# The public methods of Collectives that are not derived from a description.
OTHERS = (
    "allreduce_many_async_",
    *("send", "recv", "isend", "irecv", "sendrecv"),
    *("empty", "empty_shared", "is_shared"),
)
NAMES = sorted([form.name for collective in COLLECTIVES for form in forms_of(collective)] + list(OTHERS))


class Collectives(
    Allreduce[T],
    Reduce[T],
    Allgather[T],
    Alltoall[T],
    Reducescatter[T],
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
