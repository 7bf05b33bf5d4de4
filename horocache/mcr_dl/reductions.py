"""Reductions: all_reduce, reduce, reduce_scatter and reduce_scatterv."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Counts
from threading import get_ident
from typing import Any, Literal

from horocache.base.operation_codes import OP_ALLREDUCE, OP_REDUCE, OP_REDUCESCATTER
from horocache.collectives.arguments import FullName, checked_root
from horocache.collectives.compression import NoneCompressor
from horocache.collectives.reduce_op import ReduceOp as CoreOp
from horocache.core.context import state as daemon_state
from horocache.errors import DuplicateNameError, HorocacheError, InvalidArgumentError, MismatchError
from horocache.mcr_dl.arrays import Arrays, arrays_of, plain
from horocache.mcr_dl.call_names import CallName, Sequence, Ticket
from horocache.mcr_dl.calls import (
    Backend,
    Call,
    backend_first,
    check_flag,
    finish,
    names_backends,
    route_of,
    start,
)
from horocache.mcr_dl.parts import (
    Target,
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
from horocache.mcr_dl.reduce_op import ReduceOp, core_op
from horocache.mcr_dl.session import AUTO, MAIN, MANY, Group, Route, Session, chosen_name, current, state
from horocache.mcr_dl.work import Work


def all_reduce(
    backend: Backend,
    output: Any = None,
    op: Any = ReduceOp.SUM,
    async_op: bool = False,
    *,
    input: Any = None,
    name: Any = None,
    group: Group | None = None,
    compression: Any = None,
) -> Work | None:
    """Reduce the ranks' tensors element by element; every rank gets the result.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: gets the result. Any shape, the same shape and dtype on all ranks; any strides.
        op: a :class:`ReduceOp`.
        async_op: True returns a handle at once.
        input: this rank's tensor, of the shape and dtype of ``output``. None: ``output`` has the values to reduce.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.
        compression: a compressor of ``horocache.Compression`` or ``horocache.torch.Compression``; None sends the
            tensors as they are.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: an argument is invalid, or this rank is not in the group. MismatchError: shape, dtype, op,
            compression or operation differ between ranks; names two ranks and both values. UnsupportedError: a backend
            or the op cannot take the dtype or the device.
    """
    # A decorator such as backend_first would cost a small operation more than the rest of this function.
    if type(backend) is not str:
        if not names_backends(backend):
            how = {"input": input, "name": name, "group": group, "compression": compression}
            return _all_reduce_by_auto(backend, output, op, async_op, how)
        backend = "|".join(backend)
    if async_op is not False and async_op is not True:
        check_flag(async_op)
    session = state.session
    if session is None or session.daemon is not daemon_state.session:
        session = current()
    route = session.routes.get(backend) if group is None else None
    if route is None:
        route = session.route(backend, group)
    if type(op) is not ReduceOp:
        op = ReduceOp(core_op(op))
    if input is None and compression is None:
        started = _in_place(session, route, output, op, async_op, name)
        if started is not None:
            return None if started is True else started
    tensors = output, output if input is None else input
    return _all_reduce(session, route, tensors, op, async_op, name, compression)


def _all_reduce_by_auto(first: Any, second: Any, third: Any, async_op: bool, how: dict[str, Any]) -> Work | None:
    """Call all_reduce without a backend: its arguments are one place to the left."""
    if first is None:
        raise InvalidArgumentError("the first argument of all_reduce must be a backend or a tensor, not None.")
    if second is None:
        return all_reduce(AUTO, first, third, async_op, **how)
    if third is ReduceOp.SUM:  # the default: the place of async_op is empty
        return all_reduce(AUTO, first, second, async_op, **how)
    if async_op is not False:
        raise InvalidArgumentError("all_reduce without a backend takes an output, an op and async_op, not more.")
    return all_reduce(AUTO, first, second, third, **how)


def _all_reduce(
    session: Session,
    route: Route,
    tensors: tuple[Any, Any],
    op: ReduceOp,
    async_op: bool,
    name: Any,
    compression: Any,
) -> Work | None:
    """Start all_reduce on the general path; ``tensors`` are its output and its input."""
    output, source = tensors
    arrays = arrays_of(output)
    key = _key(op, arrays.code(output), output)
    target = Target(arrays, output, "the output of all_reduce")
    call = Call("all_reduce", key, output.nbytes)
    if compression is not None and compression is not NoneCompressor:
        places = source, target, target.count
        return _compressed(session, route, call, arrays, places, op, async_op, name, compression)
    dense = _like(arrays, source, target, "all_reduce")
    outputs = (target.dense,)
    return start(
        session, route, call, name, async_op, OP_ALLREDUCE, (dense,), outputs, target.store, output, reduce_op=op
    )


def _key(op: ReduceOp, code: str, tensor: Any) -> tuple[int, int, str, int]:
    """Return the key of a call of all_reduce; see :meth:`Sequence.submit`."""
    return OP_ALLREDUCE, op._value_, code, tensor.nbytes  # the value, because an enum's hash is slow


def _in_place(
    session: Session, route: Route, output: Any, op: ReduceOp, async_op: bool, name: Any
) -> Work | Literal[True] | None:
    """Run all_reduce in place of a tensor that the core can read by itself, as most calls do.

    Returns:
        A handle if ``async_op``, else True when the operation is over. None if the call needs the general path.
    """
    arrays = plain.get(type(output))
    code = None if arrays is None else arrays.codes.get(output.dtype)
    if arrays is None or code is None or not session.backlog.empty:
        return None
    log = session.log
    before = 0 if log is None else time.monotonic_ns()
    submitted = _submit_in_place(session, route, output, _key(op, code, output), async_op, name)
    if submitted is None:
        return None
    handle, text, sequence, number = submitted
    if log is not None:
        log.note("all_reduce", route, CallName(text), output.nbytes, before)
    if not async_op:
        return _wait(session, route, handle, arrays, output, sequence, number)
    work = Work(route, handle, arrays.adapter.written, output, sequence, number)
    if len(session.in_flight) < MANY:
        session.in_flight[work] = None
        return work
    return session.adopt(work)


def _submit_in_place(
    session: Session, route: Route, output: Any, key: tuple[int, int, str, int], async_op: bool, name: Any
) -> tuple[int, str | bytes, Sequence | None, int] | None:
    """Submit a tensor that is its own output; returns the handle, and the call's name, sequence and number there.

    None if the tensor or the call needs the general path.
    """
    submit = session.runtime.allreduce_in_place
    op, number, backend = key[1], route.number, route.backend
    if name is not None:
        chosen = chosen_name(name)
        handle = submit(output, chosen, op, 1.0, 1.0, not async_op, number, backend, 0, True)
        return None if handle is None else (handle, chosen, None, 0)
    sequence = route.main if get_ident() == MAIN else route.sequence()
    if sequence is None or sequence.lost_at:
        return None
    with sequence.lock:
        order = sequence.order
        text = order.here.name
        try:
            handle = submit(output, text, op, 1.0, 1.0, not async_op, number, backend, 0, True)
        except DuplicateNameError:  # the general path puts the request into the backlog
            return None
        if handle is None:
            return None
        order.name(key)
        return handle, text, sequence, order.calls


def _wait(
    session: Session, route: Route, handle: int, arrays: Arrays, output: Any, sequence: Sequence | None, number: int
) -> Literal[True]:
    """Wait for an operation that has stored its result in ``output``. Returns True."""
    try:
        session.runtime.wait(handle)
    except HorocacheError as error:
        if sequence is not None and isinstance(error, MismatchError):
            sequence.disagreed(number)
        raise
    except BaseException:  # an interrupt: the operation goes on
        session.adopt(Work(route, handle, arrays.adapter.written, output, sequence, number))
        raise
    finally:
        log = session.log
        if log is not None:
            log.show()
    arrays.adapter.written(output)
    return True


def _like(arrays: Arrays, input: Any, target: Target, title: str) -> Any:
    """Return an input in contiguous memory; checks that it is like the output."""
    dense, _ = arrays.adapter.dense(arrays.checked(input, f"the input of {title}"))
    check_dtype(input, target.tensor, title)
    shape = arrays.adapter.shape(dense)
    if shape != arrays.adapter.shape(target.dense):
        raise InvalidArgumentError(
            f"the input of {title} has shape {shape}, its output {arrays.adapter.shape(target.dense)}."
        )
    # The core takes an output that is its input, but no other overlap.
    same = input is target.tensor
    overlap = not same and arrays.overlap(dense.reshape(-1), target.vector)
    return target.dense if same else arrays.copy(dense) if overlap else dense


def _compressed(
    session: Session,
    route: Route,
    call: Call,
    arrays: Arrays,
    places: tuple[Any, Target, int],
    op: int,
    async_op: bool,
    name: Any,
    compression: Any,
) -> Work | None:
    """Start all_reduce or reduce_scatter with compression.

    ``places`` are the input, the place of the result, and the number of elements of that which get the result.
    """
    source, target, count = places
    reduce = arrays.collectives
    function: Any = reduce.allreduce_async if call.title == "all_reduce" else reduce.reducescatter_async
    before = time.monotonic_ns()
    begun: list[tuple[Callable[[Any, Any], Any], Any]] = []  # of horocache's operation, once it has been submitted

    def submit(text: str | bytes, may_wait: bool) -> int | Ticket:
        full = FullName(text if isinstance(text, str) else text.decode("utf-8", "surrogateescape"))

        def submit_now() -> int:
            handle = function(
                source,
                name=full,
                op=CoreOp(op),
                process_set=route.group.process_set,
                backend=route.backend or None,
                compression=compression,
            )
            begun.append(session.daemon.pending.pop(handle))
            return int(handle)

        return session.backlog.submit(text, submit_now, not arrays.on_host(source)) if may_wait else submit_now()

    def store(_: Any, answer: Any) -> None:
        finish_begun, state = begun[0]
        arrays.adapter.copy_into(target.vector[:count], finish_begun(state, answer).reshape(-1))
        target.store(None, None)

    operation, named = route.submit(name, call.key, submit)
    return finish(session, route, call, named, operation, store, target.result, async_op, before)


@backend_first
def reduce(
    backend: Backend,
    output: Any,
    root: int,
    op: Any = ReduceOp.SUM,
    async_op: bool = False,
    *,
    input: Any = None,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Reduce the ranks' tensors element by element; the root gets the result.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: on the root gets the result, any shape. On other ranks it has the values to reduce, of the same shape
            and dtype, and is not modified; None there if ``input`` is given.
        root: a global rank in the group.
        op: a :class:`ReduceOp`.
        async_op: True returns a handle at once.
        input: this rank's tensor, of the shape and dtype of ``output``. None: ``output`` has the values to reduce.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: an argument is invalid, or this rank or the root is not in the group. MismatchError:
            shape, dtype, op, root or operation differ between ranks; names two ranks and both values.
            UnsupportedError: a backend or the op cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    place = checked_root("reduce", root, route.group.process_set)
    is_root = route.group.rank() == place
    source = output if input is None else input
    arrays = arrays_of(source)
    number = core_op(op)
    call = Call("reduce", (OP_REDUCE, number, arrays.code(source), source.nbytes, place), source.nbytes)
    fields = {"reduce_op": number, "root": place}
    if not is_root:
        dense, _ = arrays.adapter.dense(arrays.checked(source, "the input of reduce"))
        return start(session, route, call, name, async_op, OP_REDUCE, (dense,), (None,), store_nothing, None, **fields)
    target = Target(arrays, output, "the output of reduce")
    dense = target.dense if input is None else _like(arrays, input, target, "reduce")
    outputs = (target.dense,)
    return start(session, route, call, name, async_op, OP_REDUCE, (dense,), outputs, target.store, output, **fields)


@backend_first
def reduce_scatter(
    backend: Backend,
    output: Any,
    root: Any = None,
    op: Any = ReduceOp.SUM,
    async_op: bool = False,
    *,
    input: Any = None,
    name: Any = None,
    group: Group | None = None,
    compression: Any = None,
) -> Work | None:
    """Reduce the ranks' tensors and divide the result evenly: the r-th rank of the group gets the r-th part.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: with ``input`` it has m elements and gets this rank's part. Without ``input`` it has ranks * m elements,
            which are the values to reduce; its first m elements get this rank's part, the others keep their values, as
            with ``MPI_IN_PLACE``.
        root: not used, because every rank gets a part: the paper lists it. A tensor or a list here is the input, as in
            PyTorch's ``reduce_scatter(output, input_list)``.
        op: a :class:`ReduceOp`.
        async_op: True returns a handle at once.
        input: a tensor with ranks * m elements, or a list with a tensor of m elements for each rank.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.
        compression: a compressor of ``horocache.Compression`` or ``horocache.torch.Compression``; None sends the
            tensors as they are.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a tensor has the wrong size, an argument is invalid, or this rank is not in the group.
            MismatchError: size, dtype, op, compression or operation differ between ranks; names two ranks and both
            values. UnsupportedError: a backend or the op cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    if root is not None and not isinstance(root, int):
        input, root = _only(input, root), None
    ranks = route.group.size()
    arrays = arrays_of(output)
    target = Target(arrays, output, "the output of reduce_scatter")
    if input is None:
        source, each = target.vector, share(target.count, ranks, "the output of reduce_scatter, which is its input")
    else:
        source, each = _to_scatter(arrays, input, ranks, "reduce_scatter"), target.count
        check_dtype(source, output, "reduce_scatter")
        check_count(arrays.count(source), ranks * each, "the input of reduce_scatter")
    counts = [each] * ranks
    call = ("reduce_scatter", arrays.code(output), source)
    if compression is not None and compression is not NoneCompressor:
        key = (OP_REDUCESCATTER, core_op(op), arrays.code(output), source.nbytes)
        called = Call("reduce_scatter", key, source.nbytes)
        places = source, target, each
        return _compressed(session, route, called, arrays, places, core_op(op), async_op, name, compression)
    return _reduce_parts(session, route, arrays, call, target, counts, input is None, core_op(op), async_op, name)


