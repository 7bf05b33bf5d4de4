"""The backend ``gloo``: torch.distributed's library for ranks that TCP connects."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import psutil

from horocache.core.launcher_environment import own_environment
from horocache.errors import StartupError, UnsupportedError
from horocache.user_backends.backend import Backend, Call, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMIT = timedelta(days=1)  # of an operation: horocache's own limits come first
_SLICE = timedelta(milliseconds=50)  # of waiting for an operation, after which the end of the job is noticed
_START_LIMIT = timedelta(seconds=60)  # of connecting


class Gloo(Backend):
    """Runs operations by a process group of gloo, which comes with torch.

    The ranks connect by TCP: on one host by the loopback interface, on several by the interface that
    ``GLOO_SOCKET_IFNAME`` names on every rank, or by that of the host's name. gloo does not reduce int16, uint16,
    uint32, uint64, bool and complex numbers.
    """

    reduced_dtypes: ClassVar[Sequence[str]] = (
        *("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    )

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        if (reason := self.missing()) is not None:
            raise UnsupportedError(f"backend gloo cannot run: {reason}.")
        import torch  # noqa: PLC0415  (horocache works without torch)
        import torch.distributed as dist  # noqa: PLC0415

        self._torch, self._dist = torch, dist
        self._group = self._connect()

    @classmethod
    def missing(cls) -> str | None:
        """Return why this process has no gloo, or None."""
        try:
            import torch.distributed as dist  # noqa: PLC0415  (horocache works without torch)
        except ImportError as error:
            return f"gloo comes with torch, which cannot be imported ({error})"
        if not dist.is_available() or not dist.is_gloo_available():
            return "this torch was built without gloo"
        return None

    def _connect(self) -> Any:
        """Connect the ranks: rank 0 has a store, of which the others learn by horocache."""
        dist, group = self._dist, self.group
        store, place = None, None
        if group.rank == 0:
            host = _own_address(group.hosts)
            store = dist.TCPStore(host, 0, group.size, is_master=True, wait_for_workers=False, timeout=_START_LIMIT)
            place = host, store.port
        place = group.allgather_object(place)[0]
        if place is None:
            raise StartupError("rank 0 of the group gave no address for gloo.")
        if store is None:
            store = dist.TCPStore(*place, group.size, is_master=False, wait_for_workers=False, timeout=_START_LIMIT)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = _LIMIT
        name = own_environment().get("GLOO_SOCKET_IFNAME", "lo" if group.hosts == 1 else "")
        make = dist.ProcessGroupGloo.create_device
        options._devices = [make(interface=name) if name else make(hostname=_own_address(group.hosts))]
        return dist.ProcessGroupGloo(store, group.rank, group.size, options)

    def start(self, call: Call) -> Any:
        """Begin an operation; returns torch's work, and what is to be done after it."""
        run = getattr(self, f"_{call.op}")
        return run(call)

    def test(self, work: Any) -> bool:
        """Wait for a moment; return True once all parts of the operation have ended."""
        return all(has_ended(part) for part in work)

    def close(self) -> None:
        """Drop the connections."""
        self._group = None

    # ---- operations

    def _tensor(self, array: Any, call: Call) -> Any:
        """The array as a tensor of its type."""
        return self._torch.from_numpy(array.view(np.uint8)).view(getattr(self._torch, call.dtype))

    def _bytes(self, array: Any) -> Any:
        """The array as a tensor of bytes, for operations that only move elements."""
        return self._torch.from_numpy(array.view(np.uint8))

    def _op(self, call: Call) -> Any:
        names = {
            "sum": "SUM",
            "min": "MIN",
            "max": "MAX",
            "product": "PRODUCT",
            "and": "BAND",
            "or": "BOR",
            "xor": "BXOR",
        }
        return getattr(self._dist.ReduceOp, names[call.reduce_op])

    def _allreduce(self, call: Call) -> list[Any]:
        options = self._dist.AllreduceOptions()
        options.reduceOp = self._op(call)
        return [self._group.allreduce([self._tensor(call.output, call)], options)]

    def _broadcast(self, call: Call) -> list[Any]:
        options = self._dist.BroadcastOptions()
        options.rootRank, options.rootTensor = call.root, 0
        return [self._group.broadcast([self._bytes(call.output)], options)]

    def _reduce(self, call: Call) -> list[Any]:
        options = self._dist.ReduceOptions()
        options.reduceOp, options.rootRank, options.rootTensor = self._op(call), call.root, 0
        return [self._group.reduce([self._tensor(call.output, call)], options)]

    def _barrier(self, _: Call) -> list[Any]:
        return [self._group.barrier()]

    def _reducescatter(self, call: Call) -> list[Any]:
        """One reduce for each rank's part, as gloo has no reduce-scatter of uneven parts."""
        mine, works = self._tensor(call.input, call).clone(), []
        for rank, (first, count) in enumerate(call.sends):
            options = self._dist.ReduceOptions()
            options.reduceOp, options.rootRank, options.rootTensor = self._op(call), rank, 0
            works.append(_Part(self._group.reduce([mine[first : first + count]], options), mine))
        first, count = call.sends[self.group.rank]
        works[self.group.rank].then = lambda: self._tensor(call.output, call).copy_(mine[first : first + count])
        return works

    def _allgather(self, call: Call) -> list[Any]:
        counts = [count for _, count in call.receives]
        follow_each_other = all(first == rank * counts[0] for rank, (first, _) in enumerate(call.receives))
        if len(set(counts)) == 1 and follow_each_other:
            return [self._group._allgather_base(self._bytes(call.output), self._bytes(call.input))]
        return self._alltoall(call)

    def _alltoall(self, call: Call) -> list[Any]:
        """The exchange of parts, which are packed in the order of ranks."""
        torch, item = self._torch, call.output.itemsize
        source, target = self._bytes(call.input), self._bytes(call.output)
        nothing = [(0, 0)] * self.group.size
        sends = [(item * first, item * count) for first, count in call.sends or nothing]
        receives = [(item * first, item * count) for first, count in call.receives or nothing]
        packed = torch.cat([source[first : first + count] for first, count in sends])
        came = torch.empty(sum(count for _, count in receives), dtype=target.dtype)
        sizes = [count for _, count in receives], [count for _, count in sends]
        work = _Part(self._group.alltoall_base(came, packed, *sizes, self._dist.AllToAllOptions()), packed)

        def unpack() -> None:
            for (first, count), part in zip(receives, came.split(sizes[0]), strict=True):
                target[first : first + count].copy_(part)

        work.then = unpack
        return [work]

    _gather = _scatter = _alltoall


