"""Expert parameters in a distributed optimizer, against one process that trains on the mean of all ranks' losses."""

from __future__ import annotations

import copy
import json
import pickle

import horocache.torch as hvd
import pytest
import torch
from horocache.torch.moe import holders_of, is_expert, mark_expert
from ranks import on_ranks

from horocache.errors import InvalidArgumentError, UnsupportedError

from .. import experts

OPTIONS = [
    {},
    {"num_groups": 1},
    {"num_groups": 2, "gradient_predivide_factor": 2.0},
    {"num_groups": "auto", "passes": 2},
    {"groups": True, "passes": 2, "view": False},
    {"view": True},
    {"view": True, "num_groups": 2, "unused_as_zeros": True},
    {"compression": hvd.Compression.fp16},
    {"compression": hvd.Compression.fp16, "num_groups": 1, "op": hvd.Sum},
    {"op": hvd.Sum, "gradient_as_bucket_view": False},
    {"compression": hvd.Compression.topk(ratio=1.0)},
    {"names": None, "num_groups": 1},
]


def wrapped(part, label, params=None, names="given", groups=None, view="auto", passes=1, **options):
    params = [param for _, param in part.named] if params is None else params
    named = None if names is None else [(f"{label}.{name}", p) for name, p in part.named if any(p is q for q in params)]
    return hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.25, momentum=0.5),
        named,
        groups=[[p for p in params if p.dtype is torch.float64], [params[1]]] if groups else None,
        backward_passes_per_step=passes,
        **{"gradient_as_bucket_view": view, **options},
    )


def sometimes(step, name, rank):
    """True if a rank's loss uses a parameter: in some steps no rank, or only one, does."""
    return (sum(map(ord, name)) + 5 * step + 3 * rank * (step % 3)) % 4 != 0


class Reference:
    """The same parameters, trained by one process."""

    def __init__(self, part, factor=1.0, zeros=False):
        self.part, self.factor, self.zeros = part, factor, zeros
        self.params = {name: torch.nn.Parameter(param.detach().clone()) for name, param in part.named}
        self.optimizer = torch.optim.SGD(self.params.values(), lr=0.25, momentum=0.5)

    def step(self, slopes):
        for name, param in self.params.items():
            value = 0.0 if slopes[name] is None and self.zeros else slopes[name]
            param.grad = None if value is None else torch.full_like(param, value * self.factor)
        self.optimizer.step()

    def check(self, where):
        for name, param in self.part.named:
            mine, one = param.grad, self.params[name].grad
            assert (mine is None) == (one is None), f"{where}, {name}: {mine} instead of {one}"
            assert mine is None or torch.allclose(mine, one), f"{where}, {name}: {mine} instead of {one}"
            assert torch.allclose(param, self.params[name]), f"{where}, {name}"


def added(first, second):
    return first if second is None else second if first is None else first + second


def train_against_one_process(sets, label, uses, set_to_none=True, **options):
    named = options.get("names", "given") is not None
    part = experts.Part(sets, backwards=named and hvd.rank() % 2 == 1)  # with names, any order
    optimizer = wrapped(part, label, **options)
    factor = part.size if options.get("op") == hvd.Sum else 1.0
    reference = Reference(part, factor, options.get("unused_as_zeros", False))
    passes = options.get("passes", 1)
    for step in range(4):
        optimizer.zero_grad(set_to_none)
        total = dict.fromkeys(part.params)
        for number in range(passes):
            experts.backward(part, step * passes + number, uses)
            for name in total:
                total[name] = added(total[name], experts.wanted_gradient(part, name, step * passes + number, uses))
        optimizer.step()
        if not set_to_none and step > 0:  # the gradients are zeros before the step
            total = {name: added(total[name], None if sum_is_new(reference, name) else 0.0) for name in total}
        reference.step(total)
        reference.check(f"{label}, step {step}")


def sum_is_new(reference, name):
    """True if no gradient of the parameter has existed yet."""
    return reference.params[name].grad is None


@on_ranks(1, 2, 4, init=False)
def test_gradients_of_experts_are_those_of_one_process_under_all_options():
    sets = experts.start()
    for count, options in enumerate(OPTIONS):
        train_against_one_process(sets, f"all{count}", experts.wanted_everywhere, **options)
        train_against_one_process(sets, f"kept{count}", experts.wanted_everywhere, set_to_none=False, **options)
        if "names" not in options and hvd.size() > 1:
            train_against_one_process(sets, f"some{count}", sometimes, **options)


