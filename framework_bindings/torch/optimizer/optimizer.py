"""An optimizer whose gradients are reduced over the ranks before each step."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

from horocache.torch.adapter import collectives
from horocache.torch.compile.dynamo import outside
from horocache.torch.compression import Compression
from horocache.torch.ops import allreduce_async_
from horocache.torch.optimizer.adasum_optimizer import AdasumMixin, AdasumOptions
from horocache.torch.optimizer.bucket_views import BucketView, check_bucket_view
from horocache.torch.optimizer.other_optimizers import default_prefix, describe, enter
from horocache.torch.optimizer.reducer import GradientReducer
from horocache.torch.optimizer.wrapped_class import WrappedOptimizer, positions, wrap

import torch
from horocache.collectives.adasum import check_floating, check_ranks
from horocache.collectives.api import Adasum, Average
from horocache.collectives.transforms import AnyCompressor, layer_list
from horocache.core import context as _state
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.data_parallel.options import check_passes, gradient_options, members_of_lists
from horocache.errors import InvalidArgumentError

Groups = int | list[list[torch.Tensor]] | None


class DistributedMixin(WrappedOptimizer):
    """What :func:`DistributedOptimizer` adds to the class of the user's optimizer.

    Role: never used alone; the first base of a class made for each wrapped optimizer, so that ``isinstance`` and
    learning-rate schedulers see the user's class. With one rank there is no reducer, and every method is the user's
    optimizer's.
    """

    __slots__ = ("_reducer", "_seen", "_should_synchronize", "_synchronized", "_synchronized_for_scaler")

    _reducer: GradientReducer | None
    _seen: list[list[torch.Tensor]]  # each group's parameters when the reducer last followed them
    _should_synchronize: bool
    _synchronized: bool
    _synchronized_for_scaler: bool

    @outside
    def synchronize(self) -> None:
        """Wait until all gradients are reduced; for use before :meth:`step` under :meth:`skip_synchronize`.

        Parameters without a gradient take part with zeros, because another rank may have one. Where no rank has one,
        ``grad`` is None again afterwards (see ``unused_as_zeros`` of :func:`DistributedOptimizer`).

        Parameters that came into the groups by another way than :meth:`add_param_group` take part from this step on;
        every rank must have put them there before the same step.

        Raises:
            MismatchError, PeerLostError, StallError, ShutDownError, AbortedError: a reduction failed. All others have
            been waited for.
        """
        self._reduce()
        self._synchronized = True

    def _reduce(self) -> None:
        if self._reducer is not None:
            changed = self._groups_have_changed()
            if changed:  # what is new is reduced in this very step
                self._reducer.take(self._new())
            self._reducer.synchronize()
            if changed:
                self._let_go()
        _state.count_step()

    def _groups_have_changed(self) -> bool:
        """Whether parameters have come or gone unseen: anybody can change the lists of the groups."""
        if self._reducer is None:
            return False
        now = self.param_groups
        return len(now) != len(self._seen) or any(
            len(group["params"]) != len(seen) or not all(map(is_, group["params"], seen))
            for group, seen in zip(now, self._seen, strict=True)
        )

    def _new(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters that have come."""
        assert self._reducer is not None
        known = self._reducer.parameters()
        return [(name, param) for name, param in self._named_parameters() if param not in known]

    def _let_go(self) -> None:
        """Let the reducer drop what has left, when nothing is in flight."""
        assert self._reducer is not None
        present = {param for group in self.param_groups for param in group["params"]}
        self._reducer.keep(present)
        for param in {param for seen in self._seen for param in seen} - present:
            self._names.pop(param, None)
        self._seen = [list(group["params"]) for group in self.param_groups]

    def _follow_groups(self) -> None:
        """Let the reducer take what has come and drop what has left, between two steps."""
        if self._groups_have_changed() and not self._in_flight():
            assert self._reducer is not None
            self._reducer.take(self._new())
            self._let_go()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let :meth:`step` inside it not synchronize, because :meth:`synchronize` was called before.

        For whoever needs the reduced gradients before the step, to clip them for example.
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, *arguments: Any, **options: Any) -> Any:
        """Synchronize, then step with the user's optimizer.

        Args:
            arguments: those of the user's optimizer. A closure recomputes the loss; the gradients of each call are
                synchronized before they are used.
            options: those of the user's optimizer.

        Raises:
            InvalidArgumentError: within :meth:`skip_synchronize`, if parameters have come since :meth:`synchronize`.
        """
        self._tell_schedulers()
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
        """Clear the gradients, as the user's optimizer does it, with its arguments.

        Raises:
            AssertionError: gradients are in flight, between ``backward()`` and ``step()`` or ``synchronize()``.
        """
        if self._in_flight():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        if self._synchronized_for_scaler:  # it skipped the step
            self._synchronized = self._synchronized_for_scaler = False
        super().zero_grad(*arguments, **options)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """The user's optimizer's. ``GradScaler.step`` asks for it before it looks at the gradients.

        So this is where they must be the reduced ones: else a rank that overflowed would skip the step alone, and the
        others would unscale what is still under way.
        """
        if self._should_synchronize and (self._in_flight() or self._groups_have_changed()):
            self.synchronize()
            self._synchronized_for_scaler = True
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    def _in_flight(self) -> bool:
        return self._reducer is not None and self._reducer.busy

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes make one gradient."""
        passes: int = self._arguments["backward_passes_per_step"]
        return passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes make one gradient. Passes counted so far are forgotten."""
        check_passes(passes)
        self._arguments["backward_passes_per_step"] = passes
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the user's optimizer's state and start a new step: what is in flight is waited for and dropped."""
        if self._reducer is not None:
            self._reducer.reset()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; every rank must do so between the same two steps.

        Raises:
            AssertionError: gradients are in flight; nothing is added.
        """
        if self._in_flight():
            raise AssertionError(
                "optimizer.add_param_group() was called while gradients are in flight; call it after step()."
            )
        super().add_param_group(param_group)
        self._follow_groups()

    def _allreduce_grad_async(self, param: torch.Tensor) -> tuple[Any, Any]:
        """Start to reduce the gradient of one parameter; returns a handle and the compressor's context, as Horovod."""
        tensor, context = self._arguments["compression"].compress(param.grad)
        options = {name: self._arguments[name] for name in ("op", "process_set")}
        return allreduce_async_(tensor, name=self._names[param], **options), context


