"""In-place allgather, alltoall and reducescatter, once for all frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from horocache.collectives.allgather_broadcast import Allgather
from horocache.collectives.alltoall import Alltoall
from horocache.collectives.arguments import Name, set_id
from horocache.collectives.completion import synchronize
from horocache.collectives.reduce_op import Average
from horocache.collectives.reducescatter import Reducescatter
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError

T = TypeVar("T")


def _then(handle: int, function: Callable[[Any], Any]) -> int:
    """Make :func:`synchronize` pass an operation's result to ``function``, and return the result of that."""
    pending = context.current().pending
    finish, state = pending[handle]
    pending[handle] = (lambda _, answer: function(finish(state, answer)), None)
    return handle


class InPlace(Allgather[T], Alltoall[T], Reducescatter[T]):
    """Operations that store their results in their tensors. A base of :class:`horocache.collectives.api.Collectives`.

    Results are copied once, from memory of the core. A read-only tensor raises ValueError.
    """

    def _parts(self, tensor: Any, kind: str, process_set: ProcessSet) -> tuple[Any, int]:
        """Check that the tensor is writable; returns it with the number of its rows that belong to each rank."""
        (source,) = self.checked([tensor], kind, in_place=True)
        set_id(process_set)
        shape, ranks = self.adapter.shape(source), process_set.size()
        if not shape or shape[0] % ranks:
            raise InvalidArgumentError(
                f"{kind} in place needs equally many rows for each of {ranks} ranks; the tensor has shape {shape}."
            )
        return source, shape[0] // ranks

    # ---- allgather

    def _gather_in_place(
        self, tensors: Sequence[Any], kind: str, name: Name, process_set: ProcessSet, wait: bool, backend: str | None
    ) -> int:
        group = kind.startswith("grouped")
        own = []
        for tensor in tensors:
            source, rows = self._parts(tensor, kind, process_set)
            rank = process_set.rank()
            own.append(source[rank * rows : (rank + 1) * rows])

        def finish(answer: Any) -> Any:
            gathered = self.tensors(answer)
            for tensor, result, values in zip(tensors, answer, gathered, strict=True):
                self._store_rows(tensor, values, result.rows)
            return list(tensors) if group else tensors[0]

        call = (own, kind, name, process_set, finish)
        return self._gather(*call, group=group, wait_follows=wait, backend=backend)

    def _store_rows(self, tensor: Any, values: Any, rows: Sequence[int]) -> None:
        """Store the ranks' rows in the tensor; the rows of a rank that has joined keep their values."""
        each = self.adapter.shape(tensor)[0] // len(rows)
        at = 0
        for rank, count in enumerate(rows):
            if count:
                self.adapter.copy_into(tensor[rank * each : (rank + 1) * each], values[at : at + count])
            at += count
        self.adapter.written(tensor)

    def allgather_async_(
        self,
        tensor: T,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`allgather_`; returns a handle for :func:`synchronize`, which returns the tensor itself."""
        return self._gather_in_place([tensor], "allgather", name, process_set, False, backend)

    def allgather_(
        self,
        tensor: T,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T:
        """Fill in the other ranks' rows of a tensor, as ``MPI_Allgather`` does with ``MPI_IN_PLACE``.

        Args:
            tensor: shape ``(ranks * n, ...)``, the same on all ranks. This rank's rows are
                ``[rank * n : (rank + 1) * n]``, where ``rank`` is its rank in the set. The other rows are overwritten.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            The tensor itself.

        Raises:
            InvalidArgumentError: the number of rows is not a multiple of the number of ranks. MismatchError: dtype or
                another dimension differs between ranks; names both ranks and both values.
        """
        handle = self._gather_in_place([tensor], "allgather", name, process_set, True, backend)
        result: T = synchronize(handle)
        return result

    def grouped_allgather_async_(
        self,
        tensors: Sequence[T],
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`grouped_allgather_`; returns one handle for the whole group."""
        return self._gather_in_place(tensors, "grouped_allgather", name, process_set, False, backend)

    def grouped_allgather_(
        self,
        tensors: Sequence[T],
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> list[T]:
        """:meth:`allgather_` of several tensors as one group; returns the tensors themselves."""
        result: list[T] = synchronize(
            self._gather_in_place(tensors, "grouped_allgather", name, process_set, True, backend)
        )
        return result

    # ---- alltoall

    def _exchange_in_place(
        self,
        tensors: Sequence[Any],
        splits: Any,
        kind: str,
        name: Name,
        process_set: ProcessSet,
        wait: bool,
        backend: str | None,
    ) -> int:
        group = kind.startswith("grouped")
        sources = self.checked(tensors, kind, in_place=True)
        handle = self._alltoall(sources, splits, kind, name, process_set, wait, backend)

        def finish(pairs: Any) -> Any:
            exchanged = zip(sources, pairs if group else [pairs], strict=True)
            stored = [(self._store_all(source, output), received) for source, (output, received) in exchanged]
            return stored if group else stored[0]

        return _then(handle, finish)

    def _store_all(self, tensor: Any, values: Any) -> Any:
        had, came = self.adapter.shape(tensor)[0], self.adapter.shape(values)[0]
        if had != came:
            raise InvalidArgumentError(
                f"alltoall in place: {came} rows came for a tensor of {had}, which keeps its values. Use alltoall."
            )
        self.adapter.copy_into(tensor, values)
        self.adapter.written(tensor)
        return tensor

    def alltoall_async_(
        self,
        tensor: T,
        splits: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`alltoall_`; :func:`synchronize` always returns the pair ``(tensor, received_splits)``."""
        return self._exchange_in_place([tensor], splits, "alltoall", name, process_set, False, backend)

    def alltoall_(
        self,
        tensor: T,
        splits: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T | tuple[T, T]:
        """Store the result of :meth:`alltoall` in the tensor itself.

        Returns:
            The tensor itself. If ``splits`` is given: a pair of the tensor and the number of rows from each rank.

        Raises:
            InvalidArgumentError: the number of received rows is not that of the tensor, which then keeps its values; or
                the splits do not fit the tensor or the number of ranks. MismatchError: dtype or another dimension
                differs between ranks.
        """
        output, received = synchronize(
            self._exchange_in_place([tensor], splits, "alltoall", name, process_set, True, backend)
        )
        return output if splits is None else (output, received)

    def grouped_alltoall_async_(
        self,
        tensors: Sequence[T],
        splits: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`grouped_alltoall_`; :func:`synchronize` returns pairs ``(tensor, received_splits)``."""
        return self._exchange_in_place(tensors, splits, "grouped_alltoall", name, process_set, False, backend)

    def grouped_alltoall_(
        self,
        tensors: Sequence[T],
        splits: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> list[T] | list[tuple[T, T]]:
        """:meth:`alltoall_` of several tensors as one group; ``splits`` applies to each of them."""
        pairs: list[tuple[T, T]] = synchronize(
            self._exchange_in_place(tensors, splits, "grouped_alltoall", name, process_set, True, backend)
        )
        return [output for output, _ in pairs] if splits is None else pairs

    # ---- reducescatter

    def _scatter_in_place(
        self,
        tensors: Sequence[Any],
        kind: str,
        name: Name,
        op: int,
        process_set: ProcessSet,
        scales: tuple[float, float],
        wait: bool,
        backend: str | None,
    ) -> int:
        group = kind.startswith("grouped")
        sources = self.checked(tensors, kind, in_place=True)
        call = (sources, kind, name, op, None, scales, process_set)
        handle = self._reducescatter(*call, group=group, wait_follows=wait, backend=backend)

        def finish(results: Any) -> Any:
            own = [
                self._store_own(source, values, process_set)
                for source, values in zip(sources, results if group else [results], strict=True)
            ]
            return own if group else own[0]

        return _then(handle, finish)

    def _store_own(self, tensor: Any, values: Any, process_set: ProcessSet) -> Any:
        each, more = divmod(self.adapter.shape(tensor)[0], process_set.size())
        rank = process_set.rank()
        start = rank * each + min(rank, more)
        rows = tensor[start : start + self.adapter.shape(values)[0]]
        self.adapter.copy_into(rows, values)
        self.adapter.written(tensor)
        return rows

    def reducescatter_async_(
        self,
        tensor: T,
        name: Name = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`reducescatter_`; returns a handle for :func:`synchronize`."""
        scales = (prescale_factor, postscale_factor)
        return self._scatter_in_place([tensor], "reducescatter", name, op, process_set, scales, False, backend)

    def reducescatter_(
        self,
        tensor: T,
        name: Name = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        backend: str | None = None,
    ) -> T:
        """Store the result of :meth:`reducescatter` in this rank's rows of the tensor; other rows keep their values.

        Returns:
            This rank's rows, which share the tensor's memory.
        """
        scales = (prescale_factor, postscale_factor)
        handle = self._scatter_in_place([tensor], "reducescatter", name, op, process_set, scales, True, backend)
        result: T = synchronize(handle)
        return result

    def grouped_reducescatter_async_(
        self,
        tensors: Sequence[T],
        name: Name = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`grouped_reducescatter_`; returns one handle for the whole group."""
        scales = (prescale_factor, postscale_factor)
        return self._scatter_in_place(tensors, "grouped_reducescatter", name, op, process_set, scales, False, backend)

    def grouped_reducescatter_(
        self,
        tensors: Sequence[T],
        name: Name = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        backend: str | None = None,
    ) -> list[T]:
        """:meth:`reducescatter_` of several tensors as one group; returns this rank's rows of each tensor."""
        scales = (prescale_factor, postscale_factor)
        handle = self._scatter_in_place(tensors, "grouped_reducescatter", name, op, process_set, scales, True, backend)
        result: list[T] = synchronize(handle)
        return result
