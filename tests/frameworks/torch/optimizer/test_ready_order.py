"""The order and the priorities of buckets follow the first forward pass of rank 0, on every rank."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks
from torch.utils.checkpoint import checkpoint


class Layers(torch.nn.Module):
    """Layers without biases, registered as a, b, c and so on, and used in the order of ``order``."""

    def __init__(self, order, count=None):
        super().__init__()
        self.order = order
        for number in range(count or len(order)):
            self.add_module("abcdef"[number], torch.nn.Linear(4, 4, bias=False))

    def forward(self, x):
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x


class Wrapper(torch.nn.Module):
    """Calls a module that it has."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)


def wrapped(model, **options):
    plain = torch.optim.SGD(model.parameters(), lr=0.0)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), **options)


def step(optimizer, model):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def order(optimizer):
    """The names of the parameters in each bucket, the highest priority first."""
    buckets = sorted(optimizer.debug_state().buckets, key=lambda bucket: -bucket.priority)
    assert len({bucket.priority for bucket in buckets}) == len(buckets), "priorities are different"
    return ["+".join(gradient.name.removesuffix(".weight") for gradient in bucket.gradients) for bucket in buckets]


@on_ranks(2, 3)
def test_buckets_follow_the_order_of_first_use():
    model = Layers("cab")
    optimizer = wrapped(model, num_groups=3)
    before = order(optimizer)
    step(optimizer, model)
    after = order(optimizer)
    step(optimizer, model)
    rounds = hvd.metrics()["slow_rounds"]
    step(optimizer, model)
    assert hvd.metrics()["slow_rounds"] == rounds, "the new groups are cached"
    step(optimizer, model)  # no rank shuts down, which takes a round, before all ranks have read the counter
    assert (before, after, order(optimizer)) == (["a", "b", "c"], ["c", "a", "b"], ["c", "a", "b"])


@on_ranks(3)
def test_the_order_of_rank_0_counts_if_ranks_differ():
    model = Layers(["dbca", "abcd", "cdab"][hvd.rank()])
    optimizer = wrapped(model, num_groups=4)
    step(optimizer, model)
    step(optimizer, model)
    assert order(optimizer) == ["d", "b", "c", "a"]


@on_ranks(2)
def test_a_model_used_in_its_order_of_registration_is_negotiated_once():
    model = Layers("abcd")
    optimizer = wrapped(model, num_groups=4)
    for _ in range(3):
        step(optimizer, model)
    assert (order(optimizer), hvd.metrics()["cache_changed"]) == (["a", "b", "c", "d"], 0)


class Unusual(torch.nn.Module):
    """Parameters that are used without a call of their module, one that is used twice, and one that is never used."""

    def __init__(self):
        super().__init__()
        self.never = torch.nn.Parameter(torch.ones(4))
        self.late = torch.nn.Linear(4, 4, bias=False)
        self.attention = torch.nn.MultiheadAttention(4, 2, bias=False, batch_first=True)
        self.tied = torch.nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        x = torch.nn.functional.linear(x, self.tied)[None]
        x = self.late(self.attention(x, x, x)[0])
        return torch.nn.functional.linear(x, self.tied)


@on_ranks(2)
def test_parameters_used_without_a_call_of_their_module_are_in_the_order():
    model = Unusual()
    optimizer = wrapped(model, num_groups=5)
    step(optimizer, model)
    assert order(optimizer) == ["tied", "attention.in_proj_weight", "attention.out_proj", "late", "never"]


@pytest.mark.parametrize("reentrant", [True, False])
@on_ranks(2)
def test_modules_in_checkpoints_are_in_the_order(reentrant):
    ends, inside = Layers("ba"), Layers("cab")

    def model(x):
        x = checkpoint(
            inside.c, checkpoint(ends.b, x.requires_grad_(), use_reentrant=reentrant), use_reentrant=reentrant
        )
        return ends.a(checkpoint(lambda x: inside.b(inside.a(x)), x, use_reentrant=reentrant))

    both = torch.nn.ModuleDict({"ends": ends, "inside": inside})
    optimizer = wrapped(both, num_groups=5)
    step(optimizer, model)
    assert order(optimizer) == ["ends.b", "inside.c", "inside.a", "inside.b", "ends.a"]


