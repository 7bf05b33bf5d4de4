"""The layer of experts computes, and differentiates, as a single process with all experts does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from horocache.torch.moe import MoELayer
from ranks import on_ranks

from .dense import Dense, Expert, tokens_of

HIDDEN = 5
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def counts_of(ranks):
    """Every rank has another number of tokens, and one rank has none."""
    return [(3 * rank + 4) % 9 if rank != 1 else 0 for rank in range(ranks)]


def maps_of(experts, ranks):
    """The default; and one that leaves rank 0 of several without experts, in no order."""
    scattered = [1 + (7 * expert + 3) % (ranks - 1) if ranks > 1 else 0 for expert in range(experts)]
    return [None, scattered]


def close(value, wanted, dtype, what):
    error = (value - wanted).abs().max().item() if value.numel() else 0.0
    assert value.shape == wanted.shape and error <= TOLERANCE[dtype], (what, error)


def run_case(case, experts, k, dtype, hosts):
    """Run one layer forward and backward and compare it with the dense one; return the output's bytes."""
    import horocache as hc

    def made(**where):
        torch.manual_seed(case)  # equal seeds make equal experts on any map
        factory = partial(Expert, HIDDEN)
        return MoELayer(HIDDEN, factory, experts, k, min_capacity=2, name=f"case{case}", **where).to(dtype)

    layer = made(expert_ranks=hosts)
    bank = made(process_set=hc.ProcessSet([hc.rank()])).experts
    counts = counts_of(hc.size())
    dense = Dense(bank, layer.gate, counts, dtype)
    x, grad = tokens_of(hc.rank(), counts[hc.rank()], HIDDEN, dtype)
    output, loss, slots = layer(x)
    ((output * grad).sum() + 0.1 * loss).backward()
    rank = hc.rank()
    close(output, dense.outputs[rank], dtype, "output")
    assert float(loss) == pytest.approx(dense.losses[rank], abs=1e-6)
    assert slots.tolist() == dense.counts[rank].tolist()
    close(x.grad, dense.x[rank].grad, dtype, "gradient of x")
    close(layer.gate.wg.weight.grad, dense.gates[rank].wg.weight.grad, dtype, "gradient of the gate")
    for number, expert in layer.experts.items():
        for (name, own), wanted in zip(expert.named_parameters(), bank[number].parameters(), strict=True):
            unused = torch.zeros_like(wanted)
            assert own.grad is not None, (number, name)
            close(own.grad, unused if wanted.grad is None else wanted.grad, dtype, f"gradient of {number}.{name}")
    return output.detach().numpy().tobytes()


@on_ranks(1, 2, 4, 8)
def test_m1_m2_outputs_and_gradients_equal_those_of_one_process():
    import horocache as hc

    ranks = hc.size()
    case = 0
    for experts in sorted({ranks, 2 * ranks, ranks + 1}):
        for k in (1, 2, 4):
            for hosts in maps_of(experts, ranks):
                if k <= experts:
                    dtype = (torch.float64, torch.float32)[case % 2]
                    first = run_case(case, experts, k, dtype, hosts)
                    case += 1
                    if case % 5 == 0:
                        assert run_case(case - 1, experts, k, dtype, hosts) == first, "two runs differ in bits"
