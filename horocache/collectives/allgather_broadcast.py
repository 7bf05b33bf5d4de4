"""Allgather and broadcast, once for all frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from horocache.base.operation_codes import OP_ALLGATHER, OP_BROADCAST
from horocache.collectives.arguments import Name, checked_root, full_name, whole_numbers
from horocache.collectives.completion import synchronize
from horocache.collectives.submitter import Submitter
from horocache.core.process_set import ProcessSet, global_process_set

T = TypeVar("T")


class Allgather(Submitter[T]):
    """Every rank gets the rows of all ranks. A base of :class:`horocache.collectives.api.Collectives`."""

    def _gather(
        self,
        tensors: Sequence[Any],
        kind: str,
        name: Name,
        process_set: ProcessSet,
        finish: Callable[[Any], Any],
        group: bool = False,
        wait_follows: bool = False,
        backend: str | None = None,
        lists: tuple[Any, Any] = (None, None),
    ) -> int:
        adapter = self.adapter
        rows = whole_numbers(kind, "recvcounts", lists[0])
        starts = whole_numbers(kind, "displs", lists[1])
        inputs = [adapter.dense(adapter.as_rows(tensor))[0] for tensor in self.checked(tensors, kind)]
        return self.start(
            finish,
            OP_ALLGATHER,
            inputs,
            None,
            full_name(kind, name),
            process_set,
            group=group,
            wait_follows=wait_follows,
            backend=backend,
            receive_rows=rows,
            receive_starts=starts,
        )

    def allgather_async(
        self,
        tensor: T,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`allgather`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        return self._gather([tensor], "allgather", name, process_set, self._first, backend=backend)

    def _first(self, answer: Any) -> T:
        return self.tensors(answer)[0]

    def allgather(
        self,
        tensor: T,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T:
        """Concatenate the ranks' tensors along the first dimension; every rank of ``process_set`` gets the result.

        Args:
            tensor: shape ``(n_r, ...)``; ``n_r`` may differ from rank to rank and may be 0, the other dimensions may
                not. A scalar counts as one row. Not modified.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            A new tensor of shape ``(sum of n_r, ...)``, in rank order.

        Raises:
            MismatchError: dtype or another dimension differs between ranks; names both ranks and both values.
        """
        result: T = synchronize(
            self._gather([tensor], "allgather", name, process_set, self._first, wait_follows=True, backend=backend)
        )
        return result

    def allgatherv_async(
        self,
        tensor: T,
        recvcounts: Any = None,
        displs: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`allgatherv`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        lists = (recvcounts, displs)
        return self._gather([tensor], "allgatherv", name, process_set, self._first, backend=backend, lists=lists)

    def allgatherv(
        self,
        tensor: T,
        recvcounts: Any = None,
        displs: Any = None,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T:
        """:meth:`allgather` with the number of rows expected from each rank, and their position in the result.

        Args:
            tensor: shape ``(n_r, ...)``; ``n_r`` may differ from rank to rank and may be 0, the other dimensions may
                not. A scalar counts as one row. Not modified.
            recvcounts: one integer per rank, a sequence or a tensor: number of rows expected from that rank; it must
                match what the rank sends. None accepts any number.
            displs: one integer per rank, a sequence or a tensor: the row of this rank's result at which that rank's
                part begins. Parts must not overlap; rows that no part covers are zero. None: one part follows the
                other. The lists may differ from rank to rank.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            A new tensor of ``max(displs + recvcounts)`` rows.

        Raises:
            MismatchError: dtype or another dimension differs between ranks; a rank expects another number of rows than
                it gets, which fails on all ranks; or another rank's lists are wrong. InvalidArgumentError: this rank's
                lists do not fit the number of ranks; or, on all ranks, parts overlap.
        """
        call = ([tensor], "allgatherv", name, process_set, self._first)
        result: T = synchronize(self._gather(*call, wait_follows=True, backend=backend, lists=(recvcounts, displs)))
        return result

    def allgather_with_rows(
        self,
        tensors: Sequence[T],
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        group: bool = True,
        *,
        backend: str | None = None,
    ) -> list[tuple[T, list[int]]]:
        """:meth:`allgather` of several tensors; returns each result with the number of rows from each rank."""
        kind = "grouped_allgather" if group else "allgather"

        def finish(answer: Any) -> list[tuple[T, list[int]]]:
            return [(self.adapter.from_result(result), list(result.rows)) for result in answer]

        result: list[tuple[T, list[int]]] = synchronize(
            self._gather(tensors, kind, name, process_set, finish, group, wait_follows=True, backend=backend)
        )
        return result

    def grouped_allgather_async(
        self,
        tensors: Sequence[T],
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`grouped_allgather`; returns one handle for the whole group."""
        call = (tensors, "grouped_allgather", name, process_set, self.tensors)
        return self._gather(*call, group=True, backend=backend)

    def allgather_to_average_async(
        self,
        tensors: Sequence[T],
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`grouped_allgather`; :func:`synchronize` returns the results and the divisor of an average."""

        def finish(answer: Any) -> tuple[list[T], int]:
            return self.tensors(answer), answer[0].divisor_ranks

        call = (tensors, "grouped_allgather", name, process_set, finish)
        return self._gather(*call, group=True, backend=backend)

    def grouped_allgather(
        self,
        tensors: Sequence[T],
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> list[T]:
        """:meth:`allgather` of several tensors as one group; returns the results in the order of ``tensors``."""
        call = (tensors, "grouped_allgather", name, process_set, self.tensors)
        result: list[T] = synchronize(self._gather(*call, group=True, wait_follows=True, backend=backend))
        return result


class Broadcast(Submitter[T]):
    """Every rank gets the values of one rank. A base of :class:`horocache.collectives.api.Collectives`."""

    def _broadcast(
        self,
        tensors: Sequence[Any],
        root_rank: int,
        kind: str,
        name: Name,
        process_set: ProcessSet,
        in_place: bool = False,
        group: bool = False,
        wait_follows: bool = False,
        backend: str | None = None,
        names: Sequence[Name] | None = None,
    ) -> int:
        adapter = self.adapter
        sources = self.checked(tensors, kind, in_place)
        root = checked_root("broadcast", root_rank, process_set)
        buffers, private = self.dense(sources, sources)
        outputs = [b if in_place or own else adapter.empty_like(b) for b, own in zip(buffers, private, strict=True)]

        def finish(_: object) -> Any:
            if not in_place:
                return outputs if group else outputs[0]
            for source, output, own in zip(sources, outputs, private, strict=True):
                if own:
                    adapter.copy_into(source, output)
                else:
                    adapter.written(source)
            return list(tensors) if group else tensors[0]

        return self.start(
            finish,
            OP_BROADCAST,
            buffers,
            outputs,
            full_name(kind, name),
            process_set,
            root=root,
            group=group,
            wait_follows=wait_follows,
            backend=backend,
            names=names,
        )

    def broadcast_async(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`broadcast`; returns a handle for :func:`synchronize`. The tensor must not change until then."""
        return self._broadcast([tensor], root_rank, "broadcast", name, process_set, backend=backend)

    def broadcast(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T:
        """Copy one rank's tensor to all ranks of ``process_set``.

        Args:
            tensor: any shape, the same shape and dtype on all ranks. Only the root's values are used. Not modified.
            root_rank: a global rank in the set.
            name: identifies the tensor across ranks; generated from the program order when omitted.
            process_set: the ranks that take part.
            backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

        Returns:
            A new tensor with the root's values.

        Raises:
            InvalidArgumentError: ``root_rank`` is not in the set. MismatchError: shape, dtype or root differ between
                ranks.
        """
        call = ([tensor], root_rank, "broadcast", name, process_set)
        result: T = synchronize(self._broadcast(*call, wait_follows=True, backend=backend))
        return result

    def broadcast_async_(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`broadcast_`; returns a handle for :func:`synchronize`, which returns the tensor itself."""
        return self._broadcast([tensor], root_rank, "broadcast", name, process_set, in_place=True, backend=backend)

    def broadcast_(
        self,
        tensor: T,
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> T:
        """Store the result of :meth:`broadcast` in the tensor itself and return it; ValueError if it is read-only."""
        call = ([tensor], root_rank, "broadcast", name, process_set)
        result: T = synchronize(self._broadcast(*call, in_place=True, wait_follows=True, backend=backend))
        return result

    def grouped_broadcast_async(
        self,
        tensors: Sequence[T],
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`grouped_broadcast`; returns one handle for the whole group."""
        return self._broadcast(tensors, root_rank, "grouped_broadcast", name, process_set, group=True, backend=backend)

    def grouped_broadcast(
        self,
        tensors: Sequence[T],
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> list[T]:
        """:meth:`broadcast` of several tensors as one group; returns new tensors, in the order of ``tensors``."""
        call = (tensors, root_rank, "grouped_broadcast", name, process_set)
        result: list[T] = synchronize(self._broadcast(*call, group=True, wait_follows=True, backend=backend))
        return result

    def grouped_broadcast_async_(
        self,
        tensors: Sequence[T],
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> int:
        """Start :meth:`grouped_broadcast_`; returns one handle for the whole group."""
        call = (tensors, root_rank, "grouped_broadcast", name, process_set)
        return self._broadcast(*call, in_place=True, group=True, backend=backend)

    def grouped_broadcast_(
        self,
        tensors: Sequence[T],
        root_rank: int,
        name: Name = None,
        process_set: ProcessSet = global_process_set,
        *,
        backend: str | None = None,
    ) -> list[T]:
        """:meth:`broadcast_` of several tensors as one group; returns the tensors themselves."""
        call = (tensors, root_rank, "grouped_broadcast", name, process_set)
        handle = self._broadcast(*call, in_place=True, group=True, wait_follows=True, backend=backend)
        result: list[T] = synchronize(handle)
        return result

    def broadcast_parameters_async_(
        self, tensors: Sequence[T], names: Sequence[Any], root_rank: int, process_set: ProcessSet
    ) -> int:
        """Start :meth:`grouped_broadcast_` of a model's parameters; returns one handle.

        The group has the name of its first parameter. Each member has its own parameter's name, by which the core finds
        that groups belong together whose first parameters differ between ranks, and reports that at once.
        """
        members = [full_name("parameter", str(name)) for name in names]
        call = (tensors, root_rank, "parameters", str(names[0]), process_set)
        return self._broadcast(*call, in_place=True, group=True, names=members)
