"""torch.distributed's backend with tensors on the fake CUDA driver gives what it gives on the CPU."""

import sys
from pathlib import Path

import pytest
from fakes import CUDA, ROOT, nccl

from horocache.testing import run_ranks

FOLDERS = [str(ROOT), str(Path(__file__).parent)]
NCCL = {"HOROCACHE_NCCL_LIBRARY": str(nccl(23007)), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
WAYS = pytest.mark.parametrize("variables", [{}, NCCL], ids=["host", "nccl"])


def in_group(function, ranks, folder, backend="cpu:horocache,fakecuda:horocache", **environment):
    """Run ``function(torch, dist)`` on ranks of one process group."""

    def rank(folders):
        sys.path[:0] = folders
        import os

        import torch
        import torch.distributed as dist
        import torch_device

        torch_device.accept()
        place = {"rank": int(os.environ["HOROCACHE_RANK"]), "world_size": int(os.environ["HOROCACHE_SIZE"])}
        dist.init_process_group(backend, init_method=f"file://{folder}/store", **place)
        try:
            return function(torch, dist)
        finally:
            dist.destroy_process_group()

    variables = {"HOROCACHE_CUDA_LIBRARY": str(CUDA), "FAKE_GPU_DELAY_US": "20", **environment}
    return run_ranks(rank, ranks, args=(FOLDERS,), environment=variables, timeout=100)


def assert_alike(answers):
    for on_cpu, on_fake in answers:
        assert on_cpu == on_fake


@WAYS
def test_collectives(tmp_path, variables):
    def run(torch, dist):
        rank, size = dist.get_rank(), dist.get_world_size()

        def answers(place):
            def tensor(*shape, add=0):
                return (torch.arange(float(torch.Size(shape).numel())).reshape(shape) + rank + add).to(place)

            def empty(*shape):
                return torch.zeros(shape).to(place)

            summed, average, transposed = tensor(3, 2), tensor(5), tensor(4, 3)
            dist.all_reduce(summed)
            dist.all_reduce(average, op=dist.ReduceOp.AVG)
            dist.all_reduce(transposed.t(), op=dist.ReduceOp.MAX)
            root_has = tensor(4)
            dist.reduce(root_has, dst=1)
            sent = tensor(3)
            dist.broadcast(sent, src=1)
            gathered = [empty(2) for _ in range(size)]
            dist.all_gather(gathered, tensor(2))
            together = empty(2 * size)
            dist.all_gather_into_tensor(together, tensor(2))
            part = empty(3)
            dist.reduce_scatter_tensor(part, tensor(3 * size))
            parts = [empty(rank + 1) for _ in range(size)]
            dist.all_to_all(parts, [tensor(other + 1) for other in range(size)])
            swapped = empty(2 * size)
            dist.all_to_all_single(swapped, tensor(2 * size))
            at_root = [empty(2) for _ in range(size)] if rank == 0 else None
            dist.gather(tensor(2), at_root, dst=0)
            share = empty(2)
            dist.scatter(share, [tensor(2, add=other) for other in range(size)] if rank == 0 else None, src=0)
            halves = tensor(4).to(torch.float8_e4m3fn)
            dist.broadcast(halves, src=0)
            dist.barrier()
            results = [summed, average, transposed, sent, *gathered, together, part, *parts, swapped, share]
            results += [root_has] if rank == 1 else []
            results += (at_root or []) + [halves.float()]
            assert all(result.device.type == place for result in results), [result.device for result in results]
            return [result.cpu().tolist() for result in results]

        return answers("cpu"), answers("fakecuda")

    assert_alike(in_group(run, 2, tmp_path, **variables))


@WAYS
def test_asynchronous_and_coalesced_collectives(tmp_path, variables):
    def run(torch, dist):
        def answers(place):
            def tensor(count):
                return (torch.arange(float(count)) + dist.get_rank()).to(place)

            first, second, third = tensor(4), tensor(1000), torch.zeros(10).to(place)
            works = [
                dist.all_reduce(first, async_op=True),
                dist.all_reduce(second, async_op=True),
                dist.all_gather_into_tensor(third, tensor(5), async_op=True),
            ]
            works[1].wait()
            works[0].wait()
            works[2].wait()
            device = torch.device(place)
            fourth, fifth = tensor(3), tensor(6)
            with dist._coalescing_manager(device=device, async_ops=True) as manager:
                dist.all_reduce(fourth)
                dist.all_reduce(fifth)
            manager.wait()
            return [result.cpu().tolist() for result in (first, second, third, fourth, fifth)]

        return answers("cpu"), answers("fakecuda")

    assert_alike(in_group(run, 2, tmp_path, **variables))


def test_every_stream_that_waits_and_every_future_is_behind_the_operation(tmp_path):
    def run(torch, dist):
        import torch_device

        def answers(place):
            module = torch.get_device_module(place)
            on = module.stream
            new = torch_device.Stream if place == "fakecuda" else module.current_stream
            rank, size, results = dist.get_rank(), dist.get_world_size(), []
            # In place, and with a result that is stored by a copy.
            starts = [
                lambda given, _: (dist.all_reduce(given, async_op=True), given),
                lambda given, taken: (dist.all_gather_into_tensor(taken, given, async_op=True), taken),
            ]
            for start in starts:
                given, taken = torch.full((1000,), rank + 1.0).to(place), torch.zeros(1000 * size).to(place)
                assert taken.cpu().sum() == 0  # they are there
                with on(new()):
                    work, result = start(given + 0.0, taken)
                while not work.is_completed():
                    pass
                for _ in range(2):
                    with on(new()):
                        work.wait()
                        results.append((result * 2).cpu())
                future = work.get_future().then(lambda done: done.value()[0] * 3)
                results.append(future.wait().cpu())
                with on(new()):
                    later, result = start(given + 1.0, taken)
                future = later.get_future().then(lambda done: done.value()[0] * 4)  # perhaps before it is launched
                with on(new()):
                    later.wait()
                    results.append((result * 5).cpu())
                results.append(future.wait().cpu())
                with on(new()):
                    start(given + 2.0, taken)  # its work object is dropped
                with on(new()):
                    dist.all_reduce(torch.zeros(1).to(place))
                    results.append((taken * 6).cpu())
            return [result.tolist() for result in results]

        return answers("cpu"), answers("fakecuda")

    assert_alike(in_group(run, 2, tmp_path, **NCCL, FAKE_GPU_DELAY_US="3000"))


def test_the_device_may_be_named_at_the_start_and_the_cpu_left_to_another_backend(tmp_path):
    def rank(folders, folder):
        sys.path[:0] = folders
        import os

        import torch
        import torch.distributed as dist
        import torch_device

        torch_device.accept()
        place = {"rank": int(os.environ["HOROCACHE_RANK"]), "world_size": int(os.environ["HOROCACHE_SIZE"])}
        on_device, on_cpu = torch.ones(2).to("fakecuda"), torch.ones(2)
        answers = []
        for number, (backend, options) in enumerate(
            [
                ("cpu:horocache,fakecuda:horocache", {"device_id": torch.device("fakecuda", 0)}),
                ("cpu:gloo,fakecuda:horocache", {}),
            ]
        ):
            dist.init_process_group(backend, init_method=f"file://{folder}/store{number}", **place, **options)
            dist.all_reduce(on_device)
            dist.all_reduce(on_cpu)
            names = [dist.group.WORLD._get_backend(torch.device(kind)).name() for kind in ("cpu", "fakecuda")]
            answers.append((on_device.cpu().tolist(), on_cpu.tolist(), names))
            dist.destroy_process_group()
        return answers

    variables = {"HOROCACHE_CUDA_LIBRARY": str(CUDA)}
    for answers in run_ranks(rank, 2, args=(FOLDERS, str(tmp_path)), environment=variables, timeout=100):
        assert answers == [
            ([2.0] * 2, [2.0] * 2, ["horocache", "horocache"]),
            ([4.0] * 2, [4.0] * 2, ["gloo", "horocache"]),
        ]


def test_messages(tmp_path):
    def run(torch, dist):
        def answers(place):
            rank = dist.get_rank()
            received = torch.zeros(3, 2).to(place)
            given = (torch.arange(6.0).reshape(2, 3) + rank).to(place).t()
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, given, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
            )
            for work in works:
                work.wait()
            assert received.device.type == place
            return received.cpu().tolist()

        return answers("cpu"), answers("fakecuda")

    assert_alike(in_group(run, 2, tmp_path))


def test_a_device_that_is_not_named_is_an_error_that_names_the_ways_out(tmp_path):
    def run(torch, dist):
        tensor = torch.ones(2).to("fakecuda")
        try:
            dist.all_reduce(tensor)
        except Exception as error:
            return type(error).__name__, str(error)
        return None

    for name, text in in_group(run, 2, tmp_path, backend="cpu:horocache"):
        assert name == "UnsupportedError" and "fakecuda" in text and ".cpu()" in text, text
