"""An optimizer whose steps, instead of gradients, are combined over the ranks with Adasum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from horocache.collectives.api import Adasum
from horocache.collectives.transforms import AnyCompressor
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import UnsupportedError

from ..adapter import collectives
from ..expert_parameters import is_expert
from .expert_reducer import check_op_of_experts
from .wrapped_class import WrappedOptimizer


class AdasumOptions(NamedTuple):
    """How the ranks' steps are combined; compression and process set are the same on all ranks."""

    compression: AnyCompressor
    process_set: ProcessSet
    takes_part: bool  # True if this rank is in the set and the set has other ranks


def check_no_experts(params: Iterable[torch.Tensor]) -> None:
    """Raise UnsupportedError if a parameter belongs to an expert: Adasum is defined for steps of equal parameters."""
    for position, param in enumerate(params):
        if is_expert(param):
            check_op_of_experts(Adasum, f"at position {position}, of shape {tuple(param.shape)},")


class AdasumMixin(WrappedOptimizer):
    """The methods that ``DistributedOptimizer(op=Adasum)`` adds to the class of the user's optimizer.

    Each rank steps by itself, on its own gradients; then the ranks' changes of the parameters are combined as one
    group. Momentum and adaptive rates therefore see local gradients, as Adasum requires.

    Role: the first base of a class made for each wrapped optimizer; has no instances of its own.
    """

    __slots__ = ("_adasum",)

    _adasum: AdasumOptions

    def step(self, *arguments: Any, **options: Any) -> Any:
        """Step with the user's optimizer, and replace its parameter changes by the ranks' adaptive sum of them.

        Args:
            arguments: passed to the user's optimizer. A closure recomputes the loss; it sees this rank's own steps.
            options: passed to the user's optimizer.

        Raises:
            MismatchError, PeerLostError, StallError, ShutDownError, AbortedError: the ranks' steps could not be
            combined; this rank's parameters are those after its own step.
        """
        context.count_step()
        self._record_step_for_schedulers()
        if not self._adasum.takes_part:
            return super().step(*arguments, **options)
        trained = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [param.detach().clone() for param in trained]
        loss = super().step(*arguments, **options)
        with torch.no_grad():
            steps = [param - start for param, start in zip(trained, before, strict=True)]
            name = f"adasum.{self._names.get(trained[0], 'noname')}" if trained else None
            if steps:
                steps = collectives.grouped_allreduce(
                    steps, None, name, self._adasum.compression, Adasum, process_set=self._adasum.process_set
                )
            for param, start, step in zip(trained, before, steps, strict=True):
                param.copy_(start + step)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; every rank must do so between the same two steps.

        Raises:
            UnsupportedError: the group has a parameter of an expert; nothing is added.
        """
        super().add_param_group(param_group)
        added = self.param_groups[-1]["params"]
        try:
            check_no_experts(added)
        except UnsupportedError:
            self.param_groups.pop()
            raise

    def synchronize(self) -> None:
        """Do nothing: all communication is in :meth:`step`."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raise AssertionError, as Horovod does: Adasum does not synchronize gradients."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Do nothing: gradients add up until :meth:`step` is called."""
