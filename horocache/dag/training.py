"""Training of a torch model whose layers are operations of an engine.

A training step is pushed as a graph: the forward and backward pass of each block of layers, the sum of its gradients
over the ranks, and the update of its parameters. The parameters of a block are a variable. So the sums of the last
blocks run beside the backward pass of the first, and the first block's next forward pass starts when its own update is
done, while later blocks are still being summed. This is the training loop of Mamidala et al. (2018), with the
priorities of Jayarajan et al. (*Priority-based parameter propagation*, 2019): the gradients of front blocks, which the
next forward pass needs first, are summed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

import horocache.torch as hvd
from horocache.dag.engine import Engine
from horocache.dag.variable import Var
from horocache.errors import InvalidArgumentError


class _Block:
    """A block of layers and its part of the step that is under way.

    Attributes:
        module: the layers.
        gradients: of its parameters, which keep their memory.
        optimizer: of its parameters; None if it has none.
        parameters_var: stands for the parameters; the next three for the gradients, the output and its gradient.
        input: of the forward pass; a leaf of the block's own graph.
        output: of the forward pass.
        output_gradient: of the loss by the output.
    """

    def __init__(self, engine: Engine, number: int, module: torch.nn.Module, make_optimizer: Any) -> None:
        self.module = module
        parameters = [each for each in module.parameters() if each.requires_grad]
        self.gradients = [torch.zeros_like(each) for each in parameters]
        for each, gradient in zip(parameters, self.gradients, strict=True):
            each.grad = gradient
        self.optimizer = make_optimizer(parameters) if parameters else None
        self.parameters_var = engine.var(f"parameters of block {number}")
        self.gradients_var = engine.var(f"gradients of block {number}")
        self.output_var = engine.var(f"output of block {number}")
        self.output_gradient_var = engine.var(f"output gradient of block {number}")
        self.input: Any = None
        self.output: Any = None
        self.output_gradient: Any = None


class LayerwiseTrainer:
    """Trains a sequence of blocks of layers; each step is a graph of operations.

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

        Raises:
            InvalidArgumentError: there is no block, or a module is in two blocks.
        """
        if not blocks or len({id(each) for block in blocks for each in block.parameters()}) != sum(
            len(list(block.parameters())) for block in blocks
        ):
            raise InvalidArgumentError("a model needs a block or more, which share no parameter.")
        self.engine = engine if engine is not None else Engine({"device": 1, "cpu": 1}, name=name)
        for number, block in enumerate(blocks):
            hvd.broadcast_parameters({f"{name}.{number}.{key}": value for key, value in block.state_dict().items()}, 0)
        self.blocks = [_Block(self.engine, number, module, make_optimizer) for number, module in enumerate(blocks)]
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
        priority = -number if self._prioritize else 0
        name = f"{self._name}.{number}"
        self.engine.collective(
            lambda: hvd.grouped_allreduce_async_(block.gradients, name=name, priority=priority),
            writes=[block.gradients_var],
            priority=priority,
            queue="cpu",
            name=f"allreduce {number}",
        )
        self.engine.push(
            partial(_update, block),
            [block.gradients_var],
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
    for gradient in block.gradients:
        gradient.zero_()
    if block.output.requires_grad:
        torch.autograd.backward(block.output, block.output_gradient)
    if before is not None:
        before.output_gradient = block.input.grad
    block.input = block.output = block.output_gradient = None


def _update(block: _Block) -> None:
    assert block.optimizer is not None
    block.optimizer.step()
