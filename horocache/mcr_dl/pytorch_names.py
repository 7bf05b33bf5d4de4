"""The names of MCR-DL's public code and of torch.distributed, for programs that are written with them.

The backend comes first, as everywhere in mcr_dl, and may be left out; what PyTorch has behind the tensors, such as the
group, is given by keyword.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from horocache.base.operation_codes import OP_ALLGATHER, OP_ALLREDUCE
from horocache.core import context
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.mcr_dl import comms_log, gathering, lifecycle, reductions
from horocache.mcr_dl.arrays import arrays_of
from horocache.mcr_dl.calls import Backend, Call, backend_first, route_of, start
from horocache.mcr_dl.parts import Target, apart, check_count, check_dtype, input_vector, is_list
from horocache.mcr_dl.reduce_op import ReduceOp, core_op
from horocache.mcr_dl.session import AUTO, Group, current
from horocache.mcr_dl.work import Work, seconds_of


def init_distributed(
    dist_backend: str | Sequence[str] | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: float | timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Mapping[str, Any] | None = None,
    rank: int = -1,
    world_size: int = -1,
    use_mcr_dl: bool = True,
) -> None:
    """Begin to use backends, as :func:`init` does.

    Args:
        dist_backend: a name or a list of names; None: all backends of the job.
        auto_mpi_discovery: not used: horocache finds the job from the launcher's environment, mpiexec's included.
        distributed_port: not used: ranks of one host meet at a socket, ranks of several hosts over MPI.
        verbose: not used.
        timeout: seconds, or a timedelta, after which an operation fails that some ranks have not submitted. It sets the
            knob ``stall_shutdown_time_seconds``, if horocache does not run yet.
        init_method: None or ``"env://"``.
        dist_init_required: False does nothing if mcr_dl does not run.
        config: a configuration whose section ``comms_logger`` goes to :func:`configure`.
        rank: the rank of this process; -1 leaves it to the launcher.
        world_size: the number of ranks; -1 leaves it to the launcher.
        use_mcr_dl: not used.

    Raises:
        UnsupportedError: ``init_method`` names an address. InvalidArgumentError: ``rank`` or ``world_size`` are not the
            launcher's. All errors of :func:`init`.
    """
    if init_method not in (None, "env://"):
        raise UnsupportedError(
            f"init_method={init_method!r}: the launcher (horocacherun, torchrun, mpiexec, srun) forms the job. Leave "
            "it away."
        )
    if dist_init_required is False and not lifecycle.is_initialized():
        return
    seconds = None if timeout is None else seconds_of(timeout)
    if config is not None and config.get("comms_logger") is not None:
        comms_log.configure(config)
    knobs: dict[str, Any] = {} if seconds is None or context.running() else {"stall_shutdown_time_seconds": seconds}
    lifecycle.init(AUTO if dist_backend is None else dist_backend, **knobs)
    found = (current().runtime.rank, current().runtime.size)
    for what, asked, real in zip(("rank", "world_size"), (rank, world_size), found, strict=True):
        if asked not in (-1, real):
            raise InvalidArgumentError(
                f"{what}={asked}, but the launcher has made this process rank {found[0]} of {found[1]}."
            )


def is_available() -> bool:
    """Return True: the package needs nothing that could be missing."""
    return True


def get_world_size(group: Group | None = None) -> int:
    """Return the number of ranks in the group, or of all."""
    return lifecycle.get_size(AUTO, group)


def get_local_rank() -> int:
    """Return the rank of this process among those on its host, from 0."""
    return current().runtime.local_rank


def get_global_rank(group: Group | None, group_rank: int) -> int:
    """Return the global rank of a rank of a group.

    Raises:
        InvalidArgumentError: the group has no such rank.
    """
    ranks = get_all_ranks_from_group(group)
    if not isinstance(group_rank, int) or not 0 <= group_rank < len(ranks):
        raise InvalidArgumentError(f"a group of {len(ranks)} ranks has no rank {group_rank!r}.")
    return ranks[group_rank]


def get_all_ranks_from_group(group: Group | None = None) -> list[int]:
    """Return the global ranks of a group, ascending."""
    session = current()
    return session.world.group.ranks if group is None else group.ranks


@backend_first
def broadcast(
    backend: Backend, tensor: Any, src: int, async_op: bool = False, *, name: Any = None, group: Group | None = None
) -> Work | None:
    """Copy the tensor of rank ``src`` to all ranks; see :func:`bcast`."""
    return gathering.bcast(backend, tensor, src, async_op, name=name, group=group)


@backend_first
def inference_all_reduce(
    backend: Backend,
    tensor: Any,
    op: Any = ReduceOp.SUM,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Reduce in place; the same as :func:`all_reduce`."""
    return reductions.all_reduce(backend, tensor, op, async_op, name=name, group=group)


