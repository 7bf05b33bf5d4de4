"""``horovod.common.exceptions``: the exceptions that programs catch."""

from horocache.errors import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
