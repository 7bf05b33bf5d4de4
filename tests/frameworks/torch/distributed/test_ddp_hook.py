"""DDP whose buckets are reduced by horocache, against plain DDP."""

from __future__ import annotations

import datetime
import socket
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from horocache.testing import run_ranks as run

from ..small_model import batch, make_model

LIMIT = datetime.timedelta(seconds=30)


def start(folder):
    import horocache.torch as hvd

    hvd.init()
    dist.init_process_group("gloo", f"file://{folder}/store", LIMIT, rank=hvd.rank(), world_size=hvd.size())
    return hvd


def trained(hvd, hook, **options):
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


@pytest.mark.parametrize("size", [2, 3])
def test_parameters_are_those_of_ddp_alone(size):
    with tempfile.TemporaryDirectory() as folder:

        def body():
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper

            hvd = start(folder)
            before = hvd.metrics()["operations"]
            ours, again = trained(hvd, hvd.ddp_hook), trained(hvd, hvd.ddp_hook, static_graph=True)
            assert hvd.metrics()["operations"] > before
            torch.testing.assert_close(ours, trained(hvd, None))
            torch.testing.assert_close(ours, again)
            compressed = trained(hvd, fp16_compress_wrapper(hvd.ddp_hook))
            torch.testing.assert_close(ours, compressed, rtol=0.05, atol=0.01)
            dist.destroy_process_group()
            return [p.sum().item() for p in ours]

        results = run(body, size)
    assert all(result == results[0] for result in results)


def test_a_wrong_state_and_a_rank_that_fails_are_errors_of_the_backward_pass():
    with tempfile.TemporaryDirectory() as folder:

        def body():
            hvd = start(folder)
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
                return None
            with pytest.raises(Exception, match="rank 1") as caught:
                loss.backward()
            return str(caught.value)

        first, _ = run(body, 2)
    assert "rank 1" in first
    assert socket.gethostname() not in first