def _only(input: Any, positional: Any) -> Any:
    if input is not None:
        raise InvalidArgumentError("reduce_scatter got its input twice: as the argument after output, and as input=.")
    return positional


def _to_scatter(arrays: Arrays, input: Any, ranks: int, title: str) -> Any:
    """Return a tensor, or a list with a tensor for each rank, as one vector."""
    what = f"the input of {title}"
    return joined_inputs(arrays, input, ranks, what)[0] if is_list(input) else input_vector(arrays, input, what)


def _reduce_parts(
    session: Session,
    route: Route,
    arrays: Arrays,
    call: tuple[str, str, Any],
    target: Target,
    counts: Counts[int],
    in_place: bool,
    op: int,
    async_op: bool,
    name: Any,
) -> Work | None:
    """Start a reduce_scatter of the vector in ``call``, whose first part gets the result if ``in_place``."""
    title, code, source = call
    own = counts[route.group.rank()]
    if in_place:  # the core stores no result in the memory of an input
        part = arrays.new(own, source)
        outputs = [part] if arrays.on_host(part) else None

        def store(_: Any, answer: Any) -> None:
            values = part if answer is None else arrays.adapter.from_result(answer[0]).reshape(-1)
            arrays.adapter.copy_into(target.vector[:own], values)
            target.store(None, None)
    else:
        outputs, store = target.head(own), target.store
        source = apart(arrays, source, target)
    key = (OP_REDUCESCATTER, op, code, source.nbytes)
    even = len(set(counts)) == 1
    fields = {"reduce_op": op, "splits": None if even else list(counts)}
    return start(
        session,
        route,
        Call(title, key, source.nbytes),
        name,
        async_op,
        OP_REDUCESCATTER,
        (source,),
        outputs,
        store,
        target.result,
        **fields,
    )


