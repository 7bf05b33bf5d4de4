"""``horocache.torch`` with tensors on the fake CUDA driver gives what it gives on the CPU."""

import sys
from pathlib import Path

import pytest
from fakes import CUDA, ROOT, nccl

from horocache.testing import run_ranks

FOLDERS = [str(ROOT), str(Path(__file__).parent)]
PLACES = ("cpu", "fakecuda")


def on_device(function, ranks, knobs=None, **environment):
    """Run ``function(torch, hvd)`` on ranks whose device ``fakecuda`` horocache takes for CUDA."""

    def rank(folders):
        sys.path[:0] = folders
        import horocache.torch as hvd
        import torch
        import torch_device

        torch_device.accept()
        hvd.init(flight_record="off", log_level="fatal")
        return function(torch, hvd)

    variables = {"HOROCACHE_CUDA_LIBRARY": str(CUDA), "FAKE_GPU_DELAY_US": "20", **environment}
    return run_ranks(rank, ranks, args=(FOLDERS,), knobs=knobs, environment=variables, timeout=100)


def assert_alike(answers):
    """Each rank's answer on the device is the one on the CPU."""
    for on_cpu, on_fake in answers:
        assert on_cpu == on_fake


def test_operations_and_their_gradients():
    def run(torch, hvd):
        def answers(place):
            rank, size = hvd.rank(), hvd.size()

            def tensor(*shape):
                values = torch.arange(float(torch.Size(shape).numel())).reshape(shape) + rank
                return values.to(place)

            given = tensor(3, 2).requires_grad_()
            reduced = hvd.allreduce(given, op=hvd.Sum, name="grad")
            reduced.sum().backward()
            received, rows = hvd.alltoall(tensor(size * 2), splits=torch.tensor([2] * size), name="alltoall")
            in_place = tensor(4)
            hvd.broadcast_(in_place, 1, name="broadcast")
            results = [
                given.grad,
                hvd.allreduce(tensor(5).bfloat16(), op=hvd.Average, name="average"),
                hvd.allreduce(tensor(5), op=hvd.Sum, name="fp16", compression=hvd.Compression.fp16),
                *hvd.grouped_allreduce([tensor(2), tensor(0), tensor(1000)], op=hvd.Max, name="group"),
                hvd.allgather(tensor(rank + 1, 2), name="allgather"),
                hvd.reducescatter(tensor(size * 2), op=hvd.Sum, name="reducescatter"),
                received,
                in_place,
                hvd.allreduce(tensor(4, 3).t(), op=hvd.Sum, name="transposed"),
                hvd.allreduce(tensor(2).double(), op=hvd.Adasum, name="adasum"),
            ]
            assert all(result.device.type == place for result in results), [result.device for result in results]
            return [result.cpu().tolist() for result in results] + [rows.tolist()]

        return answers("cpu"), answers("fakecuda")

    assert_alike(on_device(run, 2))


NCCL = {"HOROCACHE_NCCL_LIBRARY": str(nccl(23007)), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
OPTIONS = [{}, {"num_groups": 2}, {"compression": "fp16"}, {"passes": 2}, {"op": "Adasum"}]


@pytest.mark.parametrize("variables", [{}, NCCL], ids=["host", "nccl"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_training(options, variables):
    def run(torch, hvd):
        def train(place):
            torch.manual_seed(hvd.rank())
            layers = [torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3), torch.nn.Linear(3, 1)]
            model = torch.nn.Sequential(*layers).to(place)
            passes = options.get("passes", 1)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                named_parameters=model.named_parameters(),
                num_groups=options.get("num_groups", 0),
                compression=getattr(hvd.Compression, options.get("compression", "none")),
                backward_passes_per_step=passes,
                op=getattr(hvd, options.get("op", "Average")),
            )
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            data = torch.Generator().manual_seed(7 + hvd.rank())
            for _ in range(3):
                optimizer.zero_grad()
                for _ in range(passes):
                    batch = torch.randn(6, 4, generator=data).to(place)
                    model(batch).square().mean().backward()
                optimizer.step()
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
            assert all(value.device.type == place for value in [*momenta, *model.parameters()])
            return [value.detach().cpu().tolist() for value in [*model.parameters(), *momenta]]

        return train("cpu"), train("fakecuda")

    answers = on_device(run, 2, **variables)
    assert_alike(answers)
    assert answers[0] == answers[1], "the ranks' parameters differ"


def test_a_model_on_the_cpu_and_the_device():
    def run(torch, hvd):
        def train(place):
            torch.manual_seed(1)
            first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1).to(place)
            named = [*first.named_parameters("first"), *second.named_parameters("second")]
            optimizer = hvd.DistributedOptimizer(
                torch.optim.Adam([param for _, param in named], lr=0.1), named_parameters=named, num_groups=1
            )
            hvd.broadcast_parameters(named, root_rank=0)
            for turn in range(3):
                optimizer.zero_grad()
                batch = torch.full((2, 4), float(turn + hvd.rank()))
                second(first(batch).to(place)).square().mean().backward()
                optimizer.step()
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            return [param.detach().cpu().tolist() for _, param in named]

        return train("cpu"), train("fakecuda")

    assert_alike(on_device(run, 2))


def test_sync_batch_norm():
    def run(torch, hvd):
        def train(place):
            torch.manual_seed(0)
            norm = hvd.SyncBatchNorm(3).to(place)
            batch = (torch.randn(4, 3, 2) + hvd.rank()).to(place).requires_grad_()
            output = norm(batch)
            output.pow(3).sum().backward()
            values = [output, batch.grad, norm.weight.grad, norm.running_mean, norm.running_var]
            return [value.detach().cpu().tolist() for value in values]

        return train("cpu"), train("fakecuda")

    assert_alike(on_device(run, 2))


def test_state_goes_to_ranks_that_have_none():
    def run(torch, hvd):
        model = torch.nn.Linear(3, 2).to("fakecuda")
        optimizer = torch.optim.Adam(model.parameters())
        if hvd.rank() == 0:
            model(torch.ones(1, 3).to("fakecuda")).sum().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return [
            {key: (value.device.type, value.cpu().tolist()) for key, value in state.items()}
            for state in optimizer.state.values()
        ]

    first, second = on_device(run, 2)
    assert first == second
    assert {key: place for key, (place, _) in first[0].items()} == {
        "step": "cpu",
        "exp_avg": "fakecuda",
        "exp_avg_sq": "fakecuda",
    }
