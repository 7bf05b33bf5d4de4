"""The gate of a mixture-of-experts layer: it chooses the experts of each token and their weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import torch
from horocache.core import context
from horocache.errors import InvalidArgumentError, NonFiniteError
from torch.nn import functional

from .capacity import expert_capacity, within_capacity
from .losses import load_balancing_loss, router_z_loss
from .routing import Routing

NOISE_POLICIES = ("Jitter", "RSample")
DROP_POLICIES = ("probs", "position", "random")
SCORES = ("softmax", "sigmoid")

# Jitter multiplies hidden states by values between 1 - JITTER and 1 + JITTER.
JITTER = 1e-2


class TopKGate(torch.nn.Module):
    """Routes each token to the ``k`` experts with the highest scores.

    The scores are the softmax (or sigmoid) of ``x @ wg.weight.T``. The gate computes in float32, also under autocast,
    or in float64 if its weight or ``x`` is float64. Equal scores are ordered by expert. All noise comes from torch's
    generator of the device of ``x``, so ``torch.manual_seed`` repeats it. Without noise and random drops the gate draws
    no random numbers.

    The arguments up to ``drop_tokens`` have the order and defaults of DeepSpeed's ``TopKGate``, where ``hidden`` is
    ``model_dim``; the parameter ``wg.weight`` is the same. ``docs/explanation/mixture_of_experts.md`` lists the
    differences. The gate does not communicate.

    Args:
        hidden: length of a token's hidden state.
        num_experts: number of experts on all ranks together.
        k: experts per token, from 1 to ``num_experts``.
        capacity_factor: in training an expert takes ``max(ceil(k * T / num_experts * capacity_factor), min_capacity)``
            of this rank's slots, where ``T`` is the number of tokens, including masked ones. None: any number.
        eval_capacity_factor: the same in evaluation.
        min_capacity: smallest capacity, in slots.
        noisy_gate_policy: noise in training. ``"Jitter"`` multiplies hidden states by random values between 0.99 and
            1.01 (Fedus et al., 2022, appendix C). ``"RSample"`` adds Gumbel noise to the logits that choose the
            experts, which samples ``k`` experts without replacement (Kool et al., 2019); weights and losses are
            without noise. None or ``"None"``: no noise.
        drop_tokens: False: experts take any number of slots, as with a factor of None.
        drop_policy: which slots an expert takes if it has too many: those of the highest scores (``"probs"``), of the
            first tokens (``"position"``), or random ones (``"random"``, DeepSpeed's ``use_rts``).
        normalize_weights: divide a token's weights by their sum over the slots that capacity left, so that they add up
            to 1. With ``k = 1`` weights are never divided: they would be constant, and the gate would learn nothing.
        z_loss_coef: factor of the z-loss, the mean of ``logsumexp(logits) ** 2``.
        aux_loss_coef: factor of the load-balancing loss.
        score: ``"softmax"``, or ``"sigmoid"`` for independent scores of experts.
        bias_update_rate: step of :meth:`update_expert_bias`. If it is not 0 at the start, the gate has a buffer
            ``expert_bias``, which is added to the scores for the choice of experts, and not to the weights.
        top2_2nd_expert_sampling: True: in training with ``k = 2``, Gumbel noise on the logits chooses the second
            expert, which DeepSpeed does by default. Random dispatch of the second expert is from GShard (Lepikhin et
            al., 2021, section 2.2).

    Raises:
        InvalidArgumentError: an argument is out of range, unknown, or does not go with another one.
    """

    expert_bias: torch.Tensor | None

    def __init__(
        self,
        hidden: int,
        num_experts: int,
        k: int = 1,
        capacity_factor: float | None = 1.0,
        eval_capacity_factor: float | None = 1.0,
        min_capacity: int = 8,
        noisy_gate_policy: str | None = None,
        drop_tokens: bool = True,
        *,
        drop_policy: str = "probs",
        normalize_weights: bool = True,
        z_loss_coef: float = 0.0,
        aux_loss_coef: float = 1.0,
        score: str = "softmax",
        bias_update_rate: float = 0.0,
        top2_2nd_expert_sampling: bool = False,
    ) -> None:
        super().__init__()
        self.hidden = _integer("hidden", hidden, 1)
        self.num_experts = _integer("num_experts", num_experts, 1)
        self.k = _integer("k", k, 1)
        if self.k > self.num_experts:
            raise InvalidArgumentError(
                f"a gate for k = {self.k} of {self.num_experts} experts: a token cannot go to more experts than there "
                "are; lower k"
            )
        self.capacity_factor = None if capacity_factor is None else _number("capacity_factor", capacity_factor, 0.0)
        self.eval_capacity_factor = (
            None if eval_capacity_factor is None else _number("eval_capacity_factor", eval_capacity_factor, 0.0)
        )
        self.min_capacity = _integer("min_capacity", min_capacity, 0)
        noise = None if noisy_gate_policy == "None" else noisy_gate_policy
        self.noisy_gate_policy = None if noise is None else _choice("noisy_gate_policy", noise, NOISE_POLICIES)
        self.drop_tokens = drop_tokens
        self.drop_policy = _choice("drop_policy", drop_policy, DROP_POLICIES)
        self.normalize_weights = normalize_weights
        self.z_loss_coef = _number("z_loss_coef", z_loss_coef)
        self.aux_loss_coef = _number("aux_loss_coef", aux_loss_coef)
        self.score = _choice("score", score, SCORES)
        self.bias_update_rate = _number("bias_update_rate", bias_update_rate, 0.0)
        self.top2_2nd_expert_sampling = top2_2nd_expert_sampling
        if self.bias_update_rate and (top2_2nd_expert_sampling or self.noisy_gate_policy == "RSample"):
            raise InvalidArgumentError(
                "a gate cannot choose experts both by an expert bias (bias_update_rate) and by sampling "
                "(noisy_gate_policy='RSample', top2_2nd_expert_sampling); leave one out"
            )
        self.wg = torch.nn.Linear(self.hidden, self.num_experts, bias=False)
        bias = torch.zeros(self.num_experts, dtype=torch.float32) if self.bias_update_rate else None
        self.register_buffer("expert_bias", bias)

    def forward(self, x: torch.Tensor, used_token: torch.Tensor | None = None) -> Routing:
        """Route this rank's tokens.

        On an accelerator the check of the logits waits for the device.

        Args:
            x: hidden states, shape ``(T, hidden)``, of any floating-point type. ``T`` may be 0.
            used_token: shape ``(T,)``: 0 or False masks a token. A masked token has no experts, takes no capacity, and
                counts in no loss; its hidden state may be anything, also NaN. None: all tokens are used.

        Raises:
            InvalidArgumentError: shape or element type of an argument is wrong; nothing has been computed.
            NonFiniteError: the logits of a token are NaN or infinite. The message names the first such token, this rank
                and the cause.
        """
        self._check_arguments(x, used_token)
        used = None if used_token is None else used_token != 0
        with torch.autocast(x.device.type, enabled=False):
            return self._route(x, used)

    def capacity(self, tokens: int) -> int | None:
        """Return the slots that one expert takes of ``tokens`` tokens in the current mode; None if any number."""
        factor = self.capacity_factor if self.training else self.eval_capacity_factor
        if not self.drop_tokens or factor is None:
            return None
        return expert_capacity(tokens, self.num_experts, self.k, factor, self.min_capacity)

    @torch.no_grad()
    def update_expert_bias(self, expert_counts: torch.Tensor) -> None:
        """Raise the bias of experts with fewer slots than the mean by ``bias_update_rate``; lower that of the others.

        The program calls it after each optimizer step, with the sum of :attr:`Routing.expert_counts` over the
        micro-batches of the step and over all ranks. With equal counts all ranks keep equal biases. Source:
        auxiliary-loss-free load balancing (Wang et al., 2024, algorithm 1).

        Args:
            expert_counts: integers, shape ``(E,)``: slots per expert.

        Raises:
            InvalidArgumentError: the gate was made with ``bias_update_rate=0``, or the shape is wrong.
        """
        if self.expert_bias is None:
            raise InvalidArgumentError("this gate has no expert bias; make it with bias_update_rate greater than 0")
        if expert_counts.shape != self.expert_bias.shape or expert_counts.is_floating_point():
            raise InvalidArgumentError(
                f"update_expert_bias needs {self.num_experts} integers, one for each expert, and got "
                f"{expert_counts.dtype} of shape {tuple(expert_counts.shape)}"
            )
        counts = expert_counts.to(self.expert_bias.device, torch.int64)
        self.expert_bias += self.bias_update_rate * torch.sign(counts.sum() - self.num_experts * counts)

    def extra_repr(self) -> str:
        """Return the arguments that torch prints with the module."""
        return (
            f"num_experts={self.num_experts}, k={self.k}, capacity_factor={self.capacity_factor}, "
            f"eval_capacity_factor={self.eval_capacity_factor}, min_capacity={self.min_capacity}, "
            f"drop_policy={self.drop_policy!r}, score={self.score!r}"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        # Updates of 0.001 would be lost in a bias of 1 in bfloat16, so a change of the element type leaves it alone.
        exact = self.expert_bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if exact is not None and self.expert_bias is not None:
            source = self.expert_bias if exact.is_meta else exact
            self.expert_bias = source.to(self.expert_bias.device, exact.dtype)
        return self

    def _check_arguments(self, x: torch.Tensor, used_token: torch.Tensor | None) -> None:
        if x.dim() != 2 or x.shape[1] != self.hidden:
            raise InvalidArgumentError(
                f"{_this_rank()}: the gate takes hidden states of shape (tokens, {self.hidden}) and got "
                f"{tuple(x.shape)}; reshape them, or make the gate with another hidden"
            )
        if not x.is_floating_point():
            raise InvalidArgumentError(
                f"{_this_rank()}: the gate takes hidden states of a floating-point type and got {x.dtype}; convert them"
            )
        if used_token is not None and used_token.shape != x.shape[:1]:
            raise InvalidArgumentError(
                f"{_this_rank()}: used_token has shape {tuple(used_token.shape)}, but there are {x.shape[0]} tokens; "
                f"it needs one value for each token, shape ({x.shape[0]},)"
            )

    def _route(self, x: torch.Tensor, used: torch.Tensor | None) -> Routing:
        weight = self.wg.weight
        wide = torch.float64 if torch.float64 in (x.dtype, weight.dtype) else torch.float32
        tokens = x.to(wide)
        if used is not None:
            tokens = tokens.masked_fill(~used.unsqueeze(1), 0.0)
        if self.training and self.noisy_gate_policy == "Jitter":
            tokens = tokens * _jitter(tokens)
        logits = functional.linear(tokens, weight.to(wide))
        self._check_logits(logits.detach(), tokens)
        scores = logits.softmax(1) if self.score == "softmax" else logits.sigmoid()
        experts = self._choose(logits.detach(), scores.detach())
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, experts, True)
        counts = (chosen if used is None else chosen & used.unsqueeze(1)).sum(0)
        capacity = self.capacity(x.shape[0])
        limit = x.shape[0] if capacity is None else capacity
        taken = within_capacity(experts, used, self._priority(scores.detach(), experts), limit)
        return Routing(
            topk_idx=experts.masked_fill(~taken, -1),
            topk_weights=self._weigh(scores.gather(1, experts), taken),
            aux_loss=self._loss(logits, scores, counts, used),
            expert_counts=counts,
            dropped=(counts - limit).clamp(min=0),
        )

    def _check_logits(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        good = logits.isfinite().all(1)
        if bool(good.all()):
            return
        bad = (~good).nonzero().flatten()
        token = int(bad[0])
        expert = int((~logits[token].isfinite()).nonzero()[0])
        if not bool(tokens[token].isfinite().all()):
            cause = "its hidden state is not finite either: look for the layer before the gate that computes it"
        elif not bool(self.wg.weight.isfinite().all()):
            cause = "the gate's weight (wg.weight) is not finite: look for the optimizer step that wrote it"
        else:
            cause = "hidden state and weight are finite, but their product overflows: lower the learning rate or scale"
        raise NonFiniteError(
            f"{_this_rank()}: the gate's logits of {len(bad)} of {len(good)} tokens are not finite; the first is token "
            f"{token}, with {float(logits[token, expert])} for expert {expert}; {cause}"
        )

    def _choose(self, logits: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the experts of each token by descending key, shape ``(T, k)``; equal keys are ordered by expert."""
        keys = scores if self.expert_bias is None else scores + self.expert_bias
        if self.training and self.noisy_gate_policy == "RSample":
            keys = logits + _gumbel(logits)
        elif self.training and self.top2_2nd_expert_sampling and self.k == 2:
            keys = (logits + _gumbel(logits)).scatter(1, scores.argmax(1, keepdim=True), math.inf)
        # argmax returns the first of equal values; topk may return any of them. A stable sort is slower for small k.
        chosen: list[torch.Tensor] = []
        for _ in range(self.k):
            if chosen:
                keys = keys.scatter(1, chosen[-1], -math.inf)
            chosen.append(keys.argmax(1, keepdim=True))
        return torch.cat(chosen, 1)

    def _priority(self, scores: torch.Tensor, experts: torch.Tensor) -> torch.Tensor | None:
        """Return the priority of each slot, shape ``(T, k)``; None for the order of the tokens."""
        if self.drop_policy == "position":
            return None
        # The random numbers are drawn for all experts and with any capacity, as DeepSpeed draws them.
        return (scores if self.drop_policy == "probs" else torch.rand_like(scores)).gather(1, experts)

    def _weigh(self, scores: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        weights = scores.masked_fill(~taken, 0.0)
        if self.k == 1 or not self.normalize_weights:
            return weights
        # A sum below the element type's epsilon is not scaled up to 1: its scores are rounding errors.
        return weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).eps)

    def _loss(
        self, logits: torch.Tensor, scores: torch.Tensor, counts: torch.Tensor, used: torch.Tensor | None
    ) -> torch.Tensor:
        probabilities = scores
        if self.score == "sigmoid":
            probabilities = scores / scores.sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
        loss = self.aux_loss_coef * load_balancing_loss(probabilities, counts, self.k, used)
        return loss + self.z_loss_coef * router_z_loss(logits, used) if self.z_loss_coef else loss


