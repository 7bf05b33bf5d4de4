"""``msccl.language.routines``: parts that several programs share."""

from __future__ import annotations

from horocache.lang.msccl.language import Buffer, chunk

__all__ = ["allgather_ring_inplace", "allreduce_ring_inplace"]


def allgather_ring_inplace(gpus: int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0) -> None:
    """Allgather on a ring: each rank's first input chunk goes around the ring to the output of every other rank.

    Args:
        gpus: number of ranks in the ring.
        gpu_offset: the first rank of the ring.
        index_offset: index in the output of the first rank's chunk; the chunks of the other ranks follow.
        ch: not used, as in msccl-tools.
    """
    del ch
    for first in range(gpus):
        part = chunk(first + gpu_offset, Buffer.input, 0)
        for hop in range(1, gpus):
            part = part.copy((first + hop) % gpus + gpu_offset, Buffer.output, index_offset + first)


def allreduce_ring_inplace(gpus: int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0) -> None:
    """Allreduce on a ring, in place: the sum of each input chunk starts at another rank and goes around the ring twice.

    Args:
        gpus: number of ranks in the ring, and number of chunks.
        gpu_offset: the first rank of the ring.
        index_offset: index of the first chunk.
        ch: channel; -1: the compiler chooses it.
    """
    for first in range(gpus):
        index = index_offset + first
        total = chunk(first + gpu_offset, Buffer.input, index)
        for hop in range(1, gpus):
            total = chunk((first + hop) % gpus + gpu_offset, Buffer.input, index).reduce(total, ch=ch)
        for hop in range(gpus, 2 * gpus - 1):
            total = total.copy((first + hop) % gpus + gpu_offset, Buffer.input, index, ch=ch)
