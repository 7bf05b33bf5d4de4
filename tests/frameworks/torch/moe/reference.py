"""The rules of a gate, in loops over Python numbers: what tests compare TopKGate with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Expected:
    slots: list[list[int]]  # by token: the chosen experts, best first; of masked tokens none
    kept: set[tuple[int, int]] = field(default_factory=set)  # token, expert
    lost: set[tuple[int, int]] = field(default_factory=set)
    weights: dict[tuple[int, int], float] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    balance: float = 0.0
    z: float = 0.0


def scores_of(logits, score):
    if score == "sigmoid":
        return [1 / (1 + math.exp(-each)) for each in logits]
    top = max(logits)
    exponentials = [math.exp(each - top) for each in logits]
    return [each / sum(exponentials) for each in exponentials]


def best(keys, k):
    """Positions of the k largest keys; the lower position first where keys are equal."""
    return sorted(range(len(keys)), key=lambda position: (-keys[position], position))[:k]


def expected_routing(
    x, weight, k, capacity, policy="probs", used=None, score="softmax", normalize=True, bias=None
) -> Expected:
    """Route the rows of x by the rows of weight; capacity None is dropless."""
    tokens, experts = len(x), len(weight)
    used = [True] * tokens if used is None else used
    bias = [0.0] * experts if bias is None else bias
    logits = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in weight] for row in x]
    scores = [scores_of(row, score) for row in logits]
    chosen = [best([s + b for s, b in zip(row, bias, strict=True)], k) for row in scores]
    result = Expected([chosen[t] if used[t] else [] for t in range(tokens)])
    for expert in range(experts):
        takers = [t for t in range(tokens) if expert in result.slots[t]]
        result.counts.append(len(takers))
        if policy == "probs":
            takers.sort(key=lambda t: (-scores[t][expert], t))
        limit = tokens if capacity is None else capacity
        result.kept |= {(t, expert) for t in takers[:limit]}
        result.lost |= {(t, expert) for t in takers[limit:]}
    for token, expert in result.kept:
        total = sum(scores[token][e] for t, e in result.kept if t == token)
        result.weights[token, expert] = scores[token][expert] / (total if normalize and k > 1 else 1.0)
    number = sum(used)
    for expert in range(experts):
        rows = [scores[t] for t in range(tokens) if used[t]]
        mean = sum(row[expert] / sum(row) for row in rows) / max(number, 1)
        result.balance += experts / k * mean * result.counts[expert] / max(number, 1)
    for t in range(tokens):
        if used[t]:
            result.z += math.log(sum(math.exp(each) for each in logits[t])) ** 2 / number
    return result
