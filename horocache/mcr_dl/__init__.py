"""Several communication backends in one program: ``import horocache.mcr_dl as mcr_dl``.

Every operation names its backend first, as in MCR-DL (Listing 1 of "MCR-DL: Mix-and-Match Communication Runtime for
Deep Learning", IPDPS 2023)::

    mcr_dl.init(["shm", "mpi"])
    h1 = mcr_dl.all_reduce("shm", x, async_op=True)
    h2 = mcr_dl.all_to_all_single("mpi", y, z, async_op=True)
    h1.wait()
    h2.wait()

All operations run on the daemon of horocache, whose coordinator puts them into one order. So ranks may use backends in
any order without a deadlock. Tensors are torch tensors or NumPy arrays. ``docs/explanation/mcr_dl.md`` explains more.
"""

from horocache.mcr_dl.barriers import barrier, monitored_barrier
from horocache.mcr_dl.comms_log import LogRecord, configure, log_records
from horocache.mcr_dl.gathering import all_gather, all_gatherv, bcast, gather, gatherv
from horocache.mcr_dl.groups import destroy_process_group, new_group
from horocache.mcr_dl.lifecycle import (
    finalize,
    get_backends,
    get_rank,
    get_size,
    init,
    is_initialized,
    synchronize,
    wait,
)
from horocache.mcr_dl.log_summary import Summary, SummaryRow, log_summary
from horocache.mcr_dl.messages import irecv, isend, recv, send, sendrecv
from horocache.mcr_dl.pytorch_names import (
    all_gather_coalesced,
    all_gather_into_tensor,
    all_reduce_coalesced,
    allgather_fn,
    broadcast,
    get_all_ranks_from_group,
    get_global_rank,
    get_local_rank,
    get_world_size,
    has_all_gather_into_tensor,
    has_all_reduce_coalesced,
    has_coalescing_manager,
    has_reduce_scatter_tensor,
    inference_all_reduce,
    init_distributed,
    is_available,
    reduce_scatter_fn,
    reduce_scatter_tensor,
)
from horocache.mcr_dl.reduce_op import ReduceOp
from horocache.mcr_dl.reductions import all_reduce, reduce, reduce_scatter, reduce_scatterv
from horocache.mcr_dl.scattering import all_to_all, all_to_all_single, all_to_allv, scatter, scatterv
from horocache.mcr_dl.session import Group
from horocache.mcr_dl.work import JointWork, Work

__all__ = [
    "Group",
    "JointWork",
    "LogRecord",
    "ReduceOp",
    "Summary",
    "SummaryRow",
    "Work",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gatherv",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "all_to_allv",
    "allgather_fn",
    "barrier",
    "bcast",
    "broadcast",
    "configure",
    "destroy_process_group",
    "finalize",
    "gather",
    "gatherv",
    "get_all_ranks_from_group",
    "get_backends",
    "get_global_rank",
    "get_local_rank",
    "get_rank",
    "get_size",
    "get_world_size",
    "has_all_gather_into_tensor",
    "has_all_reduce_coalesced",
    "has_coalescing_manager",
    "has_reduce_scatter_tensor",
    "inference_all_reduce",
    "init",
    "init_distributed",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "log_records",
    "log_summary",
    "monitored_barrier",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_fn",
    "reduce_scatter_tensor",
    "reduce_scatterv",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
    "synchronize",
    "wait",
]