def _names(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    process_set: ProcessSet,
) -> tuple[str, dict[torch.Tensor, str]]:
    """What names begin with that nobody gives, and the names of at least all parameters that the optimizer has."""
    if named_parameters is None:
        prefix = default_prefix(process_set)
        return prefix, {p: f"{prefix}noname.{g}.{i}" for g, i, p in positions(optimizer.param_groups)}
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
    """Raise if these are not pairs of a name of its own and a parameter."""
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
    """Raise unless these are lists of the optimizer's parameters, each in one list at most."""
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
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient_as_bucket_view: BucketView = "auto",
    unused_as_zeros: bool = False,
) -> DistributedMixin | AdasumMixin:
    """Wrap an optimizer so that each step uses gradients reduced over all ranks.

    Gradients are submitted while the backward pass still runs. The wrapped optimizer has all attributes in common with
    ``optimizer``: schedulers, callbacks and inner optimizers may be given either, before or after this call. Call the
    wrapped one's ``step()``. Every rank must wrap the same parameters with the same options.

    ``copy.deepcopy((model, optimizer))`` makes a distributed optimizer of the copied model, whose gradients have the
    names ``copy.NAME``. A pickled one is distributed again when it is loaded after ``init()``; its ``state_dict()`` is
    that of the plain one.

    Args:
        optimizer: any ``torch.optim.Optimizer``.
        named_parameters: pairs of name and parameter, as from ``model.named_parameters()``; names identify gradients
            across ranks and in errors. Two optimizers whose gradients are on their way at the same time need different
            names, such as those of ``named_parameters(prefix="encoder")``. Without names, gradients are called by group
            and position, after the number of the optimizer; every rank must wrap its optimizers in the same order then.
        compression: of ``Compression``, or one's own compressor: gradients travel as it makes them. None is none.
        backward_passes_per_step: how many backward passes add up to one gradient before it is reduced.
        op: Average, Sum, Min, Max or Product; or Adasum, with which each rank makes its own step, and the ranks'
            changes of the parameters are combined (Maleki et al., 2021); their number must be a power of two then, and
            all parameters are one group.
        gradient_predivide_factor: with Average, divides before the sum by this factor and after it by the rest of the
            number of ranks.
        num_groups: how many groups the gradients are reduced in, each as one operation; 0 reduces each by itself.
            Groups are cut by equal bytes, of which the first and the last of three and more have a quarter (by equal
            counts with the knob ``group_by=count``), for the first step from the last registered parameter to the
            first, then in the order in which rank 0's gradients became ready in the first step, or in the step after
            :meth:`add_param_group`. The group that the next forward pass needs first, by rank 0's last one in that
            step, has the highest priority.
        groups: a number, as ``num_groups``, or lists of parameters that are reduced together; the others are reduced
            each by itself. Frozen parameters are left out.
        sparse_as_dense: reduce sparse gradients as dense ones, instead of gathering them; they are sparse afterwards.
        process_set: the ranks that take part; on any other rank the optimizer works by itself.
        gradient_as_bucket_view: whether gradients live side by side in memory that the ranks of the host share, where
            they are reduced in place. With ``zero_grad(set_to_none=False)`` nothing is copied then; with None, each new
            gradient once, into its place. "auto": where that is safe and of use, which is where all ranks are on one
            host and gradients are not compressed. A gradient that the program has put there itself, that others have
            memory in common with, or that has a graph of its own (``create_graph=True``) stays where it is.
        unused_as_zeros: what becomes of a parameter that no rank gave a gradient, because it was frozen later or the
            loss did not use it. False leaves its ``grad`` None, so that the optimizer leaves it alone, as in one
            process. True gives it a gradient of zeros, as Horovod does: momentum and weight decay move it; a parameter
            with sparse gradients must then have one on every rank in its first step.

    Returns:
        An instance of a class that derives from the class of ``optimizer``, with the methods of
        :class:`DistributedMixin` (for Adasum, of :class:`~horocache.torch.optimizer.adasum_optimizer.AdasumMixin`).

    Raises:
        ValueError: not a ``torch.optim.Optimizer``, names missing or not unique, bad groups, a predivide factor without
            Average, ``backward_passes_per_step`` below 1, a compression that has not its methods, or an unknown process
            set.
        UnsupportedError: Adasum with a number of ranks that is no power of two, or with parameters that are not
            floating-point numbers; ``gradient_as_bucket_view=True`` with a compression, or with a torch that cannot
            tell who else has a gradient's memory. NotInitializedError: before ``init()``.
    """
    arguments = dict(locals())  # from which a copy is wrapped
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
    )
    prefix, names = _names(optimizer, named_parameters, process_set)
    arguments["compression"] = options.compression
    if op == Adasum:
        check_ranks(process_set.size())
        for _, _, param in positions(optimizer.param_groups):
            check_floating(param, collectives.adapter)
        settings = AdasumOptions(options.compression, process_set, options.takes_part)
        return wrap(
            optimizer, AdasumMixin, names, arguments, _make=DistributedOptimizer, _prefix=prefix, _adasum=settings
        )
    check_bucket_view(gradient_as_bucket_view, not layer_list(options.compression, False).signature)
    # In the order of the user's names, which is that of registration in the model.
    registered = {param for _, _, param in positions(optimizer.param_groups)}
    named = [(name, param) for param, name in names.items() if param in registered]
    view = gradient_as_bucket_view
    reducer = GradientReducer(named, options, view, unused_as_zeros) if options.takes_part else None
    distributed = wrap(
        optimizer,
        DistributedMixin,
        names,
        arguments,
        _make=DistributedOptimizer,
        _reducer=reducer,
        _prefix=prefix,
        _seen=[list(group["params"]) for group in optimizer.param_groups],
        _synchronized=False,
        _should_synchronize=True,
        _synchronized_for_scaler=False,
    )
    if reducer is not None:
        reducer.label = describe(optimizer)
        enter(distributed)
    return distributed


def _check_is_plain(optimizer: Any) -> None:
    if isinstance(optimizer, WrappedOptimizer):
        raise InvalidArgumentError("the optimizer is distributed already; wrap the plain optimizer.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise InvalidArgumentError(
            f"DistributedOptimizer takes a torch.optim.Optimizer, and {kind} does not derive from that, so that its "
            f"step() would not be called. Wrap the optimizer inside: {kind}(..., DistributedOptimizer(optimizer, ...))."
        )
