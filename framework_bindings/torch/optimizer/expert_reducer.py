"""Reduces the gradients of an optimizer that has expert parameters: each over the ranks that have the parameter.

A model without expert parameters has a plain :class:`GradientReducer` and does not use this module.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import torch
from horocache import _core
from horocache.collectives.api import Average, Sum
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.data_parallel.options import GradientOptions
from horocache.errors import HorocacheError, InvalidArgumentError, UnsupportedError

from ..compile.dynamo import outside
from ..expert_parameters import check_same_experts, part_experts
from .broadcast_parameters import check_holders
from .bucket import Bucket, Slot
from .bucket_views import BucketView
from .debug_state import DebugState
from .expert_gradients import ReducedGradients, scale, scaled_result
from .reducer import GradientReducer

Named = Sequence[tuple[str, torch.Tensor]]


def check_op_of_experts(op: int, name: str) -> None:
    """Raise UnsupportedError unless gradients of experts can be reduced with ``op``, which is Average or Sum."""
    if op not in (Average, Sum):
        raise UnsupportedError(
            f"rank {context.rank()}: the optimizer reduces gradients with op={op}, and the parameter {name} belongs to "
            "an expert, whose gradients its holders can only add up. Use op=Average or op=Sum; or give the experts an "
            "optimizer of their own: DistributedOptimizer(torch.optim.SGD(experts, lr), op=hvd.Average)."
        )


class HeldExperts(GradientReducer):
    """Reduces the gradients of experts over their holders, as one group for each element type.

    The gradients are added up; see Note [Scale of expert gradients]. Names must be the same on all holders. This is
    checked in the first step, and in the first after parameters are added; their gradients are submitted then in
    ``synchronize``, so that an error leaves none in flight.

    Role: as :class:`GradientReducer`; a part of :class:`ReducerWithExperts`.
    """

    def __init__(self, named: Named, shared: GradientReducer, holders: ProcessSet) -> None:
        world = shared.options.process_set.size()
        self._reduced = ReducedGradients(world, holders.size())
        self._agreed = False  # True if the holders' parameters have been compared
        options = _options_over(holders, shared.options)
        super().__init__(_by_name(named), options, shared.bucket_view, shared.unused_as_zeros)
        self.label = shared.label

    def add(self, named: Named) -> None:
        """Add parameters and rebuild the buckets; the next step compares the names."""
        self._agreed = False
        super().add(named)

    def add_parameters(self, named: Named) -> None:
        """Add parameters while gradients may be in flight."""
        self._agreed = self._agreed and not named
        super().add_parameters(_by_name(named))

    def retain_parameters(self, present: Collection[torch.Tensor]) -> None:
        """Drop all parameters except ``present``; must be called between two steps."""
        super().retain_parameters(present)
        self._reduced.retain([slot.param for slot in self._slots])

    def _adopt_unfrozen(self) -> None:
        agreed = self._agreed  # frozen parameters have been compared
        super()._adopt_unfrozen()
        self._agreed = agreed

    def _hook(self, name: str, param: torch.Tensor) -> Slot:
        self._reduced.watch(param)
        return super()._hook(name, param)

    @property
    def busy(self) -> bool:
        """True if gradients are in flight, or wait for the comparison of names."""
        return super().busy or (not self._agreed and any(bucket.missing == 0 for bucket in self._buckets))

    def submit(self, bucket: Bucket) -> None:
        """Start a bucket's reduction, but not before the names have been compared."""
        if self._agreed:
            super().submit(bucket)

    @outside
    def synchronize(self) -> None:
        """Submit the buckets that no hook submitted, and wait for all.

        Raises:
            InvalidArgumentError: the holders' parameters differ. HorocacheError: as in :class:`GradientReducer`.
        """
        self._agree()
        self._reduced.restore_all()
        super().synchronize()
        self._reduced.reduced()

    def _agree(self) -> None:
        """Compare the parameters' names, shapes and element types with those of the other holders.

        Raises:
            InvalidArgumentError: they differ. Raised on all holders.
        """
        if self._agreed:
            return
        named = [(name, param) for param, name in self.parameters().items()]
        try:
            check_same_experts(named, self.options.process_set)
        except InvalidArgumentError:
            _core.rearm_gradients(self._buckets, self.passes)  # nothing is submitted
            raise
        self._agreed = True

    def _submit_sparse(self, slot: Slot, grad: torch.Tensor) -> None:
        super()._submit_sparse(slot, grad)
        assert slot.sparse is not None
        slot.sparse = scaled_result(slot.sparse, self._prescale * self._postscale)


class OwnExperts:
    """Scales the gradients of experts that this rank alone holds; see Note [Scale of expert gradients].

    Role: a part of :class:`ReducerWithExperts`; used by the thread that steps. Does not communicate.
    """

    def __init__(self, options: GradientOptions, unused_as_zeros: bool) -> None:
        world = options.process_set.size()
        self.names: dict[torch.Tensor, str] = {}
        self._scale = 1.0 / world if options.op == Average else 1.0
        self._unused_as_zeros = unused_as_zeros
        self._reduced = ReducedGradients(world, 1)
        self._watched: set[torch.Tensor] = set()

    def add(self, named: Named) -> None:
        """Add parameters."""
        self.names.update({param: name for name, param in named})
        self._watch()

    def retain(self, present: Collection[torch.Tensor]) -> None:
        """Drop all parameters except ``present``."""
        self.names = {param: name for param, name in self.names.items() if param in present}
        self._watched &= set(self.names)
        self._reduced.retain(self.names)

    def synchronize(self) -> None:
        """Scale all gradients."""
        self._watch()
        self._reduced.restore_all()
        trained = [param for param in self.names if param.requires_grad]
        for param in trained:
            if param.grad is None and self._unused_as_zeros:
                param.grad = torch.zeros_like(param)
        scale([param.grad for param in trained if param.grad is not None], self._scale)
        self._reduced.reduced()

    def _watch(self) -> None:
        """Follow parameters that require gradients, also those that were frozen before."""
        for param in self.names:
            if param.requires_grad and param not in self._watched:
                self._watched.add(param)
                self._reduced.watch(param)


