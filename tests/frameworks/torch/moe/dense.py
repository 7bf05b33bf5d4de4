"""The layer of experts in one process and in loops over tokens: tests compare MoELayer with it."""

from __future__ import annotations

import copy

import torch


class Expert(torch.nn.Module):
    """A small network without symmetry between experts."""

    def __init__(self, hidden, number):
        super().__init__()
        self.up = torch.nn.Linear(hidden, hidden + 2)
        self.down = torch.nn.Linear(hidden + 2, hidden)
        self.number = number

    def forward(self, x):
        return self.down(torch.tanh(self.up(x))) * (1 + self.number)


class ByFirst(torch.nn.Module):
    """A gate that sends a token to the expert that is its first element."""

    def __init__(self, experts):
        super().__init__()
        self.experts = experts

    def forward(self, x, used_token=None):
        from horocache.torch.moe import Routing

        chosen = x.detach()[:, :1].long()
        none = torch.zeros(self.experts, dtype=torch.int64)
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        return Routing(chosen, torch.ones(chosen.shape), x.sum() * 0, counts, none)


def tokens_of(rank, count, hidden, dtype, seed=7):
    """Tokens and the gradients of their outputs; equal in every process."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    x, grad = torch.randn((2, count, hidden), generator=generator, dtype=torch.float64).to(dtype)
    return x.clone().requires_grad_(), grad.clone()


def dense_outputs(experts, gate, x, used=None, lost_experts=()):
    """Output, auxiliary loss and counts of one rank's tokens, token by token; slots of lost experts contribute 0."""
    routing = gate(x, used)
    rows = []
    for token in range(len(x)):
        row = torch.zeros(x.shape[1], dtype=x.dtype)
        for slot, expert in enumerate(routing.topk_idx[token].tolist()):
            if expert >= 0 and expert not in lost_experts:
                row = row + routing.topk_weights[token, slot] * experts[str(expert)](x[token])
        rows.append(row)
    output = torch.stack(rows) if rows else x * 0
    return output, routing.aux_loss, routing.expert_counts


class Dense:
    """Runs the tokens of all ranks forward and backward; each rank has a gate of its own."""

    def __init__(self, experts, gate, counts, dtype, aux_weight=0.1):
        self.experts = experts.to(dtype)
        hidden = gate.hidden
        self.x, self.outputs, self.losses, self.counts, self.gates = [], [], [], [], []
        total = torch.zeros((), dtype=dtype)
        for rank, count in enumerate(counts):
            x, grad = tokens_of(rank, count, hidden, dtype)
            own_gate = copy.deepcopy(gate)
            output, loss, slots = dense_outputs(self.experts, own_gate, x)
            total = total + (output * grad).sum() + aux_weight * loss
            self.x.append(x)
            self.outputs.append(output.detach())
            self.losses.append(float(loss.detach()))
            self.counts.append(slots)
            self.gates.append(own_gate)
        total.backward()
