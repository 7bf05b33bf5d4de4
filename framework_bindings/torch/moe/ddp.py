"""Experts in torch's ``DistributedDataParallel``, which leaves them to horocache."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from horocache.collectives.api import Sum, synchronize
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError, UnsupportedError

from ..adapter import collectives
from ..compile.dynamo import outside
from ..expert_parameters import Experts, check_same_experts, is_expert, part_experts
from ..optimizer.broadcast_parameters import broadcast_parameters, check_holders
from ..optimizer.expert_gradients import ReducedGradients, scale
from ..optimizer.gradient_queue import in_compiled_pass, pass_under_way

__all__ = ["prepare_ddp"]

_Module = TypeVar("_Module", bound=torch.nn.Module)


def prepare_ddp(module: _Module, process_set: ProcessSet = global_process_set) -> _Module:
    """Prepare a module with experts for ``DistributedDataParallel``; call it on every rank before DDP wraps the module.

    DDP then neither broadcasts nor reduces the parameters and buffers of experts. Instead, the holders of an expert get
    the values of the lowest holder now. At the end of each backward pass they add up the expert's gradients and divide
    by the number of ranks of ``process_set``, as DDP's average does. A holder without a gradient contributes zeros, and
    gets the sum. Within ``no_sync()`` gradients accumulate on each rank. DDP cannot tell that a module has experts:
    without this call, it stops if ranks have different experts, and otherwise averages different experts.

    Ranks may hold different experts, or none. Works with any backend of torch.distributed; the experts' gradients go
    through horocache, so ``horocache.torch.init()`` must have been called.

    Args:
        module: the module that DDP will wrap; its experts are marked, see :func:`horocache.torch.moe.mark_expert`. The
            parameters of an expert have the same names on all holders. A parameter must require gradients now to be
            trained, as for DDP.
        process_set: the ranks of DDP's process group.

    Returns:
        ``module``.

    Raises:
        InvalidArgumentError: ``module`` is wrapped already, the holders of an expert have different parameters, or not
            all holders are in ``process_set``; and in the forward pass, if DDP wraps another module than this one.
        UnsupportedError: in the backward pass, an expert has a sparse gradient, or torch compiled the backward pass.
    """
    ddp: Any = torch.nn.parallel.DistributedDataParallel
    if isinstance(module, ddp):
        raise InvalidArgumentError("prepare_ddp takes the module before it is wrapped: DDP(prepare_ddp(module)).")
    context.current()
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    experts = [(name, tensor) for name, tensor in tensors if is_expert(tensor)]
    if not experts:
        return module
    # DDP builds the name of a tensor of the module itself in two ways: "weight" and ".weight".
    names = {name for name, _ in experts} | {f".{name}" for name, _ in experts if "." not in name}
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ())) | names
    groups = _compared_groups(experts, process_set)
    broadcast_parameters([item for group in groups for item in group.items], process_set.ranks[0], process_set)
    ddp._set_params_and_buffers_to_ignore_for_model(module, sorted(ignored))
    former = _prepared.get(module)
    if former is None:
        module.register_forward_pre_hook(_begin_forward)
    else:
        former.remove()
    held = [_Held(holders, items, process_set.size()) for holders, items in groups]
    _prepared[module] = _ExpertGradients(module, held, process_set.size())
    return module


def _compared_groups(experts: Sequence[tuple[str, torch.Tensor]], process_set: ProcessSet) -> list[Experts]:
    """Return the experts by their holders, each tensor once, after the holders have compared theirs."""
    unique = {tensor: (name, tensor) for name, tensor in reversed(experts)}
    groups = part_experts(unique.values(), _tensor_of)[1]
    for holders, items in groups:
        check_holders(holders, items[0][0], process_set)
    for holders, items in groups:
        if holders is not None:
            check_same_experts(items, holders)
    return groups


def _tensor_of(item: tuple[str, torch.Tensor]) -> torch.Tensor:
    return item[1]


class _Group(NamedTuple):
    """Parameters whose gradients are reduced by one operation."""

    name: str
    params: list[torch.Tensor]


class _Held:
    """The trained parameters of experts with the same holders; None: this rank alone.

    Role: a part of :class:`_ExpertGradients`.
    """

    def __init__(self, holders: ProcessSet | None, named: Sequence[tuple[str, torch.Tensor]], world: int) -> None:
        self._holders = holders
        self._world = world
        self._reduced = ReducedGradients(world, 1 if holders is None else holders.size())
        trained = [(name, tensor) for name, tensor in sorted(named, key=lambda each: each[0]) if tensor.requires_grad]
        self._groups: dict[tuple[torch.dtype, torch.device], _Group] = {}
        for name, param in trained:
            group = self._groups.setdefault((param.dtype, param.device), _Group(f"ddp_experts.{name}", []))
            group.params.append(param)
            self._reduced.watch(param)

    def start(self) -> list[Any]:
        """Start to add up the gradients; return the handles."""
        self._reduced.restore_all()
        handles = []
        for name, params in self._groups.values():
            for param in params:
                self._check_gradient(name, param)
            if self._holders is None:
                scale([param.grad for param in params if param.grad is not None], 1.0 / self._world)
                continue
            handles.append(
                collectives.grouped_allreduce_async_(
                    [cast(torch.Tensor, param.grad) for param in params],
                    name=name,
                    op=Sum,
                    postscale_factor=1.0 / self._world,
                    process_set=self._holders,
                )
            )
        return handles

    def end(self) -> None:
        """Record that the gradients are reduced."""
        self._reduced.reduced()

    def _check_gradient(self, name: str, param: torch.Tensor) -> None:
        if param.grad is None:  # another holder may have one
            param.grad = torch.zeros_like(param)
        if param.grad.layout is not torch.strided:
            raise UnsupportedError(
                f"rank {context.rank()}: a gradient of {name}, of shape {tuple(param.shape)}, is sparse, and "
                "prepare_ddp() reduces dense gradients only. Use horocache.torch.DistributedOptimizer, or make the "
                "embedding with sparse=False."
            )


class _ExpertGradients:
    """Reduces the experts' gradients at the end of each backward pass of a module.

    Role: owned by the table of prepared modules; parameters reference it weakly, because they live as long as it does.
    Used by the threads of the backward pass.
    """

    def __init__(self, module: torch.nn.Module, held: list[_Held], world: int) -> None:
        self.reduces = True  # False within no_sync()
        self._held = held
        self._pass = -1  # the number of the backward pass at whose end the gradients will be reduced
        note = weakref.WeakMethod(self._note)

        @outside
        def on_gradient(_: torch.Tensor) -> None:
            alive = note()
            if alive is not None:
                alive()

        # With all parameters' hooks: a rank takes part even if its loss uses none of its experts.
        trained = [param for param in module.parameters() if param.requires_grad]
        self._hooks = [cast(Any, param).register_post_accumulate_grad_hook(on_gradient) for param in trained]

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _note(self) -> None:
        number = pass_under_way()
        if not self.reduces or number == self._pass:
            return
        if in_compiled_pass():
            raise UnsupportedError(
                f"rank {context.rank()}: torch compiled the backward pass, and never calls what reduces the gradients "
                "of experts at its end. Turn compiled autograd off, or use horocache.torch.DistributedOptimizer."
            )
        self._pass = number
        cast(Any, torch.autograd.Variable)._execution_engine.queue_callback(self._pass_ended)

    @outside
    def _pass_ended(self) -> None:
        self._pass = -1
        handles = [handle for part in self._held for handle in part.start()]
        synchronize(handles)
        for part in self._held:
            part.end()


_prepared: weakref.WeakKeyDictionary[torch.nn.Module, _ExpertGradients] = weakref.WeakKeyDictionary()


def is_part_of_prepared(module: torch.nn.Module) -> bool:
    """Return True if ``prepare_ddp`` has prepared a module that is, or has, this one."""
    return any(each is module for prepared in _prepared for each in prepared.modules())


@outside
def _begin_forward(module: torch.nn.Module, _: Any) -> None:
    """Note whether DDP reduces gradients after this forward pass; a copy of a prepared module is not prepared."""
    gradients = _prepared.get(module)
    if gradients is None:
        return
    ddp: Any = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if ddp is not None and ddp.module is not module:
        raise InvalidArgumentError(
            f"rank {context.rank()}: prepare_ddp() was given a {type(module).__name__}, and DistributedDataParallel "
            f"wraps a {type(ddp.module).__name__}. Prepare the very module that DDP wraps."
        )
    gradients.reduces = ddp is None or bool(ddp.require_backward_grad_sync)
