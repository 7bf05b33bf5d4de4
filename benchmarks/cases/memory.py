"""Memory of a rank at the peak of a training step, above the memory of the model and its data.

Each way to hold gradients is a separate job, as memory that was used once may stay with the process. A hook of every
gradient reads the memory: private pages, and pages that ranks share. A page that several ranks have mapped counts in
equal parts on each.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases.training import ddp
from benchmarks.figures import Figure, Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.report import Table, number

TITLE = "Memory at the peak of a step"
PRIVATE, SHARED, ALL = "private", "shared", "all"
_FIELDS = {PRIVATE: "Pss_Anon:", SHARED: "Pss_Shmem:"}
_LAYERS, _WIDTH, _BATCH, _STEPS, _GROUPS = 32, 1024, 16, 3, 4  # 128 MiB of gradients, 2 of activations
_OURS = {"horocache, gradients in shared memory": "auto", "horocache, private gradients": False}
_DDP = "gloo, DDP"


def jobs(quick: bool) -> list[Job]:
    """One job for each way."""
    del quick
    return [Job("memory", 2, {"way": way}) for way in (*_OURS, _DDP)]


class Peak:
    """The largest memory of each kind, in MiB, above the memory at the start."""

    def __init__(self) -> None:
        self._base = _resident()
        self.most = dict.fromkeys((*_FIELDS, ALL), 0.0)

    def look(self, _: Any = None) -> None:
        """Update the maxima with the current memory."""
        taken = {kind: mib - self._base[kind] for kind, mib in _resident().items()}
        self.most = {kind: max(most, taken[kind]) for kind, most in self.most.items()}


def _resident() -> dict[str, float]:
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()]
    kib = {words[0]: float(words[1]) for words in lines if words and words[0] in _FIELDS.values()}
    found = {kind: kib[name] / 1024 for kind, name in _FIELDS.items()}
    return {**found, ALL: sum(found.values())}


def measure(rank: Rank, way: str) -> list[Series]:
    """Train a model of 32 layers for a few steps, with no more groups of gradients than DDP has buckets."""
    import torch
    from torch import nn

    if not rank.has("gloo" if way == _DDP else "horocache"):
        return []
    torch.set_num_threads(1)
    torch.manual_seed(42)
    net: Any = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)))
    inputs = torch.randn(_BATCH, _WIDTH)
    net(inputs).sum()
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=1e-6)
    if way != _DDP:
        hvd = rank.horocache()
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    gc.collect()
    peak = Peak()
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(peak.look)
    model: Any = net
    if way == _DDP:
        model, optimizer = ddp(rank, net, optimizer)
    else:
        optimizer = hvd.DistributedOptimizer(
            optimizer, net.named_parameters(), num_groups=_GROUPS, gradient_as_bucket_view=_OURS[way]
        )
    for _ in range(_STEPS):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        peak.look()
        optimizer.step()
        peak.look()
    return [Series(kind, way, "MiB", [mib]) for kind, mib in peak.most.items()]


def tables(figures: Sequence[Figure]) -> list[Table]:
    """One row for each way, one column for each kind of memory."""
    found = {(figure.impl, figure.case): figure.median for figure in figures}
    kinds = (*_FIELDS, ALL)
    rows = [[way, *(number(found[way, kind]) for kind in kinds)] for way in dict.fromkeys(f.impl for f in figures)]
    note = (
        f"MiB of the rank that takes most, above model and data; {_LAYERS * _WIDTH**2 * 4 >> 20} MiB of gradients in "
        f"{_GROUPS} groups, 2 ranks. The peaks of the kinds need not fall together."
    )
    return [Table(TITLE, ["gradients", *kinds], rows, note)]