@on_ranks(2)
def test_the_order_of_several_forward_and_backward_passes():
    model = Layers("abcd")
    one_backward_pass = wrapped(model, num_groups=4)
    (model.c(model.d(torch.ones(1, 4))) + model.b(model.a(torch.ones(1, 4)))).sum().backward()
    one_backward_pass.step()
    assert order(one_backward_pass) == ["d", "c", "a", "b"]
    model = Layers("abcd")
    two_backward_passes = wrapped(model, num_groups=4)
    model.c(model.b(torch.ones(1, 4))).sum().backward()
    model.a(model.d(torch.ones(1, 4))).sum().backward()
    two_backward_passes.step()
    assert order(two_backward_passes) == ["b", "c", "d", "a"]
    model = Layers("abcd")
    accumulated = wrapped(model, num_groups=4, backward_passes_per_step=2)
    for order_of_pass in ("abcd", "dbca"):
        model.order = order_of_pass
        model(torch.ones(1, 4)).sum().backward()
    accumulated.step()
    # The last of the accumulated passes counts, because it completes the gradients.
    assert order(accumulated) == ["d", "b", "c", "a"]


@on_ranks(2)
def test_the_order_of_models_in_wrappers_and_of_compiled_models():
    model = Layers("cab")
    optimizer = wrapped(model, num_groups=3)
    assert not torch.nn.modules.module._has_any_global_hook(), "the compiler would compile twice"
    step(optimizer, Wrapper(model))
    assert order(optimizer) == ["c", "a", "b"]
    pieces = Layers("cab")
    compiled = [torch.compile(pieces.get_submodule(name), backend="eager") for name in "cab"]
    of_pieces = wrapped(pieces, num_groups=3)
    step(of_pieces, lambda x: compiled[2](compiled[1](compiled[0](x))))
    assert order(of_pieces) == ["c", "a", "b"]
    whole = Layers("cab")
    of_whole = wrapped(whole, num_groups=3)
    compiled_whole = torch.compile(whole, backend="aot_eager")
    for _ in range(2):
        step(of_whole, compiled_whole)
    assert sorted(order(of_whole)) == ["a", "b", "c"]
    assert hvd.allgather_object(order(of_whole)) == [order(of_whole)] * 2


@on_ranks(2)
def test_explicit_groups_and_ungrouped_parameters_have_priorities():
    model = Layers("dcbae")
    groups = [[model.a.weight, model.b.weight], [model.e.weight, model.c.weight]]
    optimizer = wrapped(model, groups=groups)
    for _ in range(3):
        step(optimizer, model)
    assert order(optimizer) == ["d", "e+c", "a+b"]


@on_ranks(2)
def test_without_groups_no_order_is_measured_or_sent():
    model = Layers("cab")
    optimizer = wrapped(model)
    for _ in range(2):
        step(optimizer, model)
    assert {bucket.priority for bucket in optimizer.debug_state().buckets} == {0}
    assert hvd.metrics().get("op_count.broadcast", 0) == 0


@on_ranks(2)
def test_added_and_unfrozen_parameters_are_reduced_and_added_ones_measured():
    model = Layers("dcba")
    model.b.weight.requires_grad_(False)
    plain = torch.optim.SGD([model.a.weight, model.b.weight, model.c.weight], lr=0.0)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), num_groups=3)
    step(optimizer, model)
    assert order(optimizer) == ["c", "a"]
    model.b.weight.requires_grad_(True)
    step(optimizer, model)
    last = [bucket for bucket in optimizer.debug_state().buckets if bucket.priority == 0]
    assert [gradient.name for bucket in last for gradient in bucket.gradients] == ["b.weight"]
    optimizer.add_param_group({"params": [model.d.weight]})
    step(optimizer, model)
    step(optimizer, model)
    # Four equal sizes in three groups: the group that is complete first and the last group have one parameter each.
    assert order(optimizer) == ["d", "b+c", "a"]


@on_ranks(3, init=False)
def test_the_order_of_the_first_rank_of_a_process_set_counts_in_the_set():
    pair = hvd.ProcessSet([1, 2])
    hvd.init(process_sets=[pair])
    model = Layers(["abc", "cab", "bac"][hvd.rank()])
    optimizer = wrapped(model, num_groups=3, process_set=pair)
    for _ in range(2):
        step(optimizer, model)
    assert order(optimizer) == ([] if hvd.rank() == 0 else ["c", "a", "b"])


@on_ranks(2)
def test_gradients_set_by_the_program_keep_the_order_of_registration():
    model = Layers("cab")
    optimizer = wrapped(model, num_groups=3)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert order(optimizer) == ["a", "b", "c"]
