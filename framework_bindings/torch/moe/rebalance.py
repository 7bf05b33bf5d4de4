"""Moves experts between the ranks of a layer, between two steps of training.

Note [Re-placement of experts]
All ranks check and agree before anything changes. Each then makes the experts that come to it beside those it has, and
gets their bytes: one alltoall for each expert, in which only its old rank sends, and only its new one gets. When all
ranks have all bytes, they agree once more, and only then does each change its layer and its optimizers, which cannot
fail. So an error on any rank is an error on all of them, and leaves the layer as it was.

Parameters, buffers and the state of optimizers move as bytes. Later steps have the same bits as without the move,
unless the new map changes the order of a sum, or where it is rounded: with more than two experts per token, or in 16
bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

import torch
from horocache.collectives.numpy import collectives
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import InputFailedError, InternalError, InvalidArgumentError, UnsupportedError
from horocache.moe.exchanges.exchange import Memory
from horocache.moe.placement import Move, improved_map, moves
from horocache.moe.route import check_expert_ranks
from horocache.moe.window import agree

from ..optimizer.gradient_queue import pass_under_way
from .ddp import is_part_of_prepared
from .expert_optimizers import Entry, ExpertOptimizers, Placed
from .raw_tensor import RawTensor

if TYPE_CHECKING:
    from .layer import MoELayer

__all__ = ["Replacement"]


@dataclass(frozen=True)
class _Expert:
    """The description of an expert that leaves its rank.

    Attributes:
        training: by the name of each module within the expert: its mode.
        parameters: name, description, whether it requires a gradient, and its place in the optimizers.
        buffers: name and description.
    """

    training: dict[str, bool]
    parameters: list[tuple[str, RawTensor, bool, Entry | None]]
    buffers: list[tuple[str, RawTensor]]

    def tensors(self) -> Iterator[RawTensor]:
        """Yield the description of each tensor, in the order of their bytes."""
        for _, raw, _, entry in self.parameters:
            yield raw
            if entry is not None:
                yield from (state for _, state in entry.tensors())
        yield from (raw for _, raw in self.buffers)


class _Made(NamedTuple):
    """An expert that has come to this rank."""

    module: torch.nn.Module
    placed: list[Placed]  # its parameters in the optimizers


class Replacement:
    """One move of a layer's experts; see Note [Re-placement of experts].

    Role: lives during one call of :meth:`MoELayer.rebalance`; used by one thread.

    Args:
        layer: of experts.
        process_set: the ranks that share the layer's experts, as registered now.
        everyone: all ranks whose layers change together: those of ``process_set``, or of all expert-parallel groups.
        optimizers: of the layer's experts.
    """

    def __init__(
        self,
        layer: MoELayer,
        process_set: ProcessSet,
        everyone: ProcessSet,
        optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
    ) -> None:
        self._layer, self._process_set, self._everyone = layer, process_set, everyone
        self._given = optimizers
        self._rank = process_set.rank()
        self._optimizers = ExpertOptimizers(None)

    def run(
        self,
        expert_ranks: Sequence[int] | None,
        rates: npt.ArrayLike | None,
        memory: npt.ArrayLike | None,
    ) -> tuple[Move, ...]:
        """Move the experts; return the moves."""
        new = self._agreed_map(expert_ranks, rates, memory)
        found = moves(self._layer.expert_ranks, new)
        if not found:
            return ()
        facts = self._agreed_experts(found)
        made = self._transfer(found, facts)
        self._commit(new, [move.expert for move in found if move.source == self._rank], made)
        return found

    def _transfer(self, found: Sequence[Move], facts: dict[int, _Expert]) -> dict[int, _Made]:
        """Return the experts that have come to this rank, when all ranks have theirs."""
        made: dict[int, _Made] = {}
        failure: Exception | None = None
        for move in found:
            try:
                mine = self._bytes_of(move) if move.source == self._rank and failure is None else None
            except Exception as error:
                failure, mine = error, None
            came = self._send(move, mine)
            expected = sum(raw.bytes for raw in facts[move.expert].tensors())
            if move.target != self._rank or failure is not None or len(came) != expected:
                continue  # an old rank that could not send an expert reports that below
            try:
                made[move.expert] = self._make(move.expert, facts[move.expert], came)
            except Exception as error:
                failure = error
        self._share({}, failure)
        missing = [move.expert for move in found if move.target == self._rank and move.expert not in made]
        if missing:
            raise InternalError(
                f"rank {context.rank()}: experts {missing} of layer {self._layer.name!r} did not come; please report it"
            )
        return made

    def _share(self, own: dict[str, Any], failure: Exception | None) -> list[dict[str, Any]]:
        """Gather a value of every rank of all groups; raise on all ranks if one has failed."""
        text = None if failure is None else f"{type(failure).__name__}: {failure}"
        name = self._layer.name
        gathered = agree(f"{name}.rebalance", {}, {**own, "failure": text}, self._everyone)
        if failure is not None:
            raise failure
        for rank, each in zip(self._everyone.ranks, gathered, strict=True):
            if each["failure"] is not None:
                raise InputFailedError(
                    f"rank {rank} cannot move the experts of layer {name!r}, so rank {context.rank()} keeps its own, "
                    f"too: {each['failure']}"
                )
        return gathered

    def _agreed_map(
        self, expert_ranks: Sequence[int] | None, rates: npt.ArrayLike | None, memory: npt.ArrayLike | None
    ) -> list[int]:
        """Check all that can be checked on one rank; return the new map."""
        layer = self._layer
        ranks, failure, given = self._process_set.size(), None, None
        equal: dict[str, Any] = {}
        try:
            self._check_state()
            if expert_ranks is not None:
                given = check_expert_ranks(expert_ranks, layer.num_experts, ranks)
            equal = {
                "expert_ranks": layer.expert_ranks,
                "number of optimizers": len(self._optimizers),
                "expert_ranks of rebalance": given,
                "rates": None if rates is None else np.asarray(rates).tolist(),
                "memory": None if memory is None else np.asarray(memory).tolist(),
            }
        except Exception as error:
            failure = error
        # The others get the error of a rank that has failed, and not that of a comparison.
        gathered = self._share({"equal": equal, "slots": layer.statistics().expert_slots}, failure)
        for rank, each in zip(self._everyone.ranks, gathered, strict=True):
            _check_equal(layer.name, self._everyone.ranks[0], gathered[0]["equal"], rank, each["equal"])
        if given is not None:
            return given
        loads = np.sum([each["slots"] for each in gathered], axis=0)
        return improved_map(loads, layer.expert_ranks, ranks, rates, memory)

    def _check_state(self) -> None:
        """Check that the layer and its optimizers are between two steps."""
        layer = self._layer
        here = f"rank {context.rank()}, layer {layer.name!r}"
        if pass_under_way() != -1:
            raise InvalidArgumentError(f"{here}: experts cannot move within a backward pass; move them after the step")
        if layer._has_graph():
            raise InvalidArgumentError(
                f"{here}: the backward pass of an earlier call has not run, and needs the experts where they are; run "
                "it, or delete the outputs of that call"
            )
        if is_part_of_prepared(layer):
            raise UnsupportedError(
                f"{here}: prepare_ddp() has prepared the layer for DistributedDataParallel, which cannot follow "
                "parameters that move; train with horocache.torch.DistributedOptimizer"
            )
        self._optimizers = ExpertOptimizers(self._given)
        named = [(f"experts.{name}", param) for name, param in layer.experts.named_parameters()]
        self._optimizers.check(named)
        for name, param in named:
            grad = param.grad if param.grad is None or not param.grad.is_sparse else param.grad._values()
            if grad is not None and bool(grad.count_nonzero()):
                raise InvalidArgumentError(
                    f"{here}: {name} has a gradient, which does not move; call zero_grad() before"
                )

    def _agreed_experts(self, found: Sequence[Move]) -> dict[int, _Expert]:
        """Exchange the descriptions of the experts that move, and compare the optimizers of old and new ranks."""
        failure = None
        facts: dict[int, _Expert] = {}
        try:
            facts = {move.expert: self._describe(move.expert) for move in found if move.source == self._rank}
        except Exception as error:
            failure = error
        gathered = self._share({"experts": facts, "options": self._optimizers.options()}, failure)
        by_rank = dict(zip(self._everyone.ranks, gathered, strict=True))
        members = [by_rank[rank] for rank in self._process_set.ranks]
        try:
            for move in found:
                self._check_groups(move, members[move.source], members[move.target])
        except InvalidArgumentError as error:
            failure = error
        self._share({}, failure)  # other expert-parallel groups have compared others
        return {move.expert: members[move.source]["experts"][move.expert] for move in found}

    def _check_groups(self, move: Move, source: dict[str, Any], target: dict[str, Any]) -> None:
        """Raise unless the new rank has the groups of an expert's parameters, with equal options."""
        old, new = (self._process_set.ranks[rank] for rank in (move.source, move.target))
        for name, _, _, entry in source["experts"][move.expert].parameters:
            if entry is None:
                continue
            what = f"layer {self._layer.name!r}: experts.{move.expert}.{name} is in group {entry.group} of optimizer "
            what += f"{entry.optimizer} of rank {old}"
            groups = target["options"][entry.optimizer]
            if entry.group >= len(groups):
                raise InvalidArgumentError(
                    f"{what}, and that of rank {new} has {len(groups)} groups; make the optimizers with equal groups "
                    "on all ranks, if need be with an empty list of params"
                )
            here, there = source["options"][entry.optimizer][entry.group], groups[entry.group]
            for key in [*here, *there]:
                if here.get(key) != there.get(key):
                    raise InvalidArgumentError(
                        f"{what}, which has {key} = {here.get(key)!r}, and that of rank {new} has {there.get(key)!r}; "
                        "set equal values on all ranks"
                    )

    def _describe(self, expert: int) -> _Expert:
        module = self._layer.experts[str(expert)]
        parameters, buffers = [], []
        for name, param in module.named_parameters():
            what = f"experts.{expert}.{name}"
            entry = self._optimizers.entry(what, param)
            parameters.append((name, RawTensor.of(param, param.device, what), param.requires_grad, entry))
        device = self._device(module)
        for name, buffer in module.named_buffers():
            buffers.append((name, RawTensor.of(buffer, device, f"experts.{expert}.{name}")))
        return _Expert({name: each.training for name, each in module.named_modules()}, parameters, buffers)

    def _bytes_of(self, move: Move) -> Memory:
        """Return the bytes of an expert, and of its state in the optimizers, in the order of ``_Expert.tensors``."""
        module = self._layer.experts[str(move.expert)]
        facts = self._describe(move.expert)
        tensors: list[torch.Tensor] = []
        for (_, _, _, entry), param in zip(facts.parameters, module.parameters(), strict=True):
            tensors.append(param)
            if entry is not None:
                tensors.extend(self._optimizers.state_of(entry, param))
        tensors.extend(module.buffers())
        return np.concatenate([np.zeros(0, np.uint8), *map(RawTensor.to_bytes, tensors)])

    def _send(self, move: Move, mine: Memory | None) -> Memory:
        """Send the bytes of an expert from its old rank to its new one; all ranks of the layer call it."""
        memory = np.zeros(0, np.uint8) if mine is None else mine
        splits = [len(memory) if rank == move.target else 0 for rank in range(self._process_set.size())]
        name = f"moe.{self._layer.name}.move"
        came, _ = collectives.alltoall(memory, splits, name=name, process_set=self._process_set)
        result: Memory = came
        return result

    def _make(self, expert: int, facts: _Expert, memory: Memory) -> _Made:
        """Make the expert that has come, and its places in the optimizers."""
        module = self._layer.experts.made(expert)
        _check_structure(expert, module, facts)
        device = self._device(self._layer)
        sizes = [raw.bytes for raw in facts.tensors()]
        parts = np.split(memory, np.cumsum(sizes)[:-1]) if sizes else []
        tensors = iter([raw.from_bytes(part, device) for raw, part in zip(facts.tensors(), parts, strict=True)])
        placed = []
        for (_, _, trained, entry), param in zip(facts.parameters, module.parameters(), strict=True):
            param.data = next(tensors)
            param.requires_grad_(trained)
            if entry is not None:
                values = {key: next(tensors) for key, _ in entry.tensors()}
                state = None if entry.state is None else {key: values.get(key, v) for key, v in entry.state.items()}
                placed.append(Placed(param, entry, state))
        for name, _ in facts.buffers:
            owner, _, last = name.rpartition(".")
            module.get_submodule(owner)._buffers[last] = next(tensors)
        for name, each in module.named_modules():
            each.training = facts.training.get(name, each.training)
        return _Made(module, placed)

    def _device(self, module: torch.nn.Module) -> torch.device:
        """Return the device of a module's parameters; the CPU for one without parameters."""
        return next((param.device for param in module.parameters()), torch.device("cpu"))

    def _commit(self, new: list[int], gone: list[int], made: dict[int, _Made]) -> None:
        layer = self._layer
        left = [param for expert in gone for param in layer.experts[str(expert)].parameters()]
        layer.experts.replace(gone, {expert: each.module for expert, each in made.items()})
        shared = [] if layer.shared_expert is None else list(layer.shared_expert.parameters())
        placed = [each for came in made.values() for each in came.placed]
        order = list(layer.experts.parameters())
        self._optimizers.replace(left, placed, order, list(layer.gate.parameters()), shared)
        layer.expert_ranks = list(new)
        layer.close()  # the hosts are others; the next call connects with them


def _check_equal(layer: str, first: int, one: dict[str, Any], rank: int, other: dict[str, Any]) -> None:
    for key, value in one.items():
        if other[key] != value:
            raise InvalidArgumentError(
                f"layer {layer!r}: rank {first} has {key} = {value!r}, and rank {rank} has {other[key]!r}; call "
                "rebalance() with equal arguments on all ranks that have the layer, or a copy of its experts"
            )


def _check_structure(expert: int, module: torch.nn.Module, facts: _Expert) -> None:
    """Check that the factory of this rank makes what has come."""
    here = f"rank {context.rank()}: the expert factory made expert {expert} with"
    for kind, own, came in [
        ("parameters", module.named_parameters(), [(name, raw.shape) for name, raw, _, _ in facts.parameters]),
        ("buffers", module.named_buffers(), [(name, raw.shape) for name, raw in facts.buffers]),
    ]:
        mine = [(name, tuple(tensor.shape)) for name, tensor in own]
        if mine != came:
            raise InvalidArgumentError(
                f"{here} the {kind} {mine}, and the expert that came has {came}; a factory must make equal experts on "
                "all ranks"
            )