class ReducerWithExperts:
    """Reduces shared parameters' gradients over the process set, and those of experts over their holders.

    It has the methods of :class:`GradientReducer` that the optimizer uses. Ranks may hold different numbers of experts:
    the parts are those of this rank, in an order that is the same on all ranks.

    Role: owned by the optimizer; used by the thread that runs backward and step.
    """

    def __init__(self, shared: GradientReducer) -> None:
        """Begin without experts; ``shared`` reduces the other gradients."""
        self._shared = shared
        self._held: dict[int, HeldExperts] = {}  # by the number of the holders' process set
        self._own = OwnExperts(shared.options, shared.unused_as_zeros)

    @property
    def parts(self) -> Sequence[GradientReducer]:
        """The reducers that communicate."""
        return [self._shared, *(self._held[number] for number in sorted(self._held))]

    @property
    def busy(self) -> bool:
        """True if gradients are in flight or queued."""
        return any(part.busy for part in self.parts)

    def parameters(self) -> dict[torch.Tensor, str]:
        """Return all parameters, including frozen ones and those of experts, with their names."""
        found = dict(self._own.names)
        for part in self.parts:
            found.update(part.parameters())
        return found

    def debug_state(self) -> DebugState:
        """Return a description of the buckets: first those of shared parameters."""
        states = [part.debug_state() for part in self.parts]
        buckets = tuple(bucket for state in states for bucket in state.buckets)
        return DebugState(buckets, tuple(name for state in states for name in state.frozen))

    def add_parameters(self, named: Named) -> None:
        """Add parameters while gradients may be in flight.

        Raises:
            InvalidArgumentError: a holder of an expert is not in the optimizer's process set.
        """
        shared, experts = part_experts(named, lambda each: each[1])
        for holders, items in experts:
            check_holders(holders, items[0][0], self._shared.options.process_set)
        self._shared.add_parameters(shared)
        for holders, items in experts:
            number = None if holders is None else cast(int, holders.process_set_id)
            if holders is None or number is None:
                self._own.add(items)
            elif number in self._held:
                self._held[number].add_parameters(items)
            else:
                self._held[number] = HeldExperts(items, self._shared, holders)

    def retain_parameters(self, present: Collection[torch.Tensor]) -> None:
        """Drop all parameters except ``present``; must be called between two steps."""
        for part in self.parts:
            part.retain_parameters(present)
        self._own.retain(present)

    @outside
    def synchronize(self) -> None:
        """Reduce all gradients, and wait for them.

        Raises:
            HorocacheError: the first failure, raised when all operations have ended, so that none is left in flight.
        """
        failure: HorocacheError | None = None
        for part in self.parts:
            try:
                part.synchronize()
            except HorocacheError as error:
                failure = failure or error
        self._own.synchronize()
        if failure is not None:
            raise failure

    def set_passes(self, passes: int) -> None:
        """Set the number of backward passes per step, from now on."""
        for part in self.parts:
            part.set_passes(passes)

    def reset(self) -> None:
        """Drop this step: wait for all operations in flight, and restart the count of backward passes."""
        for part in self.parts:
            part.reset()


AnyReducer = GradientReducer | ReducerWithExperts


def make_reducer(
    named: Named, options: GradientOptions, bucket_view: BucketView, unused_as_zeros: bool
) -> AnyReducer | None:
    """Return what reduces these parameters' gradients: a plain reducer if none belongs to an expert.

    Returns:
        None if this rank reduces nothing: the process set has one rank, or this rank is not in it.

    Raises:
        UnsupportedError: a parameter belongs to an expert, and the op is neither Average nor Sum.
        InvalidArgumentError: the holders of an expert are not a registered set of ranks of the process set.
    """
    shared, experts = part_experts(named, lambda each: each[1])
    if not options.takes_part:
        for holders, items in experts if options.process_set.included() else ():
            check_holders(holders, items[0][0], options.process_set)
        return None
    reducer = GradientReducer(shared, options, bucket_view, unused_as_zeros)
    return with_parameters(reducer, [item for group in experts for item in group.items])


def with_parameters(reducer: AnyReducer, named: Named) -> AnyReducer:
    """Add parameters, and return the reducer: another one if these are the first that belong to experts."""
    _, experts = part_experts(named, lambda each: each[1])
    if experts:
        check_op_of_experts(reducer.parts[0].options.op, experts[0].items[0][0])
        reducer = ReducerWithExperts(reducer) if isinstance(reducer, GradientReducer) else reducer
    if named:
        reducer.add_parameters(named)
    return reducer


def label_parts(reducer: AnyReducer, label: str) -> None:
    """Set the description of the optimizer that errors show."""
    for part in reducer.parts:
        part.label = label


def _options_over(holders: ProcessSet, options: GradientOptions) -> GradientOptions:
    """Return the options with which the holders add up their gradients; see Note [Scale of expert gradients]."""
    divisor = options.process_set.size() if options.op == Average else 1
    return options._replace(
        op=Sum, postscale=options.postscale / divisor, num_groups=1, groups=None, process_set=holders
    )


def _by_name(named: Named) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters in the order of their names, because holders may list their experts in any order."""
    return sorted(named, key=lambda each: each[0])
