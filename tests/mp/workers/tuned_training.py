"""Trains with or without autotune: ``tuned_training.py STEPS SLEEPER``; rank SLEEPER sleeps in some steps.

With ``tuned`` instead of a number of steps it trains until the tuning has ended, and 20 steps more.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time

import horocache.torch as hvd
import torch
from common import report

from horocache.core import context


def is_tuned() -> bool:
    """True on all ranks once rank 0's thread has ended."""
    return hvd.broadcast_object(all(thread.name != "hc-autotune" for thread in threading.enumerate()), 0)


def main() -> None:
    until_tuned, sleeper = sys.argv[1] == "tuned", int(sys.argv[2])
    last = None if until_tuned else int(sys.argv[1])
    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[layer for _ in range(8) for layer in (torch.nn.Linear(16, 16), torch.nn.ReLU())])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), num_groups="auto")
    groups: list[tuple[int, int]] = []
    for step in itertools.count():
        if last is None and step % 20 == 0 and is_tuned():
            last = step + 20
        if step == last:
            break
        generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
        if hvd.rank() == sleeper and step % 7 < 2:
            time.sleep(0.02)
        optimizer.zero_grad()
        # Whole numbers of small size: sums are exact in any order.
        model(torch.randint(-2, 3, (4, 16), generator=generator).float()).sum().backward()
        optimizer.step()
        number = len(optimizer.debug_state().buckets)
        if not groups or groups[-1][1] != number:
            groups.append((step, number))
    sums = [float(param.detach().double().sum()) for param in model.parameters()]
    report("done", groups=groups, sums=sums, changes=context.current().runtime.settings_changes)


if __name__ == "__main__":
    main()
