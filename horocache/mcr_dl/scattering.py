"""Operations that distribute tensors: scatter, scatterv, all_to_all_single, all_to_all and all_to_allv."""

from __future__ import annotations

from typing import Any

from horocache.base.operation_codes import OP_ALLTOALL, OP_SCATTER
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
    checked_counts,
    input_vector,
    is_list,
    joined_inputs,
    share,
    store_nothing,
)
from horocache.mcr_dl.session import Group, Route, Session
from horocache.mcr_dl.work import Store, Work


@backend_first
def scatter(
    backend: Backend,
    output: Any,
    root: int,
    async_op: bool = False,
    *,
    input: Any = None,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Divide the root's tensor evenly among the ranks.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: has m elements and gets this rank's part. On the root without ``input`` it has ranks * m elements, which
            are the values to distribute; they keep their values, as with ``MPI_IN_PLACE``.
        root: a global rank in the group.
        async_op: True returns a handle at once.
        input: on the root, a tensor with ranks * m elements, of which ``[r * m : (r + 1) * m]`` go to the r-th rank of
            the group; or a list with a tensor of m elements for each rank. Not used on other ranks.
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
    place = checked_root("scatter", root, route.group.process_set)
    ranks = route.group.size()
    arrays = arrays_of(output)
    target = Target(arrays, output, "the output of scatter")
    if route.group.rank() != place:
        # Rows of m elements, so that the ranks compare m.
        rows = target.vector[:0].reshape(0, target.count)
        key = (OP_SCATTER, arrays.code(output), target.vector.nbytes, place)
        call = Call("scatter", key, target.vector.nbytes)
        return _scatter(session, route, call, name, async_op, rows, target, target.count, {"root": place})
    if input is None:
        source, each = target.vector, share(target.count, ranks, "the output of scatter, which is its input")
    else:
        source, each = _vector_of(arrays, input, ranks), target.count
        check_count(arrays.count(source), ranks * each, "the input of scatter")
        check_dtype(source, output, "scatter")
    own = None if input is None else each
    splits = [0 if rank == place and own is None else 1 for rank in range(ranks)]
    fields = {"root": place, "splits": splits, "send_starts": list(range(ranks))}
    call = Call("scatter", (OP_SCATTER, arrays.code(output), source.nbytes // ranks, place), source.nbytes)
    rows = source.reshape(ranks, each)
    return _scatter(session, route, call, name, async_op, rows, target, own, fields)


def _vector_of(arrays: Arrays, input: Any, ranks: int) -> Any:
    """Return the root's input, a tensor or a list with a tensor of equal size for each rank, as one vector."""
    if not is_list(input):
        return input_vector(arrays, input, "the input of scatter")
    vector, counts = joined_inputs(arrays, input, ranks, "the input of scatter")
    if len(set(counts)) > 1:
        raise InvalidArgumentError(
            f"the input of scatter has tensors of {counts} elements; they must be equal. Use scatterv."
        )
    return vector


def _scatter(
    session: Session,
    route: Route,
    call: Call,
    name: Any,
    async_op: bool,
    rows: Any,
    target: Target,
    own: int | None,
    fields: dict[str, Any],
) -> Work | None:
    """Start a scatter of ``rows``; ``own`` elements come to this rank, None: its part stays where it is."""
    outputs: list[Any] | None = None
    store: Store = store_nothing
    if own is not None:
        outputs, store = target.head(own), target.store
        if target.overlaps(rows.reshape(-1)):
            rows = target.copy_of(rows)
    return start(session, route, call, name, async_op, OP_SCATTER, (rows,), outputs, store, target.result, **fields)


@backend_first
def scatterv(
    backend: Backend,
    output: Any,
    root: int,
    scounts: Any = None,
    displs: Any = None,
    async_op: bool = False,
    *,
    input: Any = None,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Give each rank its number of the root's elements, from its own position.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: its first ``scounts[r]`` elements get this rank's part, where r is its rank in the group; the others
            keep their values. On the root without ``input`` it has the values to distribute, which it keeps, as with
            ``MPI_IN_PLACE``.
        root: a global rank in the group.
        scounts: one number of elements for each rank. On other ranks than the root it may be None; then the part fills
            ``output``.
        displs: on the root, one position for each rank in its flattened tensor; parts may overlap and leave gaps. None:
            one part follows the other.
        async_op: True returns a handle at once.
        input: on the root, the tensor to distribute. Not used on other ranks.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a tensor or a list has the wrong size, a part is not within the root's tensor, this rank
            or the root is not in the group, or, when the part has come, it does not have the number of elements that
            this rank expects. MismatchError: dtype, root or operation differ between ranks. UnsupportedError: a backend
            cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    place = checked_root("scatterv", root, route.group.process_set)
    ranks, rank = route.group.size(), route.group.rank()
    arrays = arrays_of(output)
    target = Target(arrays, output, "the output of scatterv")
    key = (OP_SCATTER, arrays.code(output), place)
    own: int | None = target.count
    if scounts is not None:
        own = checked_counts("scatterv", "scounts", scounts, ranks)[rank]
    if rank != place or input is not None:
        assert own is not None
        if own > target.count:
            check_count(target.count, own, "the output of scatterv")
    if rank != place:
        call = Call("scatterv", key, target.vector.nbytes)
        return _scatter(session, route, call, name, async_op, target.vector[:0], target, own, {"root": place})
    parts = Parts("scatterv", scounts, displs, ranks, ("scounts", "displs"))
    source = target.vector if input is None else input_vector(arrays, input, "the input of scatterv")
    check_dtype(source, output, "scatterv")
    parts.check_within(arrays.count(source), "the input")
    splits = list(parts.counts)
    if input is None:
        own, splits[place] = None, 0
    fields = {"root": place, "splits": splits, "send_starts": parts.starts}
    call = Call("scatterv", key, source.nbytes)
    return _scatter(session, route, call, name, async_op, source, target, own, fields)


@backend_first
def all_to_all_single(
    backend: Backend,
    output: Any,
    input: Any = None,
    async_op: bool = False,
    *,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Send each rank a part of a tensor, and receive a part from each.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: flattened, its r-th part gets what the r-th rank of the group sends to this rank. Its parts are equal,
            or have ``output_split_sizes`` rows of the first dimension.
        input: its r-th part goes to the r-th rank of the group. Its parts are equal, or have ``input_split_sizes``
            rows. None: ``output`` has the values to send, too.
        async_op: True returns a handle at once.
        output_split_sizes: one number of rows for each rank. Either all ranks give split sizes, or none does.
        input_split_sizes: one number of rows for each rank.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a tensor or a list has the wrong size, an argument is invalid, or this rank is not in the
            group. MismatchError: a rank sends another number of elements than another one expects, or dtype or
            operation differ between ranks. UnsupportedError: a backend cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    ranks = route.group.size()
    arrays = arrays_of(output)
    target = Target(arrays, output, "the output of all_to_all_single")
    given = output if input is None else input
    vector = input_vector(arrays, given, "the input of all_to_all_single")
    check_dtype(vector, output, "all_to_all_single")
    if output_split_sizes is not None or input_split_sizes is not None:
        sent = _elements(arrays, given, input_split_sizes, ranks, "input")
        received = _elements(arrays, output, output_split_sizes, ranks, "output")
        places = Parts("all_to_all_single", sent, None, ranks, ("input_split_sizes", "")), _received(received)
        return _all_to_all(session, route, "all_to_all_single", name, async_op, arrays, vector, target, places)
    each = share(arrays.count(vector), ranks, "the input of all_to_all_single")
    check_count(target.count, ranks * each, "the output of all_to_all_single")
    rows = apart(arrays, vector, target).reshape(ranks, each)
    call = Call("all_to_all_single", (OP_ALLTOALL, arrays.code(output), vector.nbytes), vector.nbytes)
    outputs = target.outputs()
    return start(session, route, call, name, async_op, OP_ALLTOALL, (rows,), outputs, target.store, target.result)


def _elements(arrays: Arrays, tensor: Any, splits: Any, ranks: int, which: str) -> list[int]:
    """Return the number of elements for, or from, each rank, from a number of rows."""
    count = arrays.count(tensor)
    if splits is None:
        return [share(count, ranks, f"the {which} of all_to_all_single")] * ranks
    sizes = checked_counts("all_to_all_single", f"{which}_split_sizes", splits, ranks)
    rows = arrays.adapter.shape(tensor)[0] if arrays.adapter.shape(tensor) else 1
    if sum(sizes) != rows:
        raise InvalidArgumentError(
            f"{which}_split_sizes of all_to_all_single are {sizes}; they must add up to {rows}, the rows of the "
            f"{which}."
        )
    return [size * (count // rows) if rows else 0 for size in sizes]


def _received(counts: list[int]) -> Parts:
    return Parts("all_to_all", counts, None, len(counts), ("rcounts", "rdispls"))


def _all_to_all(
    session: Session,
    route: Route,
    title: str,
    name: Any,
    async_op: bool,
    arrays: Arrays,
    vector: Any,
    target: Target | TargetList,
    places: tuple[Parts, Parts],
) -> Work | None:
    """Start an exchange of parts; ``places`` are those to send and those to receive."""
    sent, received = places
    placed = target.starts and not received.packed
    fields = {
        "splits": sent.counts,
        "send_starts": None if sent.packed else sent.starts,
        "receive_rows": received.counts,
        "receive_starts": received.starts if placed else None,
    }
    call = Call(title, (OP_ALLTOALL, arrays.code(vector)), vector.nbytes)
    source = apart(arrays, vector, target)
    if sent.packed and arrays.count(source) > sum(sent.counts):
        source = source[: sum(sent.counts)]
    outputs = target.outputs(list(received))
    return start(
        session, route, call, name, async_op, OP_ALLTOALL, (source,), outputs, target.store, target.result, **fields
    )


@backend_first
def all_to_all(
    backend: Backend,
    output: Any,
    input: Any,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Send each rank one tensor of a list, and receive one from each.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: a list with a tensor for each rank: the r-th gets what the r-th rank of the group sends to this rank.
            Sizes may differ.
        input: a list with a tensor for each rank: the r-th goes to the r-th rank of the group. Sizes may differ.
        async_op: True returns a handle at once.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a list has the wrong length, its tensors have several dtypes, or this rank is not in the
            group. MismatchError: a rank sends another number of elements than another one expects, or dtype or
            operation differ between ranks. UnsupportedError: a backend cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    ranks = route.group.size()
    if not is_list(output) or not is_list(input) or not output or not input:
        raise InvalidArgumentError(
            "all_to_all takes two lists with a tensor for each rank; all_to_all_single takes tensors."
        )
    arrays = arrays_of(output[0])
    target = TargetList(arrays, output, ranks, "the output of all_to_all")
    vector, counts = joined_inputs(arrays, input, ranks, "the input of all_to_all")
    check_dtype(vector, target, "all_to_all")
    places = Parts("all_to_all", counts, None, ranks, ("the sizes of input", "")), _received(target.counts)
    return _all_to_all(session, route, "all_to_all", name, async_op, arrays, vector, target, places)


@backend_first
def all_to_allv(
    backend: Backend,
    output: Any,
    input: Any,
    scounts: Any,
    rcounts: Any,
    sdispls: Any = None,
    rdispls: Any = None,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Send each rank its number of elements, and receive some from each, with the position of each rank's part.

    Every list has one number of elements for each rank; lists may differ from rank to rank.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: flattened, elements ``[rdispls[r] : rdispls[r] + rcounts[r]]`` get what the r-th rank of the group sends
            to this rank. Elements that no part covers keep their values.
        input: flattened, elements ``[sdispls[r] : sdispls[r] + scounts[r]]`` go to the r-th rank of the group; parts
            may overlap and leave gaps. None: ``output`` has the values to send, too.
        scounts: numbers of elements to send.
        rcounts: numbers of elements to receive, those that the other ranks send.
        sdispls: positions in ``input``. None: one part follows the other.
        rdispls: positions in ``output``; parts must not overlap. None: one part follows the other.
        async_op: True returns a handle at once.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a list has the wrong length, a part is not within its tensor, received parts overlap, or
            this rank is not in the group. MismatchError: a rank sends another number of elements than another one
            expects, or dtype or operation differ between ranks. UnsupportedError: a backend cannot take the dtype or
            the device.
    """
    session, route = route_of(backend, group, async_op)
    ranks = route.group.size()
    arrays = arrays_of(output)
    target = Target(arrays, output, "the output of all_to_allv")
    vector = input_vector(arrays, output if input is None else input, "the input of all_to_allv")
    check_dtype(vector, output, "all_to_allv")
    sent = Parts("all_to_allv", scounts, sdispls, ranks, ("scounts", "sdispls"))
    received = Parts("all_to_allv", rcounts, rdispls, ranks, ("rcounts", "rdispls"))
    sent.check_within(arrays.count(vector), "its input")
    received.check_within(target.count, "its output")
    received.check_apart()
    return _all_to_all(session, route, "all_to_allv", name, async_op, arrays, vector, target, (sent, received))
