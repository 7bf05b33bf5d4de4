"""Parameters without a gradient: unchanged if no rank has one, counted as zeros if some rank has one."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from ..small_model import check_equal_on_all_ranks

OPTIONS = [
    {},
    {"num_groups": 1},
    {"num_groups": 3},
    {"groups": [[0, 5, 1], [7, 2]]},
    {"num_groups": 2, "passes": 2},
    {"passes": 2},
    {"view": False},
    {"view": False, "num_groups": 2},
    {"view": True, "num_groups": 2, "gradient_predivide_factor": 2.0},
    {"compression": "fp16", "num_groups": 2},
    {"compression": "fp16"},
]


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.1)


def train_against_one_process(name, set_to_none, numbers, make, view="auto", passes=1, groups=None, **options):
    """Train eight parameters, of which each rank uses different ones in each step, and compare with one process.

    Parameter 6 is frozen until step 3, and parameter 7 from step 3 on. Parameter 4 is never used. ``numbers`` are the
    ranks that train.
    """
    ranks, me = len(numbers), numbers.index(hvd.rank())
    params = [torch.nn.Parameter(torch.full((3,), 1.0 + number)) for number in range(8)]
    plain = [torch.nn.Parameter(param.detach().clone()) for param in params]
    params[6].requires_grad_(False)
    if "compression" in options:
        options["compression"] = getattr(hvd.Compression, options["compression"])
    optimizer = hvd.DistributedOptimizer(
        make(params),
        [(f"{name}.{number}", param) for number, param in enumerate(params)],
        backward_passes_per_step=passes,
        groups=groups and [[params[number] for number in group] for group in groups],
        gradient_as_bucket_view=view,
        **options,
    )
    reference = make(plain)
    chance = torch.Generator().manual_seed(len(name))
    for step in range(7):
        if step == 3:
            params[6].requires_grad_(True)
            params[7].requires_grad_(False)
        optimizer.zero_grad(set_to_none)
        reference.zero_grad(set_to_none)
        for _ in range(passes):
            uses = torch.rand(ranks, 8, generator=chance) < (1.0 if step == 5 else 0.35)
            uses[:, [4, 6 if step < 3 else 7]] = False
            used = [param for number, param in enumerate(params) if uses[me, number]]
            if used:
                sum((param * (me + 1) * ranks).sum() for param in used).backward()
            for number, param in enumerate(plain):
                if uses[:, number].any():
                    mean = sum(rank + 1.0 for rank in range(ranks) if uses[rank, number])
                    param.grad = torch.full((3,), mean) + (0.0 if param.grad is None else param.grad)
        optimizer.step()
        reference.step()
        for number, (ours, one) in enumerate(zip(params, plain, strict=True)):
            where = f"{name}: step {step}, parameter {number}: {ours.grad} instead of {one.grad}"
            assert (ours.grad is None) == (one.grad is None), where
            assert one.grad is None or torch.allclose(ours.grad, one.grad, atol=1e-6), where
            assert torch.allclose(ours, one, atol=1e-5), where


@on_ranks(2, 3)
def test_steps_with_unused_parameters_equal_those_of_one_process():
    for count, options in enumerate(OPTIONS):
        for set_to_none, make in zip((True, False), (sgd, adamw) if count % 2 else (adamw, sgd), strict=True):
            name = f"case{'-' * count}{set_to_none}"
            train_against_one_process(name, set_to_none, range(hvd.size()), make, **options)


@on_ranks(3, init=False)
def test_only_ranks_of_the_process_set_that_have_not_joined_count():
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    if pair.included():
        for options in ({}, {"num_groups": 2}):
            train_against_one_process(f"pair{len(options)}", True, [0, 2], sgd, process_set=pair, **options)
    used, other = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(sgd([used, other]), [("used", used), ("other", other)])
    for _ in range(1 + hvd.rank()):
        optimizer.zero_grad()
        used.sum().backward()
        optimizer.step()
        assert other.grad is None and used.grad is not None
    hvd.join()


@on_ranks(3)
def test_sparse_gradients_may_be_missing_on_any_rank_in_any_step():
    # Whether each rank uses row 1 of the table, in each step.
    uses = [[False, True, True], [True, False, False], [False, False, False], [False, False, True], [True, True, True]]
    kinds = [
        {},
        {"num_groups": 1},
        {"backward_passes_per_step": 2},
        {"num_groups": 2, "gradient_as_bucket_view": True},
    ]
    for options in (
        *kinds,
        *({"sparse_as_dense": True, **kind} for kind in kinds[:2]),
        {"sparse_as_dense": True, "compression": hvd.Compression.fp16},
    ):
        table, head = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1)
        torch.nn.init.ones_(table.weight)
        sparse = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        mixed = torch.optim.SGD([table.weight, *head.parameters()], lr=1.0)
        for optimizer in (sparse, mixed):
            named = [("table", table.weight), *(head.named_parameters() if optimizer is mixed else [])]
            distributed = hvd.DistributedOptimizer(optimizer, named, **options)
            for step, used in enumerate(uses):
                distributed.zero_grad()
                head.weight.data.fill_(1.0)
                for _ in range(distributed.backward_passes_per_step):
                    rows = table(torch.tensor([1])) if used[hvd.rank()] else torch.ones(1, 2)
                    head(rows).sum().backward()
                distributed.step()
                grad = table.weight.grad
                where = f"{options}, {type(optimizer).__name__}, step {step}: {grad}"
                assert (grad is None) == (not any(used)), where
                if grad is not None:
                    share = sum(used) * distributed.backward_passes_per_step / hvd.size()
                    assert grad.is_sparse, where
                    assert torch.allclose(grad.to_dense()[1], torch.full((2,), share), atol=1e-3), where
            check_equal_on_all_ranks([table.weight])
            head.zero_grad()
            table.zero_grad()
            del distributed


@on_ranks(2)
def test_unused_parameters_added_or_unfrozen_later_stay_unchanged():
    first, second, added, other = params = [torch.nn.Parameter(torch.ones(2)) for _ in range(4)]
    first.requires_grad_(False)
    second.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd([first, second]), [("first", first), ("second", second)])

    def step(used, by):
        optimizer.zero_grad()
        if hvd.rank() in by:
            used.sum().backward()
        optimizer.step()
        return [None if param.grad is None else param.grad[0].item() for param in params]

    optimizer.step()  # all parameters are frozen
    first.requires_grad_(True)
    second.requires_grad_(True)
    assert step(first, by=[1]) == [0.5, None, None, None]
    assert step(second, by=[0]) == [None, 0.5, None, None]
    optimizer.add_param_group({"params": [added, other]})
    reduced = {gradient.param for gradient in optimizer.debug_state().gradients}
    # Hooks reduce them from the next backward pass on, before the step.
    assert added in reduced and other in reduced
    assert step(added, by=[0, 1]) == [None, None, 1.0, None]
    assert step(second, by=[1]) == [None, 0.5, None, None]
    assert other.tolist() == [1.0, 1.0]


@on_ranks(2)
def test_unused_as_zeros_gives_every_parameter_a_gradient():
    used, other = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    named = [("used", used), ("other", other)]
    optimizer = hvd.DistributedOptimizer(sgd([used, other]), named, unused_as_zeros=True)
    for _ in range(2):
        optimizer.zero_grad()
        used.sum().backward()
        optimizer.step()
        assert other.grad.tolist() == [0.0, 0.0]
    assert other[0].item() < 1.0


@pytest.mark.parametrize("num_groups", [0, 2])
@on_ranks(2)
def test_the_search_for_unused_parameters_is_one_cached_operation_per_step(num_groups):
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(6)]
    named = [(f"p{number}", param) for number, param in enumerate(params)]

    def operations_of_steps(unused_as_zeros):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=0.1), named, num_groups=num_groups, unused_as_zeros=unused_as_zeros
        )
        for step in range(8):
            if step == 3:
                before = hvd.metrics()
            optimizer.zero_grad()
            sum(p.sum() for p in params[step % 3 : step % 3 + hvd.rank() + 2]).backward()
            optimizer.step()
        after = hvd.metrics()
        return [after[name] - before[name] for name in ("op_count.allreduce", "slow_rounds", "cache_misses")]

    with_search, without = operations_of_steps(False), operations_of_steps(True)
    assert with_search[0] - without[0] == 5, (with_search, without)
    assert with_search[1:] == [0, 0]


@on_ranks(2)
def test_a_step_does_not_wait_for_the_step_of_a_rank_that_has_all_gradients():
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    named = [(f"p{number}", param) for number, param in enumerate(params)]
    optimizer = hvd.DistributedOptimizer(sgd(params), named)
    for _ in range(2):
        optimizer.zero_grad()
        sum(p.sum() for p in params[: 2 + (hvd.rank() == 0)]).backward()
        if hvd.rank() == 0:
            hvd.barrier()
        optimizer.step()
        if hvd.rank() == 1:
            hvd.barrier()
        assert params[2].grad.tolist() == [0.5, 0.5]
