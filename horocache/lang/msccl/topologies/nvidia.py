"""``msccl.topologies.nvidia``: see :mod:`horocache.lang.msccl.topologies`, which has all of them."""

from horocache.lang.msccl.topologies import dgx1, dgx_a100, nvlink_only

__all__ = ["dgx1", "dgx_a100", "nvlink_only"]
