"""K17: training with a store gives the parameters of one process with the joint batch."""

from __future__ import annotations

import pytest
from ranks import on_ranks

import horocache as hc
from horocache import kvstore

TYPES = ("negotiated", "depcha", "concom", "funnel", "dist_sync")


@on_ranks(2, 4)
def test_k17_training_in_every_design_gives_the_parameters_of_one_process_with_the_joint_batch():
    torch = pytest.importorskip("torch")

    def network():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

    def batch(step: int, rank: int):
        random = torch.Generator().manual_seed(100 * step + rank)
        return torch.randn(5, 6, generator=random), torch.randint(4, (5,), generator=random)

    def train(store, steps: int = 50) -> list:
        model, loss = network(), torch.nn.CrossEntropyLoss()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        for step in range(steps):
            batches = [batch(step, rank) for rank in (range(hc.size()) if store is None else [hc.rank()])]
            optimizer.zero_grad()
            loss(model(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches])).backward()
            if store is not None:
                gradients = [parameter.grad for parameter in parameters]
                store.pushpull(list(range(len(gradients))), gradients)
                for gradient in gradients:
                    gradient.div_(hc.size())
            optimizer.step()
        return [parameter.detach().clone() for parameter in parameters]

    alone = train(None)
    found = []
    for type_ in TYPES:
        store = kvstore.create(type_)
        store.init(list(range(4)), list(network().parameters()))
        found.append(train(store))
        store.close()
    for trained in found:
        for got, wanted, first in zip(trained, alone, found[0], strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
            assert torch.equal(got, first)  # the ranks are summed in one order
