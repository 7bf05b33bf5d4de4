"""``msccl.topologies.nvidia``: NVIDIA's topologies, re-exported from :mod:`horocache.lang.msccl.topologies`."""

from horocache.lang.msccl.topologies import dgx1, dgx_a100, nvlink_only

__all__ = ["dgx1", "dgx_a100", "nvlink_only"]
