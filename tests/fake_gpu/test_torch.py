"""``horocache.torch`` with tensors on the fake CUDA driver gives what it gives on the CPU."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from fakes import CUDA, ROOT, nccl

from horocache.testing import run_ranks

FOLDERS = [str(ROOT), str(Path(__file__).parent)]
PLACES = ("cpu", "fakecuda")


def on_device(function, ranks, knobs=None, without_table=False, **environment):
    """Run ``function(torch, hvd)`` on ranks whose device ``fakecuda`` horocache takes for CUDA.

    ``without_table``: as if torch were older than 2.10.
    """

    def rank(folders, without_table):
        sys.path[:0] = folders
        import horocache.torch as hvd
        import torch
        import torch_device

        torch_device.accept(without_table)
        hvd.init(flight_record="off", log_level="fatal")
        return function(torch, hvd)

    variables = {"HOROCACHE_CUDA_LIBRARY": str(CUDA), "FAKE_GPU_DELAY_US": "20", **environment}
    return run_ranks(rank, ranks, args=(FOLDERS, without_table), knobs=knobs, environment=variables, timeout=100)


def assert_alike(answers):
    """Each rank's answer on the device is the one on the CPU."""
    for on_cpu, on_fake in answers:
        assert on_cpu == on_fake


@pytest.mark.parametrize("without_table", [False, True])
def test_operations_and_their_gradients(without_table):
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
            columns = tensor(4, 3).t()
            hvd.sendrecv(tensor(3, 4), (rank + 1) % size, columns, (rank - 1) % size)
            results = [
                columns,
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

    assert_alike(on_device(run, 2, without_table=without_table))


NCCL = {"HOROCACHE_NCCL_LIBRARY": str(nccl(23007)), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


@pytest.mark.parametrize("variables", [{}, NCCL], ids=["host", "nccl"])
def test_gradients_of_operations_on_rows_and_of_broadcasts(variables):
    def run(torch, hvd):
        def answers(place):
            rank = hvd.rank()

            def gradient(name, call):
                given = (torch.arange(8.0).reshape(4, 2) + rank).to(place).requires_grad_()
                result = call(given, name=f"{name}.{place}")
                weights = torch.arange(float(result.numel())).reshape(result.shape).to(place)
                (result * weights).sum().backward()
                assert given.grad.device.type == place
                return result.detach().cpu().tolist(), given.grad.cpu().tolist()

            return [
                gradient("allgather", hvd.allgather),
                gradient("alltoall", hvd.alltoall),
                gradient("broadcast", lambda given, name: hvd.broadcast(given, 1, name=name)),
                gradient("reducescatter", lambda given, name: hvd.reducescatter(given, op=hvd.Sum, name=name)),
                gradient("group", lambda given, name: hvd.grouped_allreduce([given, given * 2], name=name)[1]),
            ]

        return answers("cpu"), answers("fakecuda")

    assert_alike(on_device(run, 2, **variables))


@pytest.mark.parametrize("variables", [{}, NCCL], ids=["host", "nccl"])
def test_process_sets_and_ranks_that_have_joined(variables):
    def run(torch, hvd):
        some = hvd.add_process_set([0, 2])
        totals = []
        if some.included():
            tensor = torch.full((3,), 1.0 + hvd.rank()).to("fakecuda")
            totals.append(hvd.allreduce(tensor, op=hvd.Sum, name="some", process_set=some).cpu().tolist())
        if hvd.rank() != 1:
            late = torch.full((2,), 10.0).to("fakecuda")
            totals.append(hvd.allreduce(late, op=hvd.Sum, name="late").cpu().tolist())
            totals.append(hvd.allgather(late, name="rows").cpu().tolist())
        hvd.join()
        return totals

    answers = on_device(run, 3, **variables)
    assert answers == [[[4.0] * 3, [20.0] * 2, [10.0] * 4], [], [[4.0] * 3, [20.0] * 2, [10.0] * 4]]


OPTIONS = [
    {},
    {"num_groups": 2},
    {"compression": "fp16"},
    {"passes": 2},
    {"op": "Adasum"},
    {"view": True},
    {"view": True, "num_groups": 2, "passes": 2, "set_to_none": False},
    {"without_table": True, "num_groups": 2},
]


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
                gradient_as_bucket_view=options.get("view", "auto"),
            )
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            data = torch.Generator().manual_seed(7 + hvd.rank())
            for _ in range(3):
                optimizer.zero_grad(set_to_none=options.get("set_to_none", True))
                for _ in range(passes):
                    batch = torch.randn(6, 4, generator=data).to(place)
                    model(batch).square().mean().backward()
                optimizer.step()
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
            assert all(value.device.type == place for value in [*momenta, *model.parameters()])
            return [value.detach().cpu().tolist() for value in [*model.parameters(), *momenta]]

        return train("cpu"), train("fakecuda")

    answers = on_device(run, 2, without_table=options.get("without_table", False), **variables)
    assert_alike(answers)
    assert answers[0] == answers[1], "the ranks' parameters differ"


def test_bucket_views_lie_as_nccl_takes_them_so_that_nothing_is_packed():
    def run(torch, hvd):
        import device_arrays

        class Model(torch.nn.Module):
            """Uses its parameters in another order than it registers them."""

            def __init__(self):
                super().__init__()
                self.second, self.fourth = torch.nn.Linear(5, 4), torch.nn.Linear(3, 4)
                self.third, self.first = torch.nn.Linear(4, 3), torch.nn.Linear(300_000, 5)

            def forward(self, batch):
                return self.fourth(self.third(self.second(self.first(batch))))

        model = Model().to("fakecuda")
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0),
            named_parameters=model.named_parameters(),
            op=hvd.Sum,
            num_groups=2,
            gradient_as_bucket_view=True,
        )
        batch = torch.ones(1, 300_000).to("fakecuda")

        def step():
            optimizer.zero_grad(set_to_none=False)
            model(batch).sum().backward()
            optimizer.step()

        step()  # measures the order of the gradients
        names = "cuLaunchKernel", "ncclAllReduce"
        before = [device_arrays.calls(name) for name in names]
        step()
        step()
        counts = [device_arrays.calls(name) - already for name, already in zip(names, before, strict=True)]
        grads = {name: param.grad for name, param in model.named_parameters()}
        places = sorted((grad.data_ptr(), grad.nbytes, name) for name, grad in grads.items())
        gaps = [place - last - size for (last, size, _), (place, _, _) in pairwise(places)]
        alignments = {name: place % 16 for place, _, name in places}
        return counts, gaps, alignments, [name for *_, name in places], grads["fourth.bias"].cpu().tolist()

    knobs = {"group_by": "count", "disable_group_fusion": "1"}
    for counts, gaps, alignments, order, values in on_device(run, 2, knobs, **NCCL):
        # Small tensors of a group are one call, the large one is another.
        assert counts == [0, 2 * 3], counts
        assert all(0 <= gap < 16 for gap in gaps), gaps
        behind_vectors = {"third.bias", "first.bias"}  # of 12 and 20 bytes
        assert order[-1] == "first.weight" and not any(alignments[name] for name in order if name not in behind_vectors)
        assert values == [2.0] * 4