@backend_first
def reduce_scatterv(
    backend: Backend,
    output: Any,
    rcounts: Any,
    op: Any = ReduceOp.SUM,
    async_op: bool = False,
    *,
    input: Any = None,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Reduce the ranks' tensors and give each rank its number of elements of the result, in rank order.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        output: with ``input`` it has at least ``rcounts[r]`` elements, where r is this rank's rank in the group, and
            its first ``rcounts[r]`` elements get the result. Without ``input`` it has ``sum(rcounts)`` elements, which
            are the values to reduce; the first ``rcounts[r]`` get the result, the others keep their values.
        rcounts: one number of elements for each rank, the same on all ranks.
        op: a :class:`ReduceOp`.
        async_op: True returns a handle at once.
        input: a tensor with ``sum(rcounts)`` elements, or a list with a tensor for each rank.
        name: identifies the operation across ranks, which may then call in any order. None: the order of the calls on
            this backend and group identifies it.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: a tensor has the wrong size, an argument is invalid, or this rank is not in the group.
            MismatchError: ``rcounts``, dtype, op or operation differ between ranks. UnsupportedError: a backend or the
            op cannot take the dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    arrays = arrays_of(output)
    counts = checked_counts("reduce_scatterv", "rcounts", rcounts, route.group.size())
    target = Target(arrays, output, "the output of reduce_scatterv")
    own = counts[route.group.rank()]
    if input is None:
        source = target.vector
    else:
        source = _to_scatter(arrays, input, len(counts), "reduce_scatterv")
        check_dtype(source, output, "reduce_scatterv")
        if target.count < own:
            check_count(target.count, own, "the output of reduce_scatterv")
    check_count(arrays.count(source), sum(counts), "the input of reduce_scatterv")
    call = ("reduce_scatterv", arrays.code(output), source)
    return _reduce_parts(session, route, arrays, call, target, counts, input is None, core_op(op), async_op, name)
