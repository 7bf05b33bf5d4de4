"""``hooks.py [--plain] STEPS``: backward passes of the MLP, with a reducer on one rank, for counting instructions."""

import gc
import sys

import horocache.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812
from horocache.torch.compression import Compression
from horocache.torch.optimizer.reducer import GradientReducer

from benchmarks.cases.models import mlp
from horocache.data_parallel.options import GradientOptions


def main(steps: int, plain: bool) -> None:
    """Run the steps. On one rank DistributedOptimizer has nothing to reduce, so the reducer is made here.

    Args:
        steps: number of steps.
        plain: True: without the reducer.
    """
    torch.set_num_threads(1)
    hvd.init()
    model = mlp()
    options = GradientOptions(Compression.none, 1, hvd.Average, 1.0, 1.0, 0, None, False, hvd.global_process_set)
    reducer = None if plain else GradientReducer(list(model.named_parameters()), options)
    inputs, labels = torch.randn(1, 64), torch.zeros(1, dtype=torch.long)
    gc.disable()  # the collector would run every few steps and scan all objects of torch
    for _ in range(steps):
        model.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        if reducer is not None:
            reducer.synchronize()
    print(sum(1 for _ in model.parameters()))
    hvd.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[-1]), "--plain" in sys.argv)
