"""The process group of torch.distributed's backend "horocache", without its collectives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from horocache.base.operation_codes import OP_BARRIER, OP_RECV, OP_SEND
from horocache.errors import ShutDownError, UnsupportedError
from torch._C import _distributed_c10d as c10d

from .. import adapter
from ..compile.dynamo import untraced
from .dispatch import GroupCalls
from .other_device_backends import make_backend
from .tensors import only, options, put_back, to_move
from .work import JointWork, OperationWork, Store, seconds_of

_ProcessGroup: Any = dist.ProcessGroup  # its stubs lack the methods that C++ calls


def limit_of(opts: Any) -> float | None:
    """Return the limit in seconds that a call's options set; None if they set none."""
    seconds = seconds_of(opts.timeout)
    return seconds if seconds > 0 else None


@untraced
class GroupBase(_ProcessGroup):  # type: ignore[misc]
    """A group's ranks, name, devices and end; its barrier and its messages.

    This is a subclass of torch's ProcessGroup, because a subclass of torch's Backend cannot be written in Python.
    torch's own methods would look for a Backend of the tensors' device, so every method in use is overridden. Tensors
    on devices for which the user has named another backend (``"cpu:horocache,cuda:nccl"``) go to a group of torch's
    own.

    Role: owned by torch.distributed, from ``init_process_group`` or ``new_group`` to ``destroy_process_group``.

    Args:
        calls: submits the operations; owned by the group.
        store: the group's store.
        timeout: how long operations on other devices may take.
        backend_options: the user's options for the backends of other devices.
        on_close: called once, when the group ends.
    """

    def __init__(
        self,
        calls: GroupCalls,
        store: Any,
        timeout: timedelta,
        backend_options: Any,
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(calls.rank, len(calls.ranks))
        self._rank = calls.rank
        self._size = len(calls.ranks)
        self._open_calls: GroupCalls | None = calls
        self._ended = f"{calls.description} has been destroyed"
        self._store = store
        self._timeout = timeout
        self._backend_options = backend_options
        self._on_close = on_close
        self._backends: dict[str, str] = {}
        self._others: Any = None
        self._coalesced: list[Any] | None = None
        self._texts = {"name": "", "desc": ""}

    @property
    def calls(self) -> GroupCalls:
        """Submits the group's operations. Raises ShutDownError once the group has ended."""
        if self._open_calls is None:
            raise ShutDownError(f"{self._ended}; make another one with init_process_group() or new_group().")
        return self._open_calls

    def start(
        self,
        call: Hashable,
        op: int,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor | None] | None,
        results: Sequence[torch.Tensor],
        store: Store | None,
        opts: Any,
        **more: Any,
    ) -> OperationWork:
        """Start a collective with torch's options; all other arguments are those of :meth:`GroupCalls.start`."""
        waits = not getattr(opts, "asyncOp", True)  # older versions of torch lack it
        work = self.calls.start(call, op, inputs, outputs, results, store, waits, limit_of(opts), **more)
        return self._note(work)

    # ---- queries by torch, from Python and C++

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._rank  # torch's method in C++ looks for an override first, which takes as long as an operation

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def getBackendName(self) -> str:  # noqa: N802  (torch's)
        """Return the name of the backend."""
        return "horocache"

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name by which torch's functions find the group."""
        return self._texts["name"]

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set the name by which torch's functions find the group."""
        self._texts["name"] = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the description of the group's purpose."""
        return self._texts["desc"]

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        """Set the description of the group's purpose."""
        self._texts["desc"] = text

    def get_group_store(self) -> Any:
        """Return the store that the group's ranks share."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        return self.calls.order.calls

    # ---- other devices

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in {"cpu": "horocache", **self._named()}]

    def _named(self) -> dict[str, str]:
        """Return the backends that the user has named, by kind of device; empty until torch has the group's entry."""
        if not self._backends:
            config = dist.distributed_c10d._world.pg_backend_config.get(self, "")
            self._backends = dict(pair.split(":") for pair in config.split(",") if ":" in pair)
        return self._backends

    def is_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Return True if horocache does not run operations on the tensor: see :meth:`elsewhere`."""
        if tensor.is_cpu and self._backends.get("cpu") == "horocache":  # a typical tensor
            return False
        return not self._serves(tensor.device)

    def _serves(self, device: torch.device) -> bool:
        """Return True unless the user has named another backend for the device, or horocache cannot reach it."""
        named = self._named()
        if device.type == "cpu":
            return named.get("cpu", "horocache") == "horocache"
        # init_process_group(device_id=...) asks before torch has the entry.
        return device.type == adapter.CUDA and (not named or named.get(device.type) == "horocache")

    def elsewhere(self, device: torch.device) -> Any:
        """Return the group that runs operations on a device that horocache does not serve.

        Raises:
            UnsupportedError: the user has named no backend for the device, or has named horocache.
        """
        kind = torch.device(device.type)
        name = self._named().get(kind.type)
        if name is None or name == "horocache":
            raise UnsupportedError(
                f"there is no backend for tensors on {device}; horocache has CPU and CUDA tensors. Name one for that "
                f'device, as in init_process_group("cpu:horocache,{kind}:NAME"), or move the tensor with .cpu().'
            )
        return self._group_of_others(kind, name)

    def _group_of_others(self, device: torch.device, name: str) -> Any:
        calls = self.calls
        if self._others is None:
            self._others = dist.ProcessGroup(self._store, calls.rank, len(calls.ranks))
        if device not in self._others._device_types:
            place = (self._store, calls.rank, len(calls.ranks), calls.ranks)
            kind, backend = make_backend(name, device, *place, self._timeout, self._backend_options)
            self._others._set_default_backend(kind)
            self._others._register_backend(device, kind, backend)
        return self._others

    def _get_backend(self, device: torch.device) -> Any:
        """Return the Backend for a device; where horocache serves it the group itself, which acts as its own Backend.

        Raises:
            UnsupportedError: the device has no backend.
        """
        if self._serves(device):
            return self
        return self.elsewhere(device)._get_backend(torch.device(device.type))

    # Capabilities that torch queries from a Backend. Instead of a Backend's coalescing, torch's coalescing manager uses
    # ``_start_coalescing`` with a device.
    supports_splitting = supports_coalescing = supports_shrinking = supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False: the group does not allocate tensors."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of operations from now on."""
        self._timeout = timeout
        self.calls.limit_s = seconds_of(timeout)
        if self._others is not None:
            self._others.set_timeout(timeout)

    # ---- barrier and messages

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Start a barrier, which is over when all ranks have called it."""
        opts = options(c10d.BarrierOptions, opts, timeout=timeout)
        device = getattr(opts, "device", None)
        if device is not None and not self._serves(device):
            return self.elsewhere(device).barrier(opts)
        return self.start((OP_BARRIER,), OP_BARRIER, (), None, (), None, opts)

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803  (torch's)
        """Send a tensor to a rank of the group."""
        tensor = only(tensors, "send")
        if self.is_elsewhere(tensor):
            return self.elsewhere(tensor.device).send([tensor], dstRank, tag)
        vector = adapter.collectives.adapter.on_host(to_move(tensor), True)
        return self._note(self.calls.message(OP_SEND, vector, dstRank, tag, tensor, None))

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:  # noqa: N803
        """Receive a tensor from a rank of the group."""
        tensor = only(tensors, "recv")
        if self.is_elsewhere(tensor):
            return self.elsewhere(tensor.device).recv([tensor], srcRank, tag)
        vector = adapter.collectives.adapter.on_host(to_move(tensor), False)
        return self._note(self.calls.message(OP_RECV, vector, srcRank, tag, tensor, put_back(tensor, vector)))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Raise UnsupportedError: messages are matched by sender, so a receive must name one."""
        tensor = only(tensors, "recv")
        if self.is_elsewhere(tensor):
            return self.elsewhere(tensor.device).recv_anysource([tensor], tag)
        raise UnsupportedError(
            "the backend horocache cannot receive from any rank; name one: recv(tensor, src=...). To take messages as "
            "they come, post an irecv() for each rank."
        )

    # ---- several operations as one

    def _note(self, work: OperationWork) -> OperationWork:
        """Add a work object to the coalesced operations, if operations are being coalesced; return it."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        if self._serves(device):
            self._coalesced = []
        else:
            self.elsewhere(device)._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        if not self._serves(device):
            return self.elsewhere(device)._end_coalescing(device)
        works, self._coalesced = self._coalesced, None
        return JointWork(works or [])

    # ---- the end

    def shutdown(self) -> None:
        """End the group. Does not wait for the other ranks."""
        calls, self._open_calls = self._open_calls, None
        if calls is None:
            return
        if self._others is not None:
            self._others.shutdown()
        calls.close()
        self._on_close()

    def abort(self) -> None:
        """End the group; operations in flight fail."""
        if self._others is not None:
            self._others.abort()
        self.shutdown()
