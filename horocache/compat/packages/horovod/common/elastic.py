"""``horovod.common.elastic``: not available."""

from horocache.compat.missing import ELASTIC

raise ImportError(ELASTIC)