@on_ranks(2, 4, init=False)
def test_gradients_that_are_kept_over_several_steps_accumulate_as_in_one_process():
    sets = experts.start()
    for count, passes in enumerate((1, 2)):
        part = experts.Part(sets)
        optimizer = wrapped(part, f"kept{count}", passes=passes)
        for step in range(3):
            for _ in range(passes):
                experts.backward(part, step)
            optimizer.synchronize()
            for name, param in part.named:
                one = passes * sum(experts.wanted_gradient(part, name, earlier) for earlier in range(step + 1))
                assert torch.allclose(param.grad, torch.full_like(param, one)), (name, step, param.grad, one)
            before = [param.grad.clone() for _, param in part.named]
            with optimizer.skip_synchronize():
                optimizer.step()
        optimizer.synchronize()  # once more, without a backward pass: the average of equal gradients
        torch.testing.assert_close([param.grad for _, param in part.named], before)
        with pytest.warns(UserWarning, match="without optimizer.skip_synchronize"):
            optimizer.step()
        torch.testing.assert_close([param.grad for _, param in part.named], before)
        for _, param in part.named:
            param.grad = torch.full_like(param, 8.0)  # computed by the program itself
        optimizer.step()
        for name, param in part.named:
            assert torch.allclose(param.grad, torch.full_like(param, 8.0 * len(part.holders[name]) / part.size)), name


@on_ranks(4, init=False)
def test_frozen_added_and_removed_experts_and_a_closure_train_as_in_one_process():
    sets = experts.start()
    part = experts.Part(sets)
    for param in part.experts():
        param.requires_grad_(False)
    optimizer = wrapped(part, "late", part.shared(), num_groups=2)
    shared = Reference(part)

    def is_trained(step, name, rank):
        return part.params[name].requires_grad

    for step in range(6):
        if step == 1 and part.experts():  # ranks without experts add nothing
            optimizer.add_param_group({"params": part.experts()})
        if step == 2:
            for param in part.experts():
                param.requires_grad_(True)
        if step == 4 and len(optimizer.param_groups) > 1:
            del optimizer.param_groups[1]

        def closure(step=step):
            optimizer.zero_grad()
            experts.backward(part, step, is_trained)
            return step

        assert optimizer.step(closure) in (step, None)
        trained = {name: name.startswith("shared") or step in (2, 3) for name in part.params}
        for name, one in shared.params.items():
            one.grad = torch.full_like(one, experts.wanted_gradient(part, name, step)) if trained[name] else None
        shared.optimizer.step()
        for name, param in part.named:
            assert torch.allclose(param, shared.params[name]), (name, step, param, shared.params[name])
    hvd.barrier()


@on_ranks(4, init=False)
def test_sparse_gradients_of_experts_are_added_up_over_their_holders():
    sets = experts.start()
    rank = hvd.rank()
    for count, options in enumerate(({}, {"sparse_as_dense": True}, {"op": hvd.Sum})):
        tables = {}
        for holders in ([0, 2], [1], [0, 1, 2]):
            if rank in holders:
                tables[str(holders)] = table = torch.nn.Embedding(4, 2, sparse=True)
                torch.nn.init.ones_(table.weight)
                mark_expert(table.weight, sets[tuple(holders)] if len(holders) > 1 else None)
        weight = torch.nn.Parameter(torch.ones(2))
        named = [("w", weight), *((f"table{name}", table.weight) for name, table in tables.items())]
        named = [(f"{count}.{name}", param) for name, param in named]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=1.0), named, **options)
        for step in range(2):
            optimizer.zero_grad()
            row = torch.tensor([rank])
            (sum((table(row).sum() * (rank + 1) for table in tables.values()), start=weight.sum())).backward()
            optimizer.step()
            divisor = 1 if "op" in options else 4
            for holders, table in tables.items():
                wanted = torch.ones(4, 2)
                for holder in json.loads(holders):
                    wanted[holder] -= (step + 1) * (holder + 1) / divisor
                assert table.weight.grad.is_sparse
                torch.testing.assert_close(table.weight.detach(), wanted)


@on_ranks(4, init=False)
def test_two_optimizers_copies_and_pickles_keep_experts_apart():
    sets = experts.start()
    part = experts.Part(sets)
    # As programs for DeepSpeed do, experts have an optimizer of their own; a rank without experts has none.
    for names in ("given", None):
        part = experts.Part(sets)
        sparse = wrapped(part, "experts", part.experts(), names=names) if part.experts() else None
        dense = wrapped(part, "dense", part.shared(), names=names, num_groups=1)
        reference = Reference(part)
        for step in range(3):
            for optimizer in filter(None, (dense, sparse)):
                optimizer.zero_grad()
            experts.backward(part, step)
            for optimizer in filter(None, (sparse, dense)):
                optimizer.step()
            reference.step({name: experts.wanted_gradient(part, name, step) for name in part.params})
            reference.check(step)
    model = torch.nn.ParameterList(list(part.params.values()))
    both = wrapped(part, "both")
    for number, remade in enumerate((copy.deepcopy((model, both)), pickle.loads(pickle.dumps((model, both))))):
        _, optimizer = remade
        again = copy.copy(part)
        again.params = dict(zip(part.params, optimizer.param_groups[0]["params"], strict=True))
        again.named = list(again.params.items())
        for name, param in again.named:
            assert is_expert(param) == name.startswith("expert")
            assert not is_expert(param) or holders_of(param) == holders_of(part.params[name])
        optimizer.zero_grad()
        experts.backward(again, number)
        optimizer.synchronize()
        for name, param in again.named:
            assert param.grad.tolist() == [experts.wanted_gradient(part, name, number)] * len(param), name


