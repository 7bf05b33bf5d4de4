"""Training of a torch model whose layers are operations of an engine.

A training step is pushed as a graph: the forward and backward pass of each block of layers, the sum of its gradients
over the ranks, and the update of its parameters. The parameters of a block are a variable. So the sums of the last
blocks run beside the backward pass of the first, and the first block's next forward pass starts when its own update is
done, while later blocks are still being summed. This is the training loop of Mamidala et al. (2018), with the
priorities of Jayarajan et al. (*Priority-based parameter propagation*, 2019): the gradients of front blocks, which the
next forward pass needs first, are summed first. Large gradients are cut into slices, because a sum that runs is not
interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

import horocache.torch as hvd
from horocache.dag.engine import Engine
from horocache.dag.variable import Var
from horocache.errors import InvalidArgumentError

__all__ = ["LayerwiseTrainer"]


class _Slice(NamedTuple):
    """Elements of gradients that are summed by one operation, and the variable of their sum."""

    gradients: Any
    sum_var: Var


def _gradients_of(parameters: Sequence[Any]) -> list[Any]:
    """Give the parameters gradients in vectors, one for each type and device; return these.

    The memory of CPU vectors is shared with the other ranks of the host, so that it is summed where it is.
    """
    kinds: dict[tuple[Any, Any], list[Any]] = {}
    for each in parameters:
        kinds.setdefault((each.dtype, each.device), []).append(each)
    vectors = []
    for (dtype, device), of_kind in kinds.items():
        count = sum(each.numel() for each in of_kind)
        vector = hvd.empty(count, dtype) if device.type == "cpu" else torch.empty(count, dtype=dtype, device=device)
        for each, part in zip(of_kind, vector.split([each.numel() for each in of_kind]), strict=True):
            each.grad = part.view(each.shape)
        vectors.append(vector)
    return vectors


def _cut(vector: Any, slice_bytes: int) -> Iterable[Any]:
    """Cut a vector into slices of equal lengths, of about this size."""
    pieces = min(max(1, round(vector.nbytes / slice_bytes)), vector.numel())
    parts: Iterable[Any] = vector.tensor_split(pieces) if pieces else ()
    return parts


class _Block:
    """A block of layers and its part of the step that is under way.

    Attributes:
        module: the layers.
        optimizer: of its parameters; None if it has none.
        parameters: that are trained, and their gradients.
        gradients: the same in vectors.
        slices: of these.
        parameters_var: stands for the parameters; the next three for the gradients, the output and its gradient.
        input: of the forward pass; a leaf of the block's own graph.
        output: of the forward pass.
        output_gradient: of the loss by the output.
    """

    def __init__(
        self, engine: Engine, number: int, module: torch.nn.Module, make_optimizer: Any, slice_bytes: int
    ) -> None:
        self.module = module
        parameters = [each for each in module.parameters() if each.requires_grad]
        self.gradients = _gradients_of(parameters)
        self.parameters = [(each, each.grad) for each in parameters]
        self.optimizer = make_optimizer(parameters) if parameters else None
        slices = [part for vector in self.gradients for part in _cut(vector, slice_bytes)]
        self.slices = [
            _Slice(part, engine.var(f"slice {place} of block {number}")) for place, part in enumerate(slices)
        ]
        self.parameters_var = engine.var(f"parameters of block {number}")
        self.gradients_var = engine.var(f"gradients of block {number}")
        self.output_var = engine.var(f"output of block {number}")
        self.output_gradient_var = engine.var(f"output gradient of block {number}")
        self.input: Any = None
        self.output: Any = None
        self.output_gradient: Any = None


class LayerwiseTrainer:
    """Trains a sequence of blocks of layers; each step is a graph of operations.

    Parameters that need a gradient when the trainer is made are trained; those that a pass does not use have gradients
    of 0, which an optimizer with momentum or weight decay still applies.

    Role: made by the program; used by one thread.

    Attributes:
        engine: that runs the steps.
        loss: the variable of the last step's loss.
    """

    def __init__(
        self,
        blocks: Sequence[torch.nn.Module],
        loss: Callable[[Any, Any], Any],
        make_optimizer: Callable[[list[Any]], torch.optim.Optimizer],
        *,
        engine: Engine | None = None,
        name: str = "layerwise",
        prioritize: bool = True,
        slice_bytes: int = 4 << 20,
    ) -> None:
        """Make the trainer. All ranks make it with the same model; rank 0's parameters and buffers are everybody's.

        Args:
            blocks: the model: the output of each is the input of the next.
            loss: a function of the last block's output and the targets.
            make_optimizer: makes the optimizer of a block for the list of its parameters, such as
                ``lambda parameters: torch.optim.SGD(parameters, lr=0.1)``.
            engine: with the queues ``device``, which runs the passes, and ``cpu``, which runs the updates. None: the
                trainer has one with a thread for each.
            name: of the gradients, if a job has several trainers.
            prioritize: sum the gradients of front blocks first; otherwise those that are ready first.
            slice_bytes: about the bytes that are summed at a time.

        Raises:
            InvalidArgumentError: ``blocks`` is empty, a parameter is in two blocks, or ``slice_bytes`` is not positive.
        """
        if not blocks or len({id(each) for block in blocks for each in block.parameters()}) != sum(
            len(list(block.parameters())) for block in blocks
        ):
            raise InvalidArgumentError("a model needs a block or more, which share no parameter.")
        if slice_bytes <= 0:
            raise InvalidArgumentError(f"slice_bytes must be above 0; it is {slice_bytes}.")
        self.engine = engine if engine is not None else Engine({"device": 1, "cpu": 1}, name=name)
        for number, block in enumerate(blocks):
            hvd.broadcast_parameters({f"{name}.{number}.{key}": value for key, value in block.state_dict().items()}, 0)
        self.blocks = [
            _Block(self.engine, number, module, make_optimizer, slice_bytes) for number, module in enumerate(blocks)
        ]
        self.loss: Var = self.engine.var("loss")
        self._loss_of = loss
        self._value: Any = None
        self._name = name
        self._prioritize = prioritize

    def step(self, inputs: Any, targets: Any) -> None:
        """Push a training step; returns before it has run.

        Args:
            inputs: of the first block. The caller does not change them afterwards.
            targets: of the loss.
        """
        blocks = self.blocks
        for number, block in enumerate(blocks):
            before = blocks[number - 1] if number else None
            self._push(
                partial(_forward, block, before, inputs),
                [block.parameters_var, *([before.output_var] if before else [])],
                [block.output_var],
                f"forward {number}",
            )
        last = blocks[-1]
        self._push(partial(self._find_loss, targets), [last.output_var], [self.loss, last.output_gradient_var], "loss")
        for number, block in reversed(list(enumerate(blocks))):
            self._back(number, block)

    def _back(self, number: int, block: _Block) -> None:
        before = self.blocks[number - 1] if number else None
        self._push(
            partial(_backward, block, before),
            [block.parameters_var],
            [
                *(block.gradients_var, block.output_var, block.output_gradient_var),
                *([before.output_gradient_var] if before else []),
            ],
            f"backward {number}",
        )
        if block.optimizer is None:
            return
        priority = -number if self._prioritize else 0  # block 0 has none: it is the most urgent, and never held back
        for place, each in enumerate(block.slices):
            self.engine.collective(
                partial(hvd.allreduce_async_, each.gradients, name=f"{self._name}.{number}.{place}", priority=priority),
                reads=[block.gradients_var],
                writes=[each.sum_var],
                priority=priority,
                queue="cpu",
                name=f"allreduce {number}.{place}" if len(block.slices) > 1 else f"allreduce {number}",
            )
        self.engine.push(
            partial(_update, block),
            [block.gradients_var, *(each.sum_var for each in block.slices)],
            [block.parameters_var],
            priority,
            queue="cpu",
            name=f"update {number}",
        )

    def _push(self, function: Callable[[], None], reads: Iterable[Any], writes: Iterable[Any], name: str) -> None:
        self.engine.push(function, reads, writes, queue="device", name=name)

    def _find_loss(self, targets: Any) -> None:
        last = self.blocks[-1]
        output = last.output.detach().requires_grad_()
        value = self._loss_of(output, targets)
        (last.output_gradient,) = torch.autograd.grad(value, output)
        self._value = value.detach()

    def loss_of_last_step(self) -> float:
        """Wait for the loss of the last step, and return it."""
        self.engine.wait(self.loss)
        return float(self._value)

    def finish(self) -> None:
        """Wait until all steps have ended.

        Raises:
            HorocacheError: a collective failed. Any exception of a layer, the loss or an optimizer.
        """
        self.engine.wait_all()


def _forward(block: _Block, before: _Block | None, inputs: Any) -> None:
    given = inputs if before is None else before.output.detach().requires_grad_()
    block.input = given
    with torch.enable_grad():
        block.output = block.module(given)


def _backward(block: _Block, before: _Block | None) -> None:
    for vector in block.gradients:
        vector.zero_()
    if block.output.requires_grad and block.output_gradient is not None:  # None: the loss does not depend on it
        torch.autograd.backward(block.output, block.output_gradient)
    if any(parameter.grad is not gradient for parameter, gradient in block.parameters):
        raise InvalidArgumentError("a parameter has another gradient tensor than the trainer's, which is summed.")
    if before is not None:
        before.output_gradient = block.input.grad
    block.input = block.output = block.output_gradient = None


def _update(block: _Block) -> None:
    assert block.optimizer is not None
    block.optimizer.step()
