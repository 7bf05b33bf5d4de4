"""Parameters have the same bits however gradients travel: with any grouping, cache and timing."""

from __future__ import annotations

import hashlib
import itertools

import pytest
import torch

from horocache.testing import run_ranks


def train(hvd, num_groups, compression, steps=4):
    """A digest of the parameters after some steps on data that differs by rank."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(144, 33),
        torch.nn.Tanh(),
        torch.nn.Linear(33, 5),
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        model.named_parameters(),
        compression=compression,
        num_groups=num_groups,
    )
    generator = torch.Generator().manual_seed(100 + hvd.rank())
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, 1, 8, 8, generator=generator)
        y = torch.randint(0, 5, (8,), generator=generator)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("size", [3, 4])
def test_groups_cache_mode_and_order_do_not_change_a_bit(size):
    def body():
        import horocache.torch as hvd

        digests = {}
        for capacity, mode in itertools.product((1024, 0), ("event", "tick")):
            hvd.init(cache_capacity=capacity, cycle_mode=mode)
            for name, groups in itertools.product(("none", "fp16"), (0, 1, 5)):
                digest = train(hvd, groups, getattr(hvd.Compression, name))
                digests[f"{name} groups={groups} cache={capacity} {mode}"] = digest
            hvd.shutdown()
        hvd.init(group_by="count", fusion_threshold=4096)
        digests["none groups=3 by count, small fusion"] = train(hvd, 3, hvd.Compression.none)
        hvd.shutdown()
        return digests

    answers = run_ranks(body, size)
    assert all(answer == answers[0] for answer in answers), answers
    for name in ("none", "fp16"):
        same = {key: digest for key, digest in answers[0].items() if key.startswith(name)}
        assert len(set(same.values())) == 1, same
    assert len(set(answers[0].values())) == 2
