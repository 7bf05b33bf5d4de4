"""``horovod.common.process_sets``: sets of ranks."""

from horocache.collectives.dynamic_process_sets import add_process_set, remove_process_set
from horocache.core.process_set import ProcessSet, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
