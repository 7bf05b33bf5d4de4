"""The core's numbers of operations: ``wire::Op`` of ``cpp_core/wire/message.h``."""

from __future__ import annotations

OP_ALLREDUCE = 0
OP_ALLGATHER = 1
OP_BROADCAST = 2
OP_REDUCESCATTER = 3
OP_ALLTOALL = 4
OP_REDUCE = 5
OP_GATHER = 6
OP_SCATTER = 7
OP_BARRIER = 8
OP_JOIN = 9
OP_SEND = 11
OP_RECV = 12
# The names of the operations on tensors, by code.
OP_NAMES = {
    OP_ALLREDUCE: "allreduce",
    OP_ALLGATHER: "allgather",
    OP_BROADCAST: "broadcast",
    OP_REDUCESCATTER: "reducescatter",
    OP_ALLTOALL: "alltoall",
    OP_REDUCE: "reduce",
    OP_GATHER: "gather",
    OP_SCATTER: "scatter",
}