def _jitter(like: torch.Tensor) -> torch.Tensor:
    low, high = like.new_tensor(1.0 - JITTER), like.new_tensor(1.0 + JITTER)
    return torch.distributions.Uniform(low, high, validate_args=False).rsample(like.shape)


def _gumbel(like: torch.Tensor) -> torch.Tensor:
    """Return noise of the standard Gumbel distribution, with the shape, element type and device of ``like``."""
    standard = torch.distributions.Gumbel(like.new_zeros(()), like.new_ones(()), validate_args=False)
    return standard.rsample(like.shape)


def _this_rank() -> str:
    return f"rank {context.rank()}" if context.is_initialized() else "this process, which has no rank"


def _integer(name: str, value: Any, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < minimum:
        raise InvalidArgumentError(f"{name} of a gate must be an integer of at least {minimum}, not {value!r}")
    return int(value)


def _number(name: str, value: Any, minimum: float = -math.inf) -> float:
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number) or number < minimum:
        at_least = "" if minimum == -math.inf else f" of at least {minimum:g}"
        advice = ", or None for experts that take any number of slots" if name.endswith("capacity_factor") else ""
        raise InvalidArgumentError(f"{name} of a gate must be a finite number{at_least}{advice}, not {value!r}")
    return number


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidArgumentError(f"{name} of a gate must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)
