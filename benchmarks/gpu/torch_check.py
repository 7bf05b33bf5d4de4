"""Checks ``horocache.torch`` on a GPU: results, order with torch's streams, reuse of memory, training, a killed rank.

    horocacherun -np 2 python benchmarks/gpu/torch_check.py results order reuse training
    horocacherun -np 3 python benchmarks/gpu/torch_check.py kill

All ranks share the device 0. ``--device fakecuda`` runs the checks on the fake driver of ``tests/fake_gpu``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horocache.torch as hvd
import torch

ROOT = Path(__file__).resolve().parents[2]
DELAY_CYCLES = 20_000_000  # 10 ms of an H100
MIB = 1 << 20
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
KILL_SECONDS = 2.0  # within which the others must know


class Check:
    """The checks on one device."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device, 0)

    def delay(self) -> None:
        """Keep the current stream busy, so that work behind it comes late."""
        if self.device.type == "cuda":
            torch.cuda._sleep(DELAY_CYCLES)  # type: ignore[no-untyped-call]

    def results(self) -> str:
        """Whole numbers in every type; sizes around a tile."""
        checked = 0
        for dtype in DTYPES:
            for count in (0, 1, 1000, 3 * MIB + 1):
                mine = (torch.arange(count) % 7 + hvd.rank()).to(dtype)
                total = hvd.allreduce(mine.to(self.device), op=hvd.Sum, name=f"sum.{dtype}.{count}")
                expected = sum((torch.arange(count) % 7 + rank).to(dtype) for rank in range(hvd.size()))
                expect(
                    total.device == self.device and torch.equal(total.cpu(), torch.as_tensor(expected).to(dtype)), dtype
                )
                gathered = hvd.allgather(mine[: hvd.rank() + 1].to(self.device), name=f"gather.{dtype}.{count}")
                expect(gathered.device == self.device, gathered.device)
                checked += 1
        return f"{checked} types and sizes"

    def order(self) -> str:
        """Tensors that are computed late, and results that are used at once."""
        for turn in range(20):
            tensor = torch.zeros(MIB, device=self.device)
            self.delay()
            tensor += hvd.rank() + turn
            total = hvd.allreduce(tensor, op=hvd.Sum, name="late")
            doubled = total * 2
            expected = 2.0 * sum(rank + turn for rank in range(hvd.size()))
            expect(bool((doubled.cpu() == expected).all()), f"turn {turn}")
        return "20 turns"

    def reuse(self) -> str:
        """Memory that goes back to torch's allocator right after the call, and to the next tensor."""
        for turn in range(20):
            self.delay()
            tensor = torch.full((MIB,), float(turn), device=self.device)
            handle = hvd.allreduce_async(tensor, op=hvd.Sum, name="reused")
            del tensor
            other = torch.full((MIB,), -1.0, device=self.device)
            total = hvd.synchronize(handle)
            expect(bool((total.cpu() == turn * hvd.size()).all()) and bool((other.cpu() == -1).all()), f"turn {turn}")
        return "20 turns"

    def training(self) -> str:
        """The ranks' parameters stay equal, with and without groups, and with parameters on the CPU, too."""
        for groups, mixed in ((0, False), (2, False), (1, True)):
            torch.manual_seed(hvd.rank())
            first = torch.nn.Linear(64, 256)
            second = torch.nn.Linear(256, 8).to(self.device)
            if not mixed:
                first = first.to(self.device)
            named = [*first.named_parameters("first"), *second.named_parameters("second")]
            plain = torch.optim.Adam([param for _, param in named], lr=0.01)
            optimizer = hvd.DistributedOptimizer(plain, named_parameters=named, num_groups=groups)
            hvd.broadcast_parameters(named, root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            for _ in range(10):
                optimizer.zero_grad()
                batch = torch.randn(32, 64).to(first.weight.device)
                second(first(batch).to(self.device)).square().mean().backward()
                optimizer.step()
            for name, param in named:
                everyone = hvd.allgather(param.detach().reshape(1, -1), name=f"check.{groups}.{mixed}.{name}")
                expect(bool((everyone == everyone[0]).all()), f"{name} differs between ranks")
        return "3 models"

    def kill(self) -> str:
        """Rank 1 dies in the middle; the others name it in time."""
        tensor = torch.ones(4 * MIB, device=self.device)
        for turn in range(1000):
            if hvd.rank() == 1 and turn == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            begin = time.monotonic()
            try:
                hvd.allreduce_(tensor, op=hvd.Average, name="killed")
            except hvd.PeerLostError as error:
                seconds = time.monotonic() - begin
                expect("rank 1 " in str(error) and seconds < KILL_SECONDS, f"after {seconds:.2f} s: {error}")
                return f"known after {seconds:.2f} s"
        raise AssertionError("rank 1 was not missed")


def expect(holds: bool, what: object) -> None:
    """Raise AssertionError, with the rank, if a check does not hold."""
    if not holds:
        raise AssertionError(f"rank {hvd.rank()} of {hvd.size()}: {what}")


def main() -> int:
    """Run the checks that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="+", choices=("results", "order", "reuse", "training", "kill"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "fakecuda"))
    options = parser.parse_args()
    if options.device == "fakecuda":
        sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fake_gpu")]
        importlib.import_module("torch_device").accept()
    hvd.init()
    check = Check(options.device)
    for name in options.checks:
        function: Callable[[], Any] = getattr(check, name)
        begin = time.monotonic()
        found = function()
        if hvd.rank() == 0:
            print(f"{name:<10} {found}, {time.monotonic() - begin:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
