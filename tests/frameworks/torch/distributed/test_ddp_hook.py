"""DDP whose buckets are reduced by horocache, against plain DDP."""

from __future__ import annotations

import datetime
import socket

import horocache.torch as hvd
import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

from ..small_model import batch, check_equal_on_all_ranks, make_model

LIMIT = datetime.timedelta(seconds=30)


def start_gloo(folder):
    dist.init_process_group("gloo", f"file://{folder}/store", LIMIT, rank=hvd.rank(), world_size=hvd.size())


def trained(hook, **options):
    # Small buckets, so that there are several.
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.001, **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(step, hvd.rank())
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@on_ranks(2, 3)
def test_the_hook_gives_the_parameters_of_plain_ddp(tmp_path):
    start_gloo(tmp_path)
    before = hvd.metrics()["operations"]
    ours, static = trained(hvd.ddp_hook), trained(hvd.ddp_hook, static_graph=True)
    assert hvd.metrics()["operations"] > before
    torch.testing.assert_close(ours, trained(None))
    torch.testing.assert_close(ours, static)
    compressed = trained(fp16_compress_wrapper(hvd.ddp_hook))
    torch.testing.assert_close(ours, compressed, rtol=0.05, atol=0.01)
    dist.destroy_process_group()
    check_equal_on_all_ranks(ours)


@on_ranks(2)
def test_an_invalid_state_and_a_lost_rank_raise_in_the_backward_pass(tmp_path):
    start_gloo(tmp_path)
    model = DistributedDataParallel(make_model())
    model.register_comm_hook("all", hvd.ddp_hook)
    x, y = batch(0, hvd.rank())
    with pytest.raises(Exception, match="state of ddp_hook is a ProcessSet"):
        torch.nn.functional.cross_entropy(model(x), y).backward()
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, hvd.ddp_hook)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    if hvd.rank() == 1:
        hvd.shutdown()
        return
    with pytest.raises(Exception, match="rank 1") as caught:
        loss.backward()
    assert socket.gethostname() not in str(caught.value)