def test_a_bucket_view_on_the_device_is_given_up_when_it_must_be():
    def run(torch, hvd):
        model = torch.nn.Linear(4, 4).to("fakecuda")
        params = dict(model.named_parameters())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0),
            named_parameters=model.named_parameters(),
            op=hvd.Sum,
            gradient_as_bucket_view=True,
        )
        seen = []
        for turn in range(3):
            optimizer.zero_grad()
            model(torch.full((1, 4), float(turn)).to("fakecuda")).sum().backward()
            optimizer.step()
            seen.append(params["weight"].grad)  # the program keeps it: it has its values still at the end
        kept = [grad.cpu()[0].tolist() for grad in seen]
        own = torch.zeros(4).to("fakecuda")
        params["bias"].grad = own
        model(torch.ones(1, 4).to("fakecuda")).sum().backward()
        optimizer.step()
        return kept, params["bias"].grad is own, own.cpu().tolist()

    for kept, is_own, own in on_device(run, 2, **NCCL):
        assert kept == [[0.0] * 4, [2.0] * 4, [4.0] * 4] and is_own and own == [2.0] * 4


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


def test_the_digits_example_trains_alike():
    def run(torch, hvd):
        import runpy
        from pathlib import Path

        import device_arrays

        file = Path(device_arrays.__file__).parents[2] / "docs" / "examples" / "torch_digits.py"
        example, results = runpy.run_path(str(file)), []
        for place in ("cpu", "fakecuda"):
            options = example["parse_arguments"](["--epochs", "1", "--batch-size", "64", "--device", place])
            device = example["choose_device"](place)
            torch.manual_seed(1)
            dataset, images, labels = example["load_images"](0)
            model = example["make_model"]().to(device)
            example["train"](options, model, dataset, device)
            assert example["replicas_are_identical"](model)
            rate = example["accuracy"](model, images, labels, device)
            results.append((rate, [param.detach().cpu().tolist() for param in model.parameters()]))
        return results

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
