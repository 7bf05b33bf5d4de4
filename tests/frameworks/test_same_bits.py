"""Parameters have the same bits with any grouping, cache, cycle mode and fusion threshold."""

from __future__ import annotations

import hashlib
import itertools

import horocache.torch as hvd
import torch
from ranks import on_ranks


def digest_after_training(num_groups, compression, steps=4):
    """Return a digest of the parameters after some steps on data that differs between the ranks."""
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


@on_ranks(3, 4, init=False)
def test_groups_cache_and_fusion_do_not_change_a_bit():
    digests = {}
    for capacity, mode in itertools.product((1024, 0), ("event", "tick")):
        hvd.init(cache_capacity=capacity, cycle_mode=mode)
        for name, groups in itertools.product(("none", "fp16"), (0, 1, 5)):
            digest = digest_after_training(groups, getattr(hvd.Compression, name))
            digests[f"{name} groups={groups} cache={capacity} {mode}"] = digest
        hvd.shutdown()
    hvd.init(group_by="count", fusion_threshold=4096)
    digests["none groups=3 by count, small fusion"] = digest_after_training(3, hvd.Compression.none)
    of_all_ranks = hvd.allgather_object(digests)
    assert all(each == digests for each in of_all_ranks), of_all_ranks
    for name in ("none", "fp16"):
        same = {key: digest for key, digest in digests.items() if key.startswith(name)}
        assert len(set(same.values())) == 1, same
    assert len(set(digests.values())) == 2