def has_ended(part: Any) -> bool:
    """Wait a slice for a work; return True if it has ended. Raises the operation's own error."""
    try:
        part.wait(_SLICE)
    except RuntimeError:  # the operation's own error, or the end of the slice
        if not part.is_completed():
            return False
        part.wait(_LIMIT)  # does not wait; raises the operation's own error, if it has one
    return True


class _Part:
    """A work of gloo with memory that it uses, and a last step."""

    def __init__(self, work: Any, *kept: Any) -> None:
        self.work, self.kept = work, kept
        self.then: Any = None

    def is_completed(self) -> bool:
        """True once the work has ended."""
        return bool(self.work.is_completed())

    def wait(self, limit: timedelta) -> None:
        """Wait for the work; raise its error, or RuntimeError at the limit; otherwise take the last step."""
        self.work.wait(limit)
        if self.then is not None:
            self.then()
            self.then = None


def _own_address(hosts: int) -> str:
    """The address by which the other ranks reach this one."""
    if hosts == 1:
        return "127.0.0.1"
    interface = own_environment().get("GLOO_SOCKET_IFNAME")
    if interface is None:
        return socket.gethostbyname(socket.gethostname())
    for address in psutil.net_if_addrs().get(interface, ()):
        if address.family == socket.AF_INET:
            return str(address.address)
    raise StartupError(f"GLOO_SOCKET_IFNAME={interface}: there is no such interface with an IPv4 address here.")
