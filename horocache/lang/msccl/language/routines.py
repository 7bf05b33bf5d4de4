"""``msccl.language.routines``: parts of programs that several have."""

from __future__ import annotations

from horocache.lang.msccl.language import Buffer, chunk

__all__ = ["allgather_ring_inplace", "allreduce_ring_inplace"]


def allgather_ring_inplace(gpus: int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0) -> None:
    """Each rank's first input chunk goes round ``gpus`` ranks, into the output from ``index_offset`` on.

    Args:
        gpus: ranks of the ring.
        gpu_offset: the first of them.
        index_offset: where in the output the first one's chunk comes.
        ch: not used, as in msccl-tools.
    """
    del ch
    for first in range(gpus):
        part = chunk(first + gpu_offset, Buffer.input, 0)
        for hop in range(1, gpus):
            part = part.copy((first + hop) % gpus + gpu_offset, Buffer.output, index_offset + first)


def allreduce_ring_inplace(gpus: int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0) -> None:
    """Sum up ``gpus`` chunks of the input from ``index_offset`` on over as many ranks, each by a way of its own round.

    Args:
        gpus: ranks of the ring, and chunks.
        gpu_offset: the first of the ranks.
        index_offset: the first of the chunks.
        ch: channel; -1 leaves it to the compiler.
    """
    for first in range(gpus):
        index = index_offset + first
        total = chunk(first + gpu_offset, Buffer.input, index)
        for hop in range(1, gpus):
            total = chunk((first + hop) % gpus + gpu_offset, Buffer.input, index).reduce(total, ch=ch)
        for hop in range(gpus, 2 * gpus - 1):
            total = total.copy((first + hop) % gpus + gpu_offset, Buffer.input, index, ch=ch)
