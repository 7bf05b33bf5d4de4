"""An optimizer whose gradients are reduced over the ranks before each step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import torch
from horocache import _state
from horocache.adasum import check_floating, check_ranks
from horocache.errors import InvalidArgumentError
from horocache.layers import AnyCompressor, layer_list
from horocache.ops import Adasum, Average
from horocache.process_set import ProcessSet, global_process_set
from horocache.training import check_passes, gradient_options, members_of_lists

from .adapter import collectives
from .adasum import AdasumMixin, AdasumOptions
from .compression import Compression
from .places import BucketView, check_bucket_view
from .reducer import GradientReducer
from .tracing import outside

Groups = int | list[list[torch.Tensor]] | None
_Mixin = TypeVar("_Mixin", bound=torch.optim.Optimizer)


class DistributedMixin(torch.optim.Optimizer):
    """What :func:`DistributedOptimizer` adds to the class of the user's optimizer.

    Role: never used alone; the first base of a class made for each wrapped optimizer, so that ``isinstance`` and
    learning-rate schedulers see the user's class. With one rank there is no reducer, and every method is the user's
    optimizer's.
    """

    _reducer: GradientReducer | None
    _names: dict[torch.Tensor, str]
    _passes: int
    _synchronized: bool
    _should_synchronize: bool
    _synchronized_for_scaler = False

    @outside
    def synchronize(self) -> None:
        """Wait until all gradients are reduced; for use before :meth:`step` under :meth:`skip_synchronize`.

        Parameters without a gradient take part with zeros, because another rank may have one. Where no rank has one,
        ``grad`` is None again afterwards (see ``unused_as_zeros`` of :func:`DistributedOptimizer`).

        Raises:
            MismatchError, PeerLostError, StallError, ShutDownError, AbortedError: a reduction failed. All others have
            been waited for.
        """
        self._reduce()
        self._synchronized = True

    def _reduce(self) -> None:
        if self._reducer is not None:
            self._reducer.synchronize()
        _state.count_step()

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

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronize, then step with the user's optimizer.

        Args:
            closure: recomputes the loss; the gradients of each call are synchronized before they are used.
        """
        if not self._should_synchronize or (self._synchronized_for_scaler and not self._in_flight()):
            self._synchronized = self._synchronized_for_scaler = False
            return super().step(closure)
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
                "if you use optimizer.synchronize() in your code.",
                stacklevel=2,
            )
        if closure is None or self._in_flight():
            self.synchronize()
        self._synchronized = False
        if closure is None:
            return super().step()
        recompute = closure

        def synchronized_closure() -> Any:
            loss = recompute()
            self._reduce()
            return loss

        return super().step(synchronized_closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

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
        super().zero_grad(set_to_none)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """The user's optimizer's. ``GradScaler.step`` asks for it before it looks at the gradients.

        So this is where they must be the reduced ones: else a rank that overflowed would skip the step alone, and the
        others would unscale what is still under way.
        """
        if self._in_flight() and self._should_synchronize:
            self.synchronize()
            self._synchronized_for_scaler = True
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    def _in_flight(self) -> bool:
        return self._reducer is not None and self._reducer.busy

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes make one gradient."""
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes make one gradient. Passes counted so far are forgotten."""
        check_passes(passes)
        self._passes = passes
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
        if self._reducer is None:
            return
        number = len(self.param_groups) - 1
        added = self.param_groups[-1]["params"]
        self._reducer.add([(self._names.get(p, f"noname.{number}.{i}"), p) for i, p in enumerate(added)])


# torch wraps the step of each class that has not been marked so. The user's class has been wrapped; if load_state_dict
# wrapped the one that derives from it, too, every hook of the step would run twice.
cast(Any, DistributedMixin.step).hooked = True


def _checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    """A name for every parameter, in the order of registration."""
    own = [(g, i, p) for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])]
    if named_parameters is None:
        return [(f"noname.{g}.{i}", param) for g, i, param in own]
    named = list(named_parameters)
    _check_pairs(named)
    known = {param for _, param in named}
    unnamed = [f"group {g}, position {i}, shape {tuple(p.shape)}" for g, i, p in own if p not in known]
    if unnamed:
        raise InvalidArgumentError(
            "named_parameters was specified, but one or more model parameters were not named: " + "; ".join(unnamed)
        )
    registered = {param for _, _, param in own}
    return [(name, param) for name, param in named if param in registered]


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
    registered = {param for group in optimizer.param_groups for param in group["params"]}
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

    Gradients are submitted while the backward pass still runs. The wrapped optimizer shares parameters and state with
    ``optimizer``, which should not be used any more; create learning-rate schedulers on the result. Every rank must
    wrap the same parameters with the same options.

    Args:
        optimizer: any ``torch.optim.Optimizer``.
        named_parameters: pairs of name and parameter, as from ``model.named_parameters()``; names identify gradients
            across ranks and in errors. Two optimizers that are used at the same time need different names.
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
        sparse_as_dense: make sparse gradients dense before they are reduced, instead of gathering them.
        process_set: the ranks that take part; on any other rank the optimizer works by itself.
        gradient_as_bucket_view: whether gradients live side by side in memory that the ranks of the host share, where
            they are reduced in place. With ``zero_grad(set_to_none=False)`` nothing is copied then; with None, each new
            gradient once, into its place. "auto": where that is safe and of use, which is where all ranks are on one
            host and gradients are not compressed. A gradient that the program has put there itself, that others have
            memory in common with, or that has a graph of its own (``create_graph=True``) stays where it is.
        unused_as_zeros: what becomes of a parameter that no rank gave a gradient, because it was frozen later or the
            loss did not use it. False leaves its ``grad`` None, so that the optimizer leaves it alone, as in one
            process. True gives it a gradient of zeros, as Horovod does: momentum and weight decay move it.

    Returns:
        An instance of a class that derives from the class of ``optimizer``, with the methods of
        :class:`DistributedMixin` (for Adasum, of :class:`~horocache.torch.adasum.AdasumMixin`).

    Raises:
        ValueError: names missing or not unique, bad groups, a predivide factor without Average,
            ``backward_passes_per_step`` below 1, a compression that has not its methods, or an unknown process set.
        UnsupportedError: Adasum with a number of ranks that is no power of two, or with parameters that are not
            floating-point numbers; ``gradient_as_bucket_view=True`` with a compression, or with a torch that cannot
            tell who else has a gradient's memory. NotInitializedError: before ``init()``.
    """
    if isinstance(optimizer, (DistributedMixin, AdasumMixin)):
        raise InvalidArgumentError("the optimizer is distributed already; wrap the plain optimizer.")
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
    named = _checked_names(optimizer, named_parameters)
    if op == Adasum:
        check_ranks(process_set.size())
        for _, param in named:
            check_floating(param, collectives.adapter)
        return _wrapped(
            optimizer, AdasumMixin, named, _adasum=AdasumOptions(options.compression, process_set, options.takes_part)
        )
    check_bucket_view(gradient_as_bucket_view, not layer_list(options.compression, False).signature)
    view = gradient_as_bucket_view
    reducer = GradientReducer(named, options, view, unused_as_zeros) if options.takes_part else None
    return _wrapped(
        optimizer,
        DistributedMixin,
        named,
        _reducer=reducer,
        _passes=backward_passes_per_step,
        _synchronized=False,
        _should_synchronize=True,
    )


def _wrapped(
    optimizer: torch.optim.Optimizer, mixin: type[_Mixin], named: list[tuple[str, torch.Tensor]], **own: Any
) -> _Mixin:
    """An object of the user's class with ``mixin`` in front, whose attributes are the optimizer's and ``own``."""
    plain_class = type(optimizer)
    distributed_class: Any = type(plain_class.__name__, (mixin, plain_class), {})
    distributed = cast(_Mixin, distributed_class.__new__(distributed_class))
    # State and parameter groups are shared, not copied; a scheduler's wrapper of the plain step must not replace ours.
    distributed.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    distributed.__dict__.update(own, _names={param: name for name, param in named})
    return distributed