@backend_first
def all_gather_into_tensor(
    backend: Backend,
    output: Any,
    input: Any = None,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Concatenate the ranks' tensors in one tensor; see :func:`all_gather`."""
    if is_list(output):
        raise InvalidArgumentError("all_gather_into_tensor needs a tensor as output; all_gather takes a list.")
    return gathering.all_gather(backend, output, input, async_op, name=name, group=group)


@backend_first
def allgather_fn(
    backend: Backend,
    output: Any,
    input: Any = None,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Concatenate the ranks' tensors in one tensor; the same as :func:`all_gather_into_tensor`."""
    return all_gather_into_tensor(backend, output, input, async_op, name=name, group=group)


@backend_first
def reduce_scatter_tensor(
    backend: Backend,
    output: Any,
    input: Any,
    op: Any = ReduceOp.SUM,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
    compression: Any = None,
) -> Work | None:
    """Reduce the ranks' inputs and give each rank its part of the result; see :func:`reduce_scatter`."""
    how = {"input": input, "name": name, "group": group, "compression": compression}
    return reductions.reduce_scatter(backend, output, None, op, async_op, **how)


@backend_first
def reduce_scatter_fn(
    backend: Backend,
    output: Any,
    input: Any,
    op: Any = ReduceOp.SUM,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Reduce the ranks' inputs and give each rank its part; the same as :func:`reduce_scatter_tensor`."""
    return reduce_scatter_tensor(backend, output, input, op, async_op, name=name, group=group)


@backend_first
def all_reduce_coalesced(
    backend: Backend,
    tensors: Sequence[Any],
    op: Any = ReduceOp.SUM,
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Reduce several tensors in place, as one operation.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        tensors: a list of tensors, of the same shapes and dtypes on all ranks; they get the results.
        op: a :class:`ReduceOp`.
        async_op: True returns a handle at once.
        name: identifies the operation across ranks. None: the order of the calls on this backend and group does.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: ``tensors`` is not a list with tensors, or tensors share memory. MismatchError: the lists
            differ between ranks. UnsupportedError: a backend or the op cannot take a dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    if not is_list(tensors) or not tensors:
        raise InvalidArgumentError(f"all_reduce_coalesced needs a list of tensors, not {tensors!r}.")
    arrays = arrays_of(tensors[0])
    number = core_op(op)
    targets = [Target(arrays, tensor, "a tensor of all_reduce_coalesced") for tensor in tensors]
    dense = tuple(target.dense for target in targets)
    parts = tuple((arrays.code(tensor), tensor.nbytes) for tensor in dense)
    call = Call("all_reduce_coalesced", (OP_ALLREDUCE, number, *parts), sum(size for _, size in parts))

    def store(_: Any, __: Any) -> None:
        for target in targets:
            target.store(None, None)

    fields = {"reduce_op": number, "group": True}
    return start(session, route, call, name, async_op, OP_ALLREDUCE, dense, dense, store, list(tensors), **fields)


@backend_first
def all_gather_coalesced(
    backend: Backend,
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    async_op: bool = False,
    *,
    name: Any = None,
    group: Group | None = None,
) -> Work | None:
    """Gather several tensors, as one operation, each into a tensor of its own.

    Args:
        backend: a backend given to :func:`init`, ``name/algorithm``, a list of these, or ``"auto"``, which is also the
            meaning if it is left out.
        outputs: a list of tensors; the i-th has ranks * m elements, where m is the number of elements of the i-th
            input. Elements ``[r * m : (r + 1) * m]`` get the input of the r-th rank of the group.
        inputs: a list of this rank's tensors, of the same sizes and dtypes on all ranks.
        async_op: True returns a handle at once.
        name: identifies the operation across ranks. None: the order of the calls on this backend and group does.
        group: from :func:`new_group`; None: all ranks.

    Returns:
        A :class:`Work` if ``async_op``, else None.

    Raises:
        InvalidArgumentError: the lists differ in length, or a tensor has the wrong size. MismatchError: the inputs
            differ between ranks. UnsupportedError: a backend cannot take a dtype or the device.
    """
    session, route = route_of(backend, group, async_op)
    if not is_list(outputs) or not is_list(inputs) or not inputs or len(outputs) != len(inputs):
        raise InvalidArgumentError("all_gather_coalesced needs two lists of tensors of the same length.")
    ranks = route.group.size()
    arrays = arrays_of(inputs[0])
    targets = [Target(arrays, tensor, "an output of all_gather_coalesced") for tensor in outputs]
    rows = []
    for tensor, target in zip(inputs, targets, strict=True):
        vector = input_vector(arrays, tensor, "an input of all_gather_coalesced")
        check_dtype(vector, target, "all_gather_coalesced")
        check_count(target.count, ranks * arrays.count(vector), "an output of all_gather_coalesced")
        for other in targets:
            vector = apart(arrays, vector, other)
        rows.append(vector.reshape(1, arrays.count(vector)))
    parts = tuple((arrays.code(row), row.nbytes) for row in rows)
    call = Call("all_gather_coalesced", (OP_ALLGATHER, *parts), sum(size for _, size in parts))
    places = [target.outputs() for target in targets]
    given = [place[0] for place in places if place is not None]

    def store(_: Any, answer: Any) -> None:
        for number, target in enumerate(targets):
            target.store(None, None if answer is None else answer[number : number + 1])

    results = given if len(given) == len(targets) else None
    tensors = list(outputs)
    return start(session, route, call, name, async_op, OP_ALLGATHER, rows, results, store, tensors, group=True)


def has_all_gather_into_tensor() -> bool:
    """Return True: every backend has the operation."""
    return bool(current())


def has_reduce_scatter_tensor() -> bool:
    """Return True: every backend has the operation."""
    return bool(current())


def has_all_reduce_coalesced() -> bool:
    """Return True: every backend has the operation."""
    return bool(current())


def has_coalescing_manager() -> bool:
    """Return False: use all_reduce_coalesced and all_gather_coalesced, or rely on fusion, which needs no manager."""
    return not current()
