"""Speed of ``horocache.torch`` on a GPU beside NCCL itself and torch.distributed, in turns, results checked first.

    horocacherun -np 2 python benchmarks/gpu/torch_speed.py allreduce gradients training --output speed.jsonl

All ranks share the device 0, which takes NCCL 2.30.3 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1; an older NCCL takes
``--as-hosts``. On the fake driver of ``tests/fake_gpu`` (``--device fakecuda``), where torch.distributed has no NCCL,
horocache and the fake NCCL run alone.

Times are medians, in us: from the call until the device is done, and of the call on the host; of a training step, the
processor time of the rank, too. At the end, the goals are compared with them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import horocache.torch as hvd  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from benchmarks.architectures import load  # noqa: E402
from benchmarks.cases.models import cnn  # noqa: E402
from benchmarks.gpu.nccl import Nccl, UniqueId, find_library  # noqa: E402
from horocache import _core  # noqa: E402

MIB = 1 << 20
SIZES = (4, 4096, 65536, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
DDP_BUCKET_BYTES = 25 * MIB
FLOAT, SUM = 7, 0  # NCCL's numbers
WARM_UP = 5  # most of the first turns, which do not count
Way = Callable[[], object]


class Bench:
    """The measurements on one device."""

    def __init__(self, device: torch.device, options: argparse.Namespace) -> None:
        self.device = device
        self.turns: int = options.turns
        self.sizes = [size for size in SIZES if size <= options.max_bytes]
        self.images: int = options.images
        self.output: Path | None = options.output
        self.rows: list[Mapping[str, Any]] = []
        self.module: Any = torch.get_device_module(device)
        self.has_peer = device.type == "cuda" and dist.is_nccl_available()
        self.nccl = Nccl(os.environ.get("HOROCACHE_NCCL_LIBRARY") or find_library())
        unique_id = hvd.broadcast_object(bytes(self.nccl.unique_id()), root_rank=0, name="unique id")
        torch.zeros(1, device=device)  # makes the context current, in which NCCL connects
        self.communicator = self.nccl.communicator(hvd.size(), hvd.rank(), UniqueId.from_buffer_copy(unique_id))

    def raw(self, tensor: torch.Tensor) -> None:
        """Call NCCL's allreduce on torch's current stream."""
        place = tensor.data_ptr()
        call = (place, place, tensor.numel(), FLOAT, SUM, self.communicator, self.stream())
        self.nccl.must("ncclAllReduce", *call)

    def stream(self) -> int:
        """The handle of torch's current stream."""
        stream = self.module.current_stream(self.device)
        return int(stream.cuda_stream if self.device.type == "cuda" else stream.handle)

    def finish(self) -> None:
        """Wait until the device has done the work of torch's current stream."""
        if self.device.type == "cuda":
            self.module.synchronize(self.device)
        else:
            torch.zeros(1, device=self.device).cpu()

    # ---- measuring

    def measure(self, ways: Mapping[str, Way], **about: object) -> None:
        """Measure the ways in turns, and report them."""
        times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
        warm_up = min(WARM_UP, self.turns)
        for turn in range(warm_up + self.turns):
            for name, way in ways.items():
                self.finish()
                hvd.barrier()
                processor, begin = time.process_time(), time.perf_counter()
                way()
                host = time.perf_counter() - begin
                self.finish()
                whole = time.perf_counter() - begin
                if turn >= warm_up:
                    times[name].append((whole * 1e6, host * 1e6, (time.process_time() - processor) * 1e6))
        first = next(iter(ways))
        for name, samples in times.items():
            us, host_us, processor_us = map(statistics.median, zip(*samples, strict=True))
            least, most = min(sample[0] for sample in samples), max(sample[0] for sample in samples)
            row = {
                **about,
                "way": name,
                "ranks": hvd.size(),
                "us": us,
                "host_us": host_us,
                "processor_us": processor_us,
            }
            row |= {"min_us": least, "max_us": most, "over_first": us / statistics.median(s[0] for s in times[first])}
            self.report(row)

    def report(self, row: Mapping[str, Any]) -> None:
        """Keep a row; print it on rank 0, and append it to the output."""
        self.rows.append(row)
        if hvd.rank() != 0:
            return
        text = json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
        print(text, flush=True)
        if self.output is not None:
            with self.output.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    def check(self, way: Way, tensors: Sequence[torch.Tensor], what: str) -> None:
        """Raise AssertionError unless the way adds the ranks' tensors."""
        for tensor in tensors:
            tensor.fill_(float(hvd.rank() + 1))
        way()
        expected = float(sum(range(1, hvd.size() + 1)))
        for tensor in tensors:
            if not bool((tensor.cpu() == expected).all()):
                raise AssertionError(f"rank {hvd.rank()}: {what}: a sum is not {expected}")
            tensor.zero_()  # stays zero, however often it is reduced

    # ---- what is measured

    def allreduce(self) -> None:
        """One tensor, by size."""
        for size in self.sizes:
            tensor = torch.zeros(size // 4, device=self.device)
            ways: dict[str, Way] = {
                "nccl": partial(self.raw, tensor),
                "horocache": partial(hvd.allreduce_, tensor, op=hvd.Sum, name=f"one.{size}"),
            }
            if self.has_peer:
                ways["torch.distributed"] = partial(dist.all_reduce, tensor)
            for name, way in ways.items():
                self.check(way, [tensor], f"{name}, {size} bytes")
            self.measure(ways, section="allreduce", bytes=size)

    def gradients(self) -> None:
        """ResNet-50's gradients: each in memory of its own, side by side, and in DDP's buckets."""
        counts = [torch.Size(shape).numel() for _, shape in load("ResNet-50")]
        apart = [torch.zeros(count, device=self.device) for count in counts]
        flat = list(torch.split(torch.zeros(sum(counts), device=self.device), sorted(counts, key=_part)))
        ways: dict[str, Way] = {
            "nccl, a group of calls": lambda: self._group(apart),
            "horocache, packed": lambda: hvd.grouped_allreduce_(apart, op=hvd.Sum, name="packed"),
            "horocache, flat": lambda: hvd.grouped_allreduce_(flat, op=hvd.Sum, name="flat"),
        }
        buckets = _buckets(counts, self.device)
        if self.has_peer:
            ways["torch.distributed, DDP's buckets"] = lambda: _all_reduce(buckets)
        tensors = [apart, apart, flat, buckets]
        for (name, way), used in zip(ways.items(), tensors, strict=False):
            self.check(way, used, name)
        self.measure(ways, section="gradients", tensors=len(counts), bytes=4 * sum(counts))

    def _group(self, tensors: Sequence[torch.Tensor]) -> None:
        self.nccl.must("ncclGroupStart")
        for tensor in tensors:
            self.raw(tensor)
        self.nccl.must("ncclGroupEnd")

    def training(self) -> None:
        """A step of a small convolutional network."""
        generator = torch.Generator().manual_seed(hvd.rank())
        images = torch.randn(self.images, 3, 32, 32, generator=generator).to(self.device)
        labels = torch.randint(0, 10, (self.images,), generator=generator).to(self.device)

        def step(model: torch.nn.Module, optimizer: Any) -> None:
            optimizer.zero_grad(set_to_none=False)
            torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        ways: dict[str, Way] = {}
        models = []
        for name in ("horocache", "DDP") if self.has_peer else ("horocache",):
            torch.manual_seed(0)
            model = cnn().to(self.device)
            plain = torch.optim.SGD(model.parameters(), lr=0.01)
            if name == "DDP":
                trained: Any = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
                optimizer: Any = plain
            else:
                trained = model
                optimizer = hvd.DistributedOptimizer(
                    plain, model.named_parameters(), num_groups="auto", gradient_as_bucket_view=True
                )
            step(trained, optimizer)
            models.append(model)
            ways[name] = partial(step, trained, optimizer)
        for one, other in zip(models[0].parameters(), models[-1].parameters(), strict=True):
            torch.testing.assert_close(one.cpu(), other.cpu())
        self.measure(ways, section="training", parameters=sum(param.numel() for param in models[0].parameters()))


def goals(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Compare the times with the goals; those of ways that were not measured are left out.

    Args:
        rows: as :meth:`Bench.measure` reports them.
    """
    times = {(row["section"], int(row.get("bytes", 0)), row["way"]): row["us"] for row in rows}

    def goal(name: str, value: float, limit: float) -> dict[str, Any]:
        return {"goal": name, "value": value, "limit": limit, "met": value <= limit}

    for (section, size, way), us in times.items():
        if section == "allreduce" and way == "horocache":
            raw = times[section, size, "nccl"]
            if size == SIZES[0]:
                yield goal(f"allreduce of {size} B, us more than NCCL's own call", us - raw, 15.0)
            elif size >= 16 * MIB:
                yield goal(f"allreduce of {size // MIB} MiB, over NCCL's own call", us / raw, 1.02)
        elif section == "gradients" and way.startswith("torch.distributed"):
            ours = min(times[section, size, "horocache, packed"], times[section, size, "horocache, flat"])
            yield goal("ResNet-50's gradients, over torch.distributed in DDP's buckets", ours / us, 1.0)
        elif section == "training" and way == "DDP":
            yield goal("a training step, over DDP", times[section, size, "horocache"] / us, 1.0)


def _part(count: int) -> int:
    return _core.flat_part(4 * count)


def _buckets(counts: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """DDP's buckets: from the last parameter on, closed when they have reached their size."""
    sizes = [0]
    for count in reversed(counts):
        if sizes[-1] * 4 >= DDP_BUCKET_BYTES:
            sizes.append(0)
        sizes[-1] += count
    return [torch.zeros(size, device=device) for size in sizes]


def _all_reduce(tensors: Sequence[torch.Tensor]) -> None:
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()


@contextmanager
def _process_group() -> Iterator[None]:
    """torch.distributed with NCCL, for the ranks of horocache."""
    with tempfile.TemporaryDirectory(prefix="horocache-bench-") as own:
        folder = hvd.broadcast_object(own, root_rank=0, name="folder")
        dist.init_process_group("nccl", rank=hvd.rank(), world_size=hvd.size(), init_method=f"file://{folder}/store")
        yield
        dist.destroy_process_group()
        hvd.barrier()  # rank 0 removes the folder


def main() -> int:
    """Measure the sections that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=("allreduce", "gradients", "training"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "fakecuda"))
    parser.add_argument("--turns", type=int, default=50, help="measurements of each way (50)")
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1], help="the largest tensor of the section allreduce")
    parser.add_argument("--images", type=int, default=64, help="images per rank and step of the section training (64)")
    parser.add_argument("--as-hosts", action="store_true", help="let NCCL take each rank for a host of its own")
    parser.add_argument("--output", type=Path, help="append the rows to this JSON Lines file")
    options = parser.parse_args()
    if options.turns < 1 or options.images < 1 or options.max_bytes < SIZES[0]:
        parser.error(f"--turns and --images are at least 1, and --max-bytes {SIZES[0]}")
    if options.device == "fakecuda":
        sys.path[:0] = [str(ROOT / "tests" / "fake_gpu")]
        importlib.import_module("torch_device").accept()
    if options.as_hosts:
        os.environ["NCCL_HOSTID"] = f"rank{os.environ['HOROCACHE_RANK']}"
    os.environ["HOROCACHE_NCCL"] = "on"
    hvd.init()
    bench = Bench(torch.device(options.device, 0), options)
    with _process_group() if bench.has_peer else nullcontext():
        for name in options.sections:
            getattr(bench, name)()
    for row in list(goals(bench.rows)):
        bench.report(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