@on_ranks(4, init=False)
def test_the_divisor_is_the_size_of_the_optimizers_process_set():
    pair, trio = hvd.ProcessSet([0, 2]), hvd.ProcessSet([0, 2, 3])
    alone = [hvd.ProcessSet([rank]) for rank in range(4)]
    hvd.init(process_sets=[pair, trio, *alone])
    rank = hvd.rank()
    weight, expert, own = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    mark_expert(expert, pair if rank in (0, 2) else None)
    mark_expert(own)
    named = [("w", weight), ("e", expert), ("own", own)]
    params = [weight, expert, own]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), named, process_set=trio)
    operations = hvd.metrics()["operations"]
    for _ in range(2):
        optimizer.zero_grad()
        (weight.sum() * 6 + expert.sum() * (rank + 1) * 3 + own.sum() * 9).backward()
        optimizer.step()
    wanted = {0: (6, 4, 3), 1: (6, 6, 9), 2: (6, 4, 3), 3: (6, 4, 3)}[rank]
    assert tuple(param.grad[0].item() for param in params) == wanted
    if rank == 1:  # outside of the set, the optimizer works by itself
        assert hvd.metrics()["operations"] == operations
    outside = torch.nn.Parameter(torch.zeros(1))
    mark_expert(outside, hvd.global_process_set)
    with pytest.raises(InvalidArgumentError, match=r"of these .* are not in the process set"):
        hvd.DistributedOptimizer(torch.optim.SGD([outside], lr=1.0), process_set=alone[rank])
    if rank in (0, 2):
        mark_expert(outside, trio)
        with pytest.raises(InvalidArgumentError, match=r"held by the ranks \[0, 2, 3\], and of these \[3\] are not in"):
            hvd.DistributedOptimizer(torch.optim.SGD([outside], lr=1.0), process_set=pair)


@on_ranks(2, init=False)
def test_experts_of_one_rank_cause_no_operation():
    experts.start()
    expert = torch.nn.Parameter(torch.zeros(2))
    mark_expert(expert)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([expert], lr=1.0), [("e", expert)])
    before = hvd.metrics()["operations"]
    for _ in range(3):
        optimizer.zero_grad()
        expert.sum().backward()
        optimizer.step()
    assert hvd.metrics()["operations"] == before
    assert expert.tolist() == [-1.5, -1.5]
    hvd.barrier()


@on_ranks(2, init=False)
def test_wrong_marks_ops_and_names_are_errors_on_all_ranks():
    hvd.init()
    rank, everyone = hvd.rank(), hvd.global_process_set
    with pytest.raises(InvalidArgumentError, match="takes a parameter, not 3"):
        mark_expert(3)
    param, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    with pytest.raises(InvalidArgumentError, match=r"a ProcessSet, or None for this rank, not \[0, 1\]"):
        mark_expert(param, [0, 1])
    with pytest.raises(InvalidArgumentError, match=rf"rank {rank} is not among the holders \[{1 - rank}\]"):
        mark_expert(param, hvd.ProcessSet([1 - rank]))
    with pytest.raises(InvalidArgumentError, match="is not marked as an expert's"):
        holders_of(param)
    mark_expert(param, hvd.ProcessSet([rank, 2]))
    with pytest.raises(InvalidArgumentError, match="which are not a registered process set"):
        hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("e", param)])
    param.expert_holders = [rank]
    with pytest.raises(InvalidArgumentError, match=rf"expert_holders of the parameter .* is \[{rank}\]; it must be a"):
        holders_of(param)
    del param.expert_holders
    with pytest.raises(InvalidArgumentError, match=r"has allreduce=False.*and no attribute expert_holders"):
        hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("e", param)])
    mark_expert(param, everyone)
    for op in (hvd.Adasum, hvd.Min):
        with pytest.raises(UnsupportedError, match=r"can only add up.*an optimizer of their own"):
            hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=op)
    adasum = hvd.DistributedOptimizer(torch.optim.SGD([other], lr=1.0), op=hvd.Adasum)
    with pytest.raises(UnsupportedError, match="can only add up"):
        adasum.add_param_group({"params": [param]})
    assert len(adasum.param_groups) == 1
    # Names after the position in the rank's own list do not fit together.
    shared = torch.nn.Parameter(torch.zeros(1))
    named = [("w", shared), (f"experts.{rank}.w", param)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([shared, param], lr=1.0), named)
    with pytest.raises(UnsupportedError, match="belongs to an expert"):
        optimizer._allreduce_grad_async(param)  # noqa: SLF001
    for _ in range(2):
        (shared.sum() + param.sum()).backward()
        with pytest.raises(InvalidArgumentError, match=r"rank 1 has 'experts.1.w'.*where rank 0 has 'experts.0.w'"):
            optimizer.step()
        assert shared.grad.tolist() == [1.0]
        shared.grad = param.grad = None
