"""Rank 0's first forward pass determines the priorities of gradient groups, on every rank alike."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run


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


def wrapped(hvd, model, **options):
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
def test_it_is_that_of_first_uses_whatever_the_order_of_registration():
    model = Layers("cab")
    optimizer = wrapped(hvd, model, num_groups=3)
    before = order(optimizer)
    step(optimizer, model)
    after = order(optimizer)
    step(optimizer, model)
    rounds = hvd.metrics()["slow_rounds"]
    step(optimizer, model)
    assert hvd.metrics()["slow_rounds"] == rounds, "what has been regrouped is cached"
    step(optimizer, model)  # no rank leaves before all have read the counter: leaving takes a round, too
    assert (before, after, order(optimizer)) == (["a", "b", "c"], ["c", "a", "b"], ["c", "a", "b"])


@on_ranks(3)
def test_it_is_rank_zeros_where_ranks_differ():
    model = Layers(["dbca", "abcd", "cdab"][hvd.rank()])
    optimizer = wrapped(hvd, model, num_groups=4)
    step(optimizer, model)
    step(optimizer, model)
    assert order(optimizer) == ["d", "b", "c", "a"]


@on_ranks(2)
def test_a_model_that_is_used_as_it_is_registered_is_not_negotiated_again():
    model = Layers("abcd")
    optimizer = wrapped(hvd, model, num_groups=4)
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
def test_it_knows_parameters_that_no_call_of_their_module_shows():
    model = Unusual()
    optimizer = wrapped(hvd, model, num_groups=5)
    step(optimizer, model)
    assert order(optimizer) == ["tied", "attention.in_proj_weight", "attention.out_proj", "late", "never"]


@pytest.mark.parametrize("reentrant", [True, False])
@on_ranks(2)
def test_it_sees_through_checkpoints(reentrant):
    from torch.utils.checkpoint import checkpoint

    ends, inside = Layers("ba"), Layers("cab")

    def model(x):
        x = checkpoint(
            inside.c, checkpoint(ends.b, x.requires_grad_(), use_reentrant=reentrant), use_reentrant=reentrant
        )
        return ends.a(checkpoint(lambda x: inside.b(inside.a(x)), x, use_reentrant=reentrant))

    both = torch.nn.ModuleDict({"ends": ends, "inside": inside})
    optimizer = wrapped(hvd, both, num_groups=5)
    step(optimizer, model)
    assert order(optimizer) == ["ends.b", "inside.c", "inside.a", "inside.b", "ends.a"]


def test_of_several_passes_the_first_use_counts():
    def body():
        import horocache.torch as hvd

        hvd.init()
        model = Layers("abcd")
        one_backward = wrapped(hvd, model, num_groups=4)
        (model.c(model.d(torch.ones(1, 4))) + model.b(model.a(torch.ones(1, 4)))).sum().backward()
        one_backward.step()
        model = Layers("abcd")
        each_its_own = wrapped(hvd, model, num_groups=4)
        model.c(model.b(torch.ones(1, 4))).sum().backward()
        model.a(model.d(torch.ones(1, 4))).sum().backward()
        each_its_own.step()
        model = Layers("abcd")
        accumulated = wrapped(hvd, model, num_groups=4, backward_passes_per_step=2)
        for order_of_pass in ("abcd", "dbca"):
            model.order = order_of_pass
            model(torch.ones(1, 4)).sum().backward()
        accumulated.step()
        return order(one_backward), order(each_its_own), order(accumulated)

    # The last of the accumulated passes counts, because it completes the gradients.
    assert run(body, 2) == [(["d", "c", "a", "b"], ["b", "c", "d", "a"], ["d", "b", "c", "a"])] * 2


def test_wrappers_around_the_model_and_compiled_ones_change_nothing_for_the_worse():
    def body():
        import horocache.torch as hvd

        hvd.init()
        model = Layers("cab")

        class Wrapper(torch.nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module

            def forward(self, *inputs):
                return self.module(*inputs)

        optimizer = wrapped(hvd, model, num_groups=3)
        assert not torch.nn.modules.module._has_any_global_hook(), "the compiler would compile twice"
        step(optimizer, Wrapper(model))
        pieces = Layers("cab")
        compiled = [torch.compile(pieces.get_submodule(name), backend="eager") for name in "cab"]
        of_pieces = wrapped(hvd, pieces, num_groups=3)
        step(of_pieces, lambda x: compiled[2](compiled[1](compiled[0](x))))
        whole = Layers("cab")
        of_whole = wrapped(hvd, whole, num_groups=3)
        compiled_whole = torch.compile(whole, backend="aot_eager")
        for _ in range(2):
            step(of_whole, compiled_whole)
        return order(optimizer), order(of_pieces), order(of_whole)

    ours, other = run(body, 2)
    assert ours == other
    assert ours[:2] == (["c", "a", "b"], ["c", "a", "b"])
    assert sorted(ours[2]) == ["a", "b", "c"]


@on_ranks(2)
def test_groups_of_the_users_have_priorities_and_what_is_in_none_has_one_by_itself():
    model = Layers("dcbae")
    groups = [[model.a.weight, model.b.weight], [model.e.weight, model.c.weight]]
    optimizer = wrapped(hvd, model, groups=groups)
    for _ in range(3):
        step(optimizer, model)
    assert order(optimizer) == ["d", "e+c", "a+b"]


@on_ranks(2)
def test_without_groups_nothing_is_measured_and_nothing_sent():
    model = Layers("cab")
    optimizer = wrapped(hvd, model)
    for _ in range(2):
        step(optimizer, model)
    assert {bucket.priority for bucket in optimizer.debug_state().buckets} == {0}
    assert hvd.metrics().get("op_count.broadcast", 0) == 0


def test_added_and_thawed_parameters_are_reduced_and_added_ones_measured():
    def body():
        import horocache.torch as hvd

        hvd.init()
        model = Layers("dcba")
        model.b.weight.requires_grad_(False)
        first = [model.a.weight, model.b.weight, model.c.weight]
        plain = torch.optim.SGD(first, lr=0.0)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), num_groups=3)
        step(optimizer, model)
        frozen = order(optimizer)
        model.b.weight.requires_grad_(True)
        step(optimizer, model)
        last = [bucket for bucket in optimizer.debug_state().buckets if bucket.priority == 0]
        thawed = [gradient.name for bucket in last for gradient in bucket.gradients]
        optimizer.add_param_group({"params": [model.d.weight]})
        step(optimizer, model)
        step(optimizer, model)
        return frozen, thawed, order(optimizer)

    # Four equal sizes in three groups: the group that is complete first and the last group have one parameter each.
    assert run(body, 2) == [(["c", "a"], ["b.weight"], ["d", "b+c", "a"])] * 2


def test_it_is_that_of_a_process_sets_first_rank_and_others_are_not_asked():
    def body():
        import horocache.torch as hvd

        pair = hvd.ProcessSet([1, 2])
        hvd.init(process_sets=[pair])
        model = Layers(["abc", "cab", "bac"][hvd.rank()])
        optimizer = wrapped(hvd, model, num_groups=3, process_set=pair)
        for _ in range(2):
            step(optimizer, model)
        return order(optimizer)

    assert run(body, 3) == [[], ["c", "a", "b"], ["c", "a", "b"]]


@on_ranks(2)
def test_gradients_that_no_backward_pass_made_leave_the_order_of_registration():
    model = Layers("cab")
    optimizer = wrapped(hvd, model, num_groups=3)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert order(optimizer) == ["a", "b", "c"]
