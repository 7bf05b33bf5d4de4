"""An optimizer whose gradients are reduced over the ranks before each step."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

import torch
from horocache.collectives.adasum import check_floating, check_ranks
from horocache.collectives.api import Adasum, Average
from horocache.collectives.transforms import AnyCompressor, sends_unchanged
from horocache.core import context as _state
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.data_parallel.bucketing import NumGroups
from horocache.data_parallel.options import check_passes, gradient_options, members_of_lists
from horocache.errors import InvalidArgumentError, UnsupportedError

from ..adapter import collectives
from ..compile.dynamo import outside
from ..compression import Compression
from ..expert_parameters import is_expert
from ..ops import allreduce_async_
from .adasum_optimizer import AdasumMixin, AdasumOptions, check_no_experts
from .bucket_views import BucketView, check_bucket_view
from .debug_state import DebugState
from .expert_reducer import AnyReducer, label_parts, make_reducer, with_parameters
from .other_optimizers import default_prefix, describe, register
from .tuned_groups import tune_groups
from .wrapped_class import WrappedOptimizer, default_names, positions, wrap

Groups = int | list[list[torch.Tensor]] | None


class DistributedMixin(WrappedOptimizer):
    """The methods that :func:`DistributedOptimizer` adds to the class of the user's optimizer.

    Role: the first base of a class made for each wrapped optimizer, so that ``isinstance`` and learning-rate schedulers
    see the user's class; has no instances of its own. With a single rank, and on ranks outside of the process set, the
    reducer is None and every method acts like the user's optimizer's.
    """

    __slots__ = ("_reducer", "_seen", "_should_synchronize", "_synchronized", "_synchronized_for_scaler")

    _reducer: AnyReducer | None
    _seen: list[list[torch.Tensor]]  # each group's parameters when the reducer last followed the groups
    _should_synchronize: bool  # True if step() synchronizes
    _synchronized: bool  # True after synchronize(), until the next step()
    _synchronized_for_scaler: bool  # True if GradScaler caused the synchronize()

    @outside
    def synchronize(self) -> None:
        """Wait until all gradients are reduced; call it before :meth:`step` under :meth:`skip_synchronize`.

        Parameters without a gradient take part with zeros, because another rank may have one. If no rank has one,
        ``grad`` is None again afterwards, unless the optimizer was made with ``unused_as_zeros=True``.

        Parameters that were added to the groups without :meth:`add_param_group` take part from this step on; every rank
        must have added them before the same step.

        Raises:
            MismatchError, PeerLostError, StallError, ShutDownError, AbortedError: a reduction failed. All other
                reductions have ended.
        """
        self._reduce()
        self._synchronized = True

    def _reduce(self) -> None:
        if self._reducer is not None:
            changed = self._groups_have_changed()
            if changed:  # new parameters are reduced in this step
                self._reducer = with_parameters(self._reducer, self._new())
            self._reducer.synchronize()
            if changed:
                self._let_go()
        _state.count_step()

    def _groups_have_changed(self) -> bool:
        """Return True if parameters were added or removed unnoticed: programs can change the groups' lists."""
        if self._reducer is None:
            return False
        now = self.param_groups
        return len(now) != len(self._seen) or any(
            len(group["params"]) != len(seen) or not all(map(is_, group["params"], seen))
            for group, seen in zip(now, self._seen, strict=True)
        )

    def _new(self) -> list[tuple[str, torch.Tensor]]:
        """Return the parameters that were added to the groups, with their names."""
        assert self._reducer is not None
        known = self._reducer.parameters()
        return [(name, param) for name, param in self._named_parameters() if param not in known]

    def _let_go(self) -> None:
        """Let the reducer drop parameters that have left the groups. Requires that no gradient is in flight."""
        assert self._reducer is not None
        present = {param for group in self.param_groups for param in group["params"]}
        self._reducer.retain_parameters(present)
        for param in {param for seen in self._seen for param in seen} - present:
            self._names.pop(param, None)
        self._seen = [list(group["params"]) for group in self.param_groups]

    def _follow_groups(self) -> None:
        """Let the reducer add new parameters and drop those that have left, if no gradient is in flight."""
        if self._groups_have_changed() and not self._in_flight():
            assert self._reducer is not None
            self._reducer = with_parameters(self._reducer, self._new())
            self._let_go()

    def _exchange_parameters(self, gone: Iterable[torch.Tensor], new: dict[torch.Tensor, str | None]) -> None:
        """Follow parameters that have left the groups for other ranks, and those that have come from there.

        Args:
            gone: parameters that have left.
            new: those that have come, with their names on the rank that had them, which must be equal on all holders. A
                name that another parameter has here, as generated names may, is replaced by a generated one.
        """
        for param in gone:
            self._names.pop(param, None)
        used = set(self._names.values())
        self._names.update({param: name for param, name in new.items() if name is not None and name not in used})
        self._follow_groups()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Keep :meth:`step` from synchronizing within this context; :meth:`synchronize` must be called before.

        For programs that need the reduced gradients before the step, for example to clip them.
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, *arguments: Any, **options: Any) -> Any:
        """Synchronize, then step with the user's optimizer.

        Args:
            arguments: passed to the user's optimizer. A closure recomputes the loss; the gradients of each call are
                synchronized before they are used.
            options: passed to the user's optimizer.

        Raises:
            InvalidArgumentError: within :meth:`skip_synchronize`, parameters were added after :meth:`synchronize`.
        """
        self._record_step_for_schedulers()
        if not self._should_synchronize or (self._synchronized_for_scaler and not self._in_flight()):
            self._check_all_are_synchronized()
            self._synchronized = self._synchronized_for_scaler = False
            return super().step(*arguments, **options)
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
                "if you use optimizer.synchronize() in your code.",
                stacklevel=3,
            )
        recompute = arguments[0] if arguments else options.get("closure")
        if not callable(recompute) or self._in_flight():
            self.synchronize()
        self._synchronized = False
        if not callable(recompute):
            return super().step(*arguments, **options)

        def synchronized_closure() -> Any:
            loss = recompute()
            self._reduce()
            return loss

        if arguments:
            return super().step(synchronized_closure, *arguments[1:], **options)
        return super().step(**{**options, "closure": synchronized_closure})

    def _check_all_are_synchronized(self) -> None:
        new = self._new() if self._groups_have_changed() else []
        if new:
            raise InvalidArgumentError(
                f"rank {_state.rank()}: {len(new)} parameters, of which the first is {new[0][0]!r} of shape "
                f"{tuple(new[0][1].shape)}, have come into the optimizer's groups since optimizer.synchronize(), so "
                "their gradients are not reduced. Call synchronize() again before step()."
            )

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        """Clear the gradients with the user's optimizer, which gets the arguments.

        Raises:
            AssertionError: gradients are in flight, between ``backward()`` and ``step()`` or ``synchronize()``.
        """
        if self._in_flight():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        if self._synchronized_for_scaler:  # GradScaler skipped the step
            self._synchronized = self._synchronized_for_scaler = False
        super().zero_grad(*arguments, **options)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """True if the user's optimizer handles scaled gradients itself.

        ``GradScaler.step`` reads this attribute before it inspects the gradients, so the gradients are synchronized
        here. Otherwise a rank whose gradients overflowed would be the only one to skip the step, and the other ranks
        would unscale gradients that are in flight.
        """
        if self._should_synchronize and (self._in_flight() or self._groups_have_changed()):
            self.synchronize()
            self._synchronized_for_scaler = True
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    def _in_flight(self) -> bool:
        return self._reducer is not None and self._reducer.busy

    @property
    def backward_passes_per_step(self) -> int:
        """Number of backward passes that add up to one gradient."""
        passes: int = self._arguments["backward_passes_per_step"]
        return passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes that add up to one gradient, and restart the count."""
        check_passes(passes)
        self._arguments["backward_passes_per_step"] = passes
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the user's optimizer and start a new step: waits for gradients in flight and drops them."""
        if self._reducer is not None:
            self._reducer.reset()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; every rank must do so between the same two steps.

        Raises:
            AssertionError: gradients are in flight; nothing is added.
        """
        if self._in_flight():
            raise AssertionError(
                "optimizer.add_param_group() was called while gradients are in flight; call it after step()."
            )
        super().add_param_group(param_group)
        self._follow_groups()

    def debug_state(self) -> DebugState:
        """Return the names, bucket views and priorities of the gradients, by bucket.

        It has no bucket if this rank reduces nothing: the process set has one rank, or this rank is not in it.
        """
        return DebugState() if self._reducer is None else self._reducer.debug_state()

    def _allreduce_grad_async(self, param: torch.Tensor) -> tuple[Any, Any]:
        """Start to reduce one parameter's gradient; return a handle and the compressor's context, as Horovod does.

        Raises:
            UnsupportedError: the parameter belongs to an expert.
        """
        if is_expert(param):
            raise UnsupportedError(
                f"{self._names[param]} belongs to an expert, whose gradient is not averaged over all ranks. Call "
                "synchronize(), which reduces it over its holders."
            )
        tensor, context = self._arguments["compression"].compress(param.grad)
        options = {name: self._arguments[name] for name in ("op", "process_set")}
        return allreduce_async_(tensor, name=self._names[param], **options), context


def _names(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    process_set: ProcessSet,
) -> tuple[str, dict[torch.Tensor, str]]:
    """Return the prefix of generated names, and the names of at least all parameters of the optimizer."""
    if named_parameters is None:
        params = [param for _, _, param in positions(optimizer.param_groups)]
        # Some ranks may have no experts, and so one optimizer less.
        only_experts = bool(params) and all(map(is_expert, params))
        prefix = "experts." if only_experts else default_prefix(process_set)
        return prefix, default_names(prefix, optimizer.param_groups)
    named = list(named_parameters)
    _check_pairs(named)
    names = {param: name for name, param in named}
    unnamed = [
        f"group {g}, position {i}, shape {tuple(p.shape)}"
        for g, i, p in positions(optimizer.param_groups)
        if p not in names
    ]
    if unnamed:
        raise InvalidArgumentError(
            "named_parameters was specified, but one or more model parameters were not named: " + "; ".join(unnamed)
        )
    return "", names


def _check_pairs(named: list[Any]) -> None:
    """Raise InvalidArgumentError unless these are pairs of a unique name and a parameter."""
    if any(not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str) for item in named):
        raise InvalidArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in named]
    repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise InvalidArgumentError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(repeated)}."
        )


def _check_members(optimizer: torch.optim.Optimizer, groups: list[list[torch.Tensor]]) -> None:
    """Raise InvalidArgumentError unless these are lists of the optimizer's parameters, each in at most one list."""
    registered = {param for _, _, param in positions(optimizer.param_groups)}
    for place, param in members_of_lists(groups, "torch.Tensor", lambda each: isinstance(each, torch.Tensor), id):
        if param not in registered:
            raise InvalidArgumentError(
                f"{place} is in no parameter group of the optimizer; give the optimizer's own parameters."
            )


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: AnyCompressor | None = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: NumGroups = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient_as_bucket_view: BucketView = "auto",
    unused_as_zeros: bool = False,
) -> DistributedMixin | AdasumMixin:
    """Wrap an optimizer so that each step uses gradients reduced over all ranks.

    Gradients are submitted while the backward pass still runs. The wrapped optimizer shares all attributes with
    ``optimizer``: schedulers, callbacks and inner optimizers may be given either of them, before or after this call.
    Call the ``step()`` of the wrapped optimizer. Every rank must wrap the same parameters with the same options.

    ``copy.deepcopy((model, optimizer))`` makes a distributed optimizer of the copied model, whose gradients are named
    ``copy.NAME``. A pickled distributed optimizer is distributed again when it is loaded after ``init()``. The
    ``state_dict()`` is that of the plain optimizer.

    Parameters of experts (see :func:`horocache.torch.moe.mark_expert`) do not join the groups and operations of the
    other parameters. The ranks that hold an expert add up its gradients, and with Average divide them by the size of
    ``process_set``. Ranks may wrap different experts, or none; names are the same on all ranks that hold the expert.

    Args:
        optimizer: any ``torch.optim.Optimizer``.
        named_parameters: pairs of name and parameter, as from ``model.named_parameters()``. Names identify gradients
            across ranks and in errors. Two optimizers whose gradients are in flight at the same time need different
            names, such as those of ``named_parameters(prefix="encoder")``. None: names are made from the number of the
            optimizer, the group and the position; every rank must then wrap its optimizers in the same order.
        compression: a class of ``Compression``, a codec such as ``Compression.topk(ratio=0.01)``, or a user's
            compressor, which converts gradients for sending. None means no compression. A codec needs Average or Sum.
        backward_passes_per_step: the number of backward passes that add up to one gradient before it is reduced.
        op: Average, Sum, Min, Max or Product; or Adasum. With Adasum, each rank makes its own step, and the ranks'
            changes of the parameters are combined (Maleki et al., 2021) as one group; the number of ranks must be a
            power of two.
        gradient_predivide_factor: with Average, gradients are divided by this factor before the sum, and the sum is
            divided by the number of ranks over this factor.
        num_groups: the number of groups in which gradients are reduced, each as one operation; 0 reduces each gradient
            by itself. "auto": one group for each 25 MiB, at most 10. Groups have about equal bytes; of three or more
            groups, the first and the last have a quarter of the others. With the knob ``group_by=count``, groups have
            equal numbers of gradients. In the first step, groups follow the reverse order of registration; later, the
            order in which rank 0's gradients became ready in the first step, or in the step after
            :meth:`add_param_group`. The group that the next forward pass needs first, judged by the last forward pass
            of rank 0 in that step, has the highest priority.
        groups: a number, with the meaning of ``num_groups``; or lists of parameters, each of which is reduced as one
            group. Other parameters are reduced by themselves. Frozen parameters are left out.
        sparse_as_dense: True to reduce sparse gradients as dense ones, instead of gathering them; they are sparse again
            afterwards.
        process_set: the ranks that take part; on other ranks the optimizer works by itself.
        gradient_as_bucket_view: True if gradients live in bucket views, side by side in memory, where they are reduced
            in place. On the CPU the ranks of the host share this memory. With ``zero_grad(set_to_none=False)`` no
            gradient is copied then; with ``set_to_none=True`` each new gradient is copied once, into its bucket view.
            "auto": for CPU gradients, if all ranks are on one host and gradients are not compressed. A gradient stays
            where it is if other tensors share its memory, for example because the program has assigned a view of its
            own buffer, or if it has a graph of its own (``create_graph=True``).
        unused_as_zeros: how to treat a parameter without a gradient on any rank, because it was frozen later or the
            loss did not use it. False leaves its ``grad`` None, so that the optimizer skips it, as in one process. True
            gives it a gradient of zeros, as Horovod does: momentum and weight decay move it. With True, a parameter
            with sparse gradients must have a gradient on every rank in its first step.

    Returns:
        An instance of a class that derives from the class of ``optimizer``, with the methods of
        :class:`DistributedMixin` (for Adasum, of :class:`~horocache.torch.optimizer.adasum_optimizer.AdasumMixin`).

    Raises:
        ValueError: ``optimizer`` is not a ``torch.optim.Optimizer``, names are missing or not unique, groups are
            invalid, a predivide factor is given without Average, ``backward_passes_per_step`` is below 1, the
            compression lacks a method, or the process set is not registered.
        UnsupportedError: a trainable parameter is neither on the CPU nor on a CUDA device; Adasum with a number of
            ranks that is not a power of two, or with parameters that are not floating-point numbers; a codec with
            another op than Average and Sum, or parameters of experts with such an op; ``gradient_as_bucket_view=True``
            with a compression, or with a torch that cannot count the tensors on a storage.
        NotInitializedError: before ``init()``.
    """
    arguments = dict(locals())  # a copy of the optimizer is wrapped with these
    del arguments["optimizer"], arguments["named_parameters"]
    _check_is_plain(optimizer)
    options = gradient_options(
        compression=Compression.none if compression is None else compression,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        check_members=partial(_check_members, optimizer),
        takes_codecs=True,
    )
    prefix, names = _names(optimizer, named_parameters, process_set)
    arguments["compression"] = options.compression
    common: dict[str, Any] = {"_make": DistributedOptimizer, "_prefix": prefix}
    if op == Adasum:
        _check_adasum(optimizer, process_set)
        settings = AdasumOptions(options.compression, process_set, options.takes_part)
        return wrap(optimizer, AdasumMixin, names, arguments, **common, _adasum=settings)
    check_bucket_view(gradient_as_bucket_view, sends_unchanged(options.compression))
    # In the order of the user's names, which is the registration order of the model.
    registered = {param for _, _, param in positions(optimizer.param_groups)}
    named = [(name, param) for param, name in names.items() if param in registered]
    reducer = make_reducer(named, options, gradient_as_bucket_view, unused_as_zeros)
    distributed = wrap(
        optimizer,
        DistributedMixin,
        names,
        arguments,
        **common,
        _reducer=reducer,
        _seen=[list(group["params"]) for group in optimizer.param_groups],
        _synchronized=False,
        _should_synchronize=True,
        _synchronized_for_scaler=False,
    )
    if reducer is not None:
        reducer.parts[0].tuned_groups = tune_groups(num_groups, process_set, reducer.parts[0].default_groups())
        label_parts(reducer, describe(optimizer))
        register(distributed)
    return distributed


def _check_adasum(optimizer: torch.optim.Optimizer, process_set: ProcessSet) -> None:
    check_ranks(process_set.size())
    check_no_experts(param for _, _, param in positions(optimizer.param_groups))
    for _, _, param in positions(optimizer.param_groups):
        check_floating(param, collectives.adapter)


def _check_is_plain(optimizer: Any) -> None:
    if isinstance(optimizer, WrappedOptimizer):
        raise InvalidArgumentError("the optimizer is distributed already; wrap the plain optimizer.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise InvalidArgumentError(
            f"DistributedOptimizer takes a torch.optim.Optimizer, and {kind} does not derive from that, so that its "
            f"step() would not be called. Wrap the optimizer inside: {kind}(..., DistributedOptimizer(optimizer, ...))."
        )
