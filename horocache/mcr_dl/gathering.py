"""Operations that bring tensors together: all_gather, all_gatherv, gather and gatherv; and bcast."""

from __future__ import annotations

from typing import Any

from horocache.base.operation_codes import OP_ALLGATHER, OP_BROADCAST, OP_GATHER
from horocache.collectives.arguments import checked_root
from horocache.errors import InvalidArgumentError
from horocache.mcr_dl.arrays import Arrays, arrays_of
from horocache.mcr_dl.calls import Backend, Call, backend_first, route_of, start
from horocache.mcr_dl.parts import (
    Parts,
    Target,
    TargetList,
    apart,
    check_count,
    check_dtype,
    input_vector,
    is_list,
    share,
    store_nothing,
)
from horocache.mcr_dl.session import Group
from horocache.mcr_dl.work import Work


@backend_first
def bcast(
    backend: Backend,
    output: Any,
    root: int,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Copy the root's tensor to all ranks.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: on the root the values to send; on other ranks gets them. Any shape, the same shape and dtype on all
            ranks; any strides.
        root: a global rank in the group.
        async_op: True returns a handle at once.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: an argument is invalid, or this rank or the root is not in the group. MismatchError:
            shape, dtype, root or operation differ between ranks; names two ranks and both values. UnsupportedError: a
            backend cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    place = checked_root("bcast", root, route.group.process_set)
    arrays = arrays_of(output)
    call = Call("bcast", (OP_BROADCAST, arrays.code(output), output.nbytes, place), output.nbytes)
    target = Target(arrays, output, "the tensor of bcast")
    tensors = (target.dense,)
    return start(session, route, call, name, async_op, OP_BROADCAST, tensors, tensors, target.store, output, root=place)


@backend_first
def all_gather(
    backend: Backend,
    output: Any,
    input: Any = None,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Concatenate the ranks' tensors; every rank gets the result.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: a tensor with ranks * m elements, or a list with a tensor for each rank. Flattened, elements
            ``[r * m : (r + 1) * m]`` get the tensor of the r-th rank of the group. The tensors of a list may have
            different sizes, the same on all ranks.
        input: this rank's tensor, of m elements. None: it is in its place in ``output``, as with ``MPI_IN_PLACE``.
        async_op: True returns a handle at once.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a tensor has the wrong size, an argument is invalid, or this rank is not in the group.
            MismatchError: m, dtype or operation differ between ranks; names two ranks and both values.
            UnsupportedError: a backend cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    ranks, own = route.group.size(), route.group.rank()
    target: Target | TargetList
    if is_list(output):
        arrays = _arrays_of_list(output, "the output of all_gather")
        target = TargetList(arrays, output, ranks, "the output of all_gather")
        counts = target.counts
    else:
        arrays = arrays_of(output)
        target = Target(arrays, output, "the output of all_gather")
        counts = [share(target.count, ranks, "the output of all_gather")] * ranks
    source = _own_part(arrays, target, input, counts[own], own * counts[0], "all_gather")
    code = arrays.code(source)
    if len(set(counts)) > 1:
        key: Any = (OP_ALLGATHER, code)
        call = Call("all_gather", key, source.nbytes)
        fields: Any = {"receive_rows": counts}
        rows = source
    else:
        # One row, so that the ranks compare its length.
        call = Call("all_gather", (OP_ALLGATHER, code, source.nbytes), source.nbytes)
        fields, rows = {}, source.reshape(1, counts[0])
    return start(
        session,
        route,
        call,
        name,
        async_op,
        OP_ALLGATHER,
        (rows,),
        target.outputs(),
        target.store,
        target.result,
        **fields,
    )


def _arrays_of_list(tensors: Any, what: str) -> Arrays:
    if not tensors:
        raise InvalidArgumentError(f"{what} needs a tensor for each rank; the list is empty.")
    return arrays_of(tensors[0])


def _own_part(arrays: Arrays, target: Target | TargetList, input: Any, count: int, start: int, title: str) -> Any:
    """Return this rank's part as a vector: the input, or a copy of its place in the output."""
    if input is None:
        if isinstance(target, TargetList):
            raise InvalidArgumentError(f"{title} with a list as output needs input=, this rank's tensor.")
        return arrays.copy(target.vector[start : start + count])
    vector = input_vector(arrays, input, f"the input of {title}", count)
    check_dtype(vector, target, title)
    return apart(arrays, vector, target)


@backend_first
def all_gatherv(
    backend: Backend,
    output: Any,
    root: int | None,
    rcounts: Any,
    displs: Any = None,
    async_op: bool = False,
    *,
    input: Any = None,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Bring together tensors of different sizes, each at its own position; every rank gets the result.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: flattened, elements ``[displs[r] : displs[r] + rcounts[r]]`` get the tensor of the r-th rank of the
            group. Elements that no part covers keep their values.
        root: not used, because every rank gets the result: the paper lists it.
        rcounts: one number of elements for each rank, the same on all ranks.
        displs: one position for each rank; they may differ from rank to rank, and parts must not overlap. None: one
            part follows the other.
        async_op: True returns a handle at once.
        input: this rank's tensor, of ``rcounts[r]`` elements for its rank r in the group. None: it is in its place in
            ``output``, as with ``MPI_IN_PLACE``.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a tensor or a list has the wrong size, parts overlap or are not within ``output``, or this
            rank is not in the group. MismatchError: a rank sends another number of elements than another one expects,
            or dtype or operation differ between ranks. UnsupportedError: a backend cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    own = route.group.rank()
    arrays = arrays_of(output)
    target = Target(arrays, output, "the output of all_gatherv")
    parts = _receive_parts("all_gatherv", rcounts, displs, route.group.size(), target)
    source = _own_part(arrays, target, input, parts.counts[own], parts.starts[own], "all_gatherv")
    call = Call("all_gatherv", (OP_ALLGATHER, arrays.code(output)), source.nbytes)
    outputs = target.outputs(list(parts))
    fields = _places(parts, target)
    return start(
        session, route, call, name, async_op, OP_ALLGATHER, (source,), outputs, target.store, target.result, **fields
    )


def _receive_parts(title: str, counts: Any, starts: Any, ranks: int, target: Target) -> Parts:
    parts = Parts(title, counts, starts, ranks, ("rcounts", "displs"))
    parts.check_within(target.count, "its output")
    parts.check_apart()
    return parts


def _places(parts: Parts, target: Target) -> dict[str, Any]:
    """Return the fields of a request that receives parts; if the core allocates the result, it is packed."""
    placed = target.starts and not parts.packed
    return {"receive_rows": parts.counts, "receive_starts": parts.starts if placed else None}


@backend_first
def gather(
    backend: Backend,
    output: Any,
    root: int,
    async_op: bool = False,
    *,
    input: Any = None,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Concatenate the ranks' tensors on the root.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: on the root a tensor with ranks * m elements, or a list with a tensor of m elements for each rank.
            Flattened, elements ``[r * m : (r + 1) * m]`` get the tensor of the r-th rank of the group. On other ranks
            the m elements to send, which are not modified; None there if ``input`` is given.
        root: a global rank in the group.
        async_op: True returns a handle at once.
        input: this rank's tensor, of m elements. None: on the root it is in its place in ``output``, as with
            ``MPI_IN_PLACE``; on other ranks it is ``output``.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a tensor has the wrong size, an argument is invalid, or this rank or the root is not in
            the group. MismatchError: m, dtype, root or operation differ between ranks; names two ranks and both values.
            UnsupportedError: a backend cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    place = checked_root("gather", root, route.group.process_set)
    ranks, own = route.group.size(), route.group.rank()
    if own != place:
        arrays, source = _to_send(output if input is None else input, "gather")
        call = Call("gather", (OP_GATHER, arrays.code(source), source.nbytes, place), source.nbytes)
        row = source.reshape(1, arrays.count(source))
        return start(session, route, call, name, async_op, OP_GATHER, (row,), None, store_nothing, None, root=place)
    target: Target | TargetList
    if is_list(output):
        arrays = _arrays_of_list(output, "the output of gather")
        target = TargetList(arrays, output, ranks, "the output of gather")
        if len(set(target.counts)) > 1:
            raise InvalidArgumentError(
                f"the output of gather has tensors of {target.counts} elements; they must be equal. Use gatherv."
            )
        each = target.counts[0]
    else:
        arrays = arrays_of(output)
        target = Target(arrays, output, "the output of gather")
        each = share(target.count, ranks, "the output of gather")
    source = _own_part(arrays, target, input, each, own * each, "gather")
    call = Call("gather", (OP_GATHER, arrays.code(source), source.nbytes, place), source.nbytes)
    row, outputs = source.reshape(1, each), target.outputs()
    return start(
        session, route, call, name, async_op, OP_GATHER, (row,), outputs, target.store, target.result, root=place
    )


def _to_send(tensor: Any, title: str) -> tuple[Arrays, Any]:
    if tensor is None or is_list(tensor):
        raise InvalidArgumentError(f"{title} needs the tensor that this rank sends, not {tensor!r}.")
    arrays = arrays_of(tensor)
    return arrays, input_vector(arrays, tensor, f"the input of {title}")


@backend_first
def gatherv(
    backend: Backend,
    output: Any,
    root: int,
    rcounts: Any = None,
    displs: Any = None,
    async_op: bool = False,
    *,
    input: Any = None,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Bring together tensors of different sizes on the root, each at its own position.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: on the root, flattened, elements ``[displs[r] : displs[r] + rcounts[r]]`` get the tensor of the r-th
            rank of the group, and elements that no part covers keep their values. On other ranks the tensor to send,
            which is not modified; None there if ``input`` is given.
        root: a global rank in the group.
        rcounts: one number of elements for each rank. On other ranks than the root it may be None; otherwise the tensor
            to send has ``rcounts[r]`` elements for this rank r.
        displs: on the root, one position for each rank; parts must not overlap. None: one part follows the other.
        async_op: True returns a handle at once.
        input: this rank's tensor. None: on the root it is in its place in ``output``, as with ``MPI_IN_PLACE``; on
            other ranks it is ``output``.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a tensor or a list has the wrong size, parts overlap or are not within ``output``, or this
            rank or the root is not in the group. MismatchError: a rank sends another number of elements than the root
            expects, or dtype, root or operation differ between ranks. UnsupportedError: a backend cannot take the dtype
            or the device.
    """
    session, route = route_of(backend, group, async_op)
    place = checked_root("gatherv", root, route.group.process_set)
    ranks, own = route.group.size(), route.group.rank()
    if own != place:
        arrays, source = _to_send(output if input is None else input, "gatherv")
        if rcounts is not None:
            counts = Parts("gatherv", rcounts, None, ranks, ("rcounts", "displs")).counts
            check_count(arrays.count(source), counts[own], "the input of gatherv")
        call = Call("gatherv", (OP_GATHER, arrays.code(source), place), source.nbytes)
        return start(session, route, call, name, async_op, OP_GATHER, (source,), None, store_nothing, None, root=place)
    arrays = arrays_of(output)
    target = Target(arrays, output, "the output of gatherv")
    parts = _receive_parts("gatherv", rcounts, displs, ranks, target)
    source = _own_part(arrays, target, input, parts.counts[own], parts.starts[own], "gatherv")
    call = Call("gatherv", (OP_GATHER, arrays.code(source), place), source.nbytes)
    outputs, fields = target.outputs(list(parts)), {**_places(parts, target), "root": place}
    return start(
        session, route, call, name, async_op, OP_GATHER, (source,), outputs, target.store, target.result, **fields
    )
