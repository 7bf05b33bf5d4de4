"""Layer-wise training by an engine: the same parameters as one process with the joint batch."""

from __future__ import annotations

import pytest
from ranks import on_ranks

import horocache as hc
from horocache.errors import InputFailedError, InvalidArgumentError

torch = pytest.importorskip("torch")


def blocks_of(seed: int) -> list[torch.nn.Module]:
    torch.manual_seed(seed)
    return [
        torch.nn.Flatten(),
        torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh()),
        torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh()),
        torch.nn.Linear(8, 3),
    ]


def batches(steps: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The joint batches of all ranks."""
    random = torch.Generator().manual_seed(7)
    return [
        (torch.randn(4 * ranks, 3, 4, generator=random), torch.randint(3, (4 * ranks,), generator=random))
        for _ in range(steps)
    ]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@on_ranks(1, 2, 3)
@pytest.mark.parametrize(("prioritize", "slice_bytes"), [(True, 4 << 20), (True, 64), (False, 200)])
def test_k17_parameters_equal_those_of_one_process_with_the_joint_batch(prioritize, slice_bytes):
    from horocache.dag.training import LayerwiseTrainer

    rank, size = hc.rank(), hc.size()
    loss = torch.nn.CrossEntropyLoss()
    trainer = LayerwiseTrainer(blocks_of(seed=rank), loss, sgd, prioritize=prioritize, slice_bytes=slice_bytes)
    alone = torch.nn.Sequential(*blocks_of(seed=0))
    optimizer = sgd(alone.parameters())
    losses = []
    for inputs, targets in batches(20, size):
        part = slice(4 * rank, 4 * rank + 4)
        trainer.step(inputs[part], targets[part])
        optimizer.zero_grad()
        value = loss(alone(inputs), targets)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    mean = hc.allreduce(torch.tensor(trainer.loss_of_last_step()).numpy(), name="loss")
    trainer.finish()
    assert float(mean) == pytest.approx(losses[-1], rel=1e-5)
    ours = [parameter for block in trainer.blocks for parameter in block.module.parameters()]
    for got, wanted in zip(ours, alone.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@on_ranks(2)
def test_the_next_forward_pass_of_the_first_block_does_not_wait_for_the_last_blocks():
    from horocache.dag import Engine
    from horocache.dag.training import LayerwiseTrainer

    engine = Engine({"device": 1, "cpu": 1}, record=True)
    trainer = LayerwiseTrainer(blocks_of(0)[1:], torch.nn.MSELoss(), sgd, engine=engine)
    for _ in range(2):
        trainer.step(torch.ones(2, 12), torch.zeros(2, 3))
    trainer.finish()
    graph = engine.graph()
    names = [operation.name for operation in graph.operations]
    second = names.index("forward 0", 1)
    before, found = {second}, {second}
    while found:
        found = {earlier for earlier, later, _ in graph.edges if later in found} - before
        before |= found
    needed = {names[number] for number in before}
    assert "update 0" in needed and not {"update 1", "update 2", "allreduce 2"} & needed
    engine.close()


@on_ranks(2)
def test_a_layer_that_raises_on_one_rank_is_an_error_on_all_of_them():
    from horocache.dag.training import LayerwiseTrainer

    trainer = LayerwiseTrainer(blocks_of(0), torch.nn.CrossEntropyLoss(), sgd)
    trainer.step(torch.ones(2, 3, 4), torch.zeros(2, dtype=torch.long))
    trainer.finish()
    wrong = torch.ones(2, 3, 5 if hc.rank() == 1 else 4)
    trainer.step(wrong, torch.zeros(2, dtype=torch.long))
    with pytest.raises(RuntimeError if hc.rank() == 1 else InputFailedError, match="mat1 and mat2"):
        trainer.finish()


def test_a_model_needs_blocks_that_share_no_parameter():
    from horocache.dag.training import LayerwiseTrainer

    layer = torch.nn.Linear(3, 3)
    for blocks in ([], [layer, layer]):
        with pytest.raises(InvalidArgumentError, match="a block or more"):
            LayerwiseTrainer(blocks, torch.nn.MSELoss(), sgd)
    with pytest.raises(InvalidArgumentError, match="slice_bytes must be above 0; it is 0"):
        LayerwiseTrainer([torch.nn.Linear(3, 3)], torch.nn.MSELoss(), sgd, slice_bytes=0)


@on_ranks(1, 2)
def test_parameters_of_several_types_and_frozen_ones_are_trained_or_not():
    from horocache.dag.training import LayerwiseTrainer

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).double()
            self.frozen = torch.nn.Parameter(torch.ones(4), requires_grad=False)
            self.unused = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.wide(self.narrow(x * self.frozen).double())

    torch.manual_seed(0)
    block = Both()
    before = {name: value.clone() for name, value in block.state_dict().items()}
    trainer = LayerwiseTrainer([block], torch.nn.MSELoss(), sgd)
    trainer.step(torch.full((2, 4), float(hc.rank())), torch.zeros(2, 4, dtype=torch.float64))
    trainer.finish()
    changed = {name for name, value in block.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == ({"narrow.bias", "wide.weight", "wide.bias"} | ({"narrow.weight"} if hc.size() > 1 else set()))
    assert {parameter.grad.dtype for parameter in block.parameters() if parameter.grad is not None} == {
        torch.float32,
        torch.float64,
    }


@on_ranks(2)
def test_a_gradient_that_was_replaced_is_an_error():
    from horocache.dag.training import LayerwiseTrainer

    trainer = LayerwiseTrainer(blocks_of(0)[1:], torch.nn.MSELoss(), sgd)
    if hc.rank() == 0:
        trainer.blocks[2].module.weight.grad = None
    trainer.step(torch.ones(2, 12), torch.zeros(2, 3))
    with pytest.raises(InvalidArgumentError if hc.rank() == 0 else InputFailedError, match="another gradient tensor"):
        trainer.finish()
