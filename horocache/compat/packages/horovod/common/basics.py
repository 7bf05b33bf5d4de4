"""``horovod.common.basics``: the rank's place in the job, and other basic functions, as an object."""

import horocache
from horocache.core import context


class HorovodBasics:
    """The functions that are the same in the bindings of all frameworks, as attributes: ``init``, ``rank`` and others.

    Args:
        pkg_path: accepted because Horovod has it, and ignored: horocache compiles nothing for a framework.
        args: accepted because Horovod has them, and ignored.
    """

    Average, Sum, Adasum, Min, Max, Product = range(6)

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        for name in _NAMES:
            setattr(self, name, getattr(horocache, name))
        self.start_timeline = horocache.start_timeline
        self.stop_timeline = horocache.stop_timeline

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Return the ranks of each process set, by the set's number."""
        made = {0: horocache.global_process_set, **context.known_sets()}
        return {number: each.ranks for number, each in made.items()}


_NAMES = (
    *("init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    *("is_homogeneous", "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"),
    *("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"),
)
