"""Gradients in shared memory: reduced in place, and safe if the program keeps, changes or replaces them."""

from __future__ import annotations

import copy
import io
import itertools

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run

from ..small_model import batch, make_model


def views(optimizer):
    return [gradient.bucket_view for gradient in optimizer.debug_state().gradients]


def train(hvd, steps, set_to_none, bucket_view, num_groups, passes=1, clips=False, dtype=None):
    """Train for some steps; return the parameters, the bytes copied in the last step, and the optimizer.

    The bytes are two numbers: copied in and out of buffers, and copied from gradients into their bucket views.
    """
    import horocache as hc

    model = make_model() if dtype is None else make_model().to(dtype)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model.named_parameters(),
        num_groups=num_groups,
        backward_passes_per_step=passes,
        gradient_as_bucket_view=bucket_view,
    )
    copied = (0, 0)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        before = hc.metrics()
        for part in range(passes):
            x, y = batch(passes * step + part, hvd.rank())
            torch.nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)), y).backward()
        if clips:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        after = hc.metrics()
        copied = tuple(after[name] - before[name] for name in ("bytes_copied", "bytes_into_views"))
    return [p.detach().clone() for p in model.parameters()], copied, optimizer


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("num_groups", [0, 1, 3])
@pytest.mark.parametrize("size", [2, 3])
def test_parameters_have_the_bits_that_they_have_without_views_and_nothing_is_copied(size, num_groups, set_to_none):
    def body(num_groups, set_to_none):
        import horocache.torch as hvd

        hvd.init(oneshot_max=0, inline_max=0)  # these small gradients take the path of large ones
        for options in ({}, {"passes": 2}, {"clips": True}, {"dtype": torch.float32}):
            with_views, copied, optimizer = train(hvd, 4, set_to_none, "auto", num_groups, **options)
            without, copied_without, _ = train(hvd, 4, set_to_none, False, num_groups, **options)
            for a, b in zip(with_views, without, strict=True):
                assert torch.equal(a, b), options
            # A gradient that autograd allocates is copied into its bucket view once; one that autograd accumulates in
            # place is not copied. The byte per parameter that reports unused parameters may be copied in and out.
            size = sum(p.numel() * p.element_size() for p in with_views)
            assert copied[0] <= 2 * len(with_views), (options, copied)
            assert copied[1] == (size if set_to_none else 0), (options, copied)
            assert copied_without[0] > 0
            assert copied_without[1] == 0
            for gradient in optimizer.debug_state().gradients:
                assert gradient.param.grad is gradient.bucket_view and hvd.is_shared(gradient.bucket_view)

    run(body, size, args=(num_groups, set_to_none))


@on_ranks(2)
def test_gradients_of_one_type_lie_side_by_side():
    _, _, optimizer = train(hvd, 1, True, True, 0)
    for before, after in itertools.pairwise(sorted(views(optimizer), key=torch.Tensor.data_ptr)):
        assert before.data_ptr() + before.nbytes == after.data_ptr()


@on_ranks(2)
def test_a_gradient_that_the_program_keeps_is_not_overwritten():
    params = [torch.nn.Parameter(torch.ones(5)) for _ in range(4)]
    named = [(f"p{i}", p) for i, p in enumerate(params)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.0), named, num_groups=1, op=hvd.Sum)
    kept = []
    for step in range(4):
        optimizer.zero_grad()
        (sum(p.sum() for p in params) * (step + 1)).backward()
        optimizer.step()
        # The gradient itself, another tensor on its memory, and a NumPy view of it.
        kept.append((params[0].grad, params[1].grad.detach(), params[2].grad.numpy()))
        assert all(p.grad.tolist() == [2.0 * (step + 1)] * 5 for p in params)
    last = optimizer.debug_state().gradients[0]  # buckets begin with the last parameter
    for step, grads in enumerate(kept):
        assert [g.tolist() for g in grads] == [[2.0 * (step + 1)] * 5] * 3
    assert last.param is params[3] and last.bucket_view.data_ptr() == params[3].grad.data_ptr()


@pytest.mark.parametrize("num_groups", [0, 1])
@on_ranks(2)
def test_a_gradient_in_memory_of_the_programs_stays_there(num_groups):
    params = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(3)]
    flat = torch.zeros(18)
    own = torch.zeros(2, 3)
    array = torch.zeros(2, 3).numpy()
    named = [(f"p{i}", p) for i, p in enumerate(params)]
    plain = torch.optim.SGD(params, lr=0.0)
    optimizer = hvd.DistributedOptimizer(plain, named, num_groups=num_groups, op=hvd.Sum)
    for _ in range(3):
        flat.zero_()
        own.zero_()
        array.fill(0)
        params[0].grad, params[1].grad, params[2].grad = flat[3:9].view(2, 3), own, torch.from_numpy(array)
        (sum(p.sum() for p in params) * (hvd.rank() + 1)).backward()
        optimizer.step()
        assert flat.tolist() == [0.0] * 3 + [3.0] * 6 + [0.0] * 9
        assert own.tolist() == array.tolist() == [[3.0] * 3] * 2
        assert params[1].grad is own


@on_ranks(3, init=False)
def test_channels_last_keeps_its_layout_and_its_bits():
    hvd.init(oneshot_max=0)

    def steps(bucket_view):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, (1, 3)), torch.nn.Conv2d(4, 1, 1))
        model = model.to(memory_format=torch.channels_last)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            num_groups=2,
            gradient_as_bucket_view=bucket_view,
        )
        for step in range(3):
            optimizer.zero_grad()
            torch.manual_seed(10 * step + hvd.rank())
            x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
            model(x).square().mean().backward()
            optimizer.step()
        return model, optimizer

    model, optimizer = steps("auto")
    for p in model.parameters():
        strides = [s for s, n in zip(p.grad.stride(), p.shape, strict=True) if n > 1]
        assert strides == [s for s, n in zip(p.stride(), p.shape, strict=True) if n > 1]
    assert all(each.param.grad is each.bucket_view for each in optimizer.debug_state().gradients)
    without, _ = steps(False)
    for a, b in zip(model.parameters(), without.parameters(), strict=True):
        assert torch.equal(a, b)


@on_ranks(2)
def test_detach_requires_grad_and_zero_in_place_work_on_the_places():
    _, _, optimizer = train(hvd, 2, True, "auto", 2)
    for view in views(optimizer):
        view.detach_()
        view.requires_grad_(False)
        view.zero_()
        assert not view._is_view()
    optimizer.zero_grad(set_to_none=False)
    assert all(each.param.grad is each.bucket_view for each in optimizer.debug_state().gradients)


@on_ranks(2, init=False)
def test_mixed_types_frozen_and_shared_parameters_and_such_without_a_gradient():
    hvd.init(oneshot_max=0)

    def steps(bucket_view):
        torch.manual_seed(0)
        shared = torch.nn.Parameter(torch.ones(4))
        half = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        double = torch.nn.Parameter(torch.ones(3, 4, dtype=torch.float64))
        unused = torch.nn.Parameter(torch.ones(6))
        frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        empty = torch.nn.Parameter(torch.ones(0, 3))
        params = [shared, half, double, unused, frozen, empty]
        named = [(f"p{i}", p) for i, p in enumerate(params)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=0.5), named, num_groups=2, op=hvd.Sum, gradient_as_bucket_view=bucket_view
        )
        for step in range(4):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss = (shared * shared * 2).sum() + (half.float() * 3).sum() + (double * shared).sum() + empty.sum()
            if step == 2:
                loss = loss + frozen.sum() * 0
                frozen.requires_grad_(True)
            (loss * (hvd.rank() + 1)).backward()
            optimizer.step()
        assert unused.grad is None and unused.tolist() == [1.0] * 6
        return params

    for a, b in zip(steps("auto"), steps(False), strict=True):
        assert torch.equal(a, b)


@on_ranks(2)
def test_copies_and_saved_states_stand_by_themselves():
    _, _, optimizer = train(hvd, 2, False, "auto", 1)
    params = [gradient.param for gradient in optimizer.debug_state().gradients]
    twins = copy.deepcopy([p.grad for p in params])
    file = io.BytesIO()
    torch.save([p.grad for p in params], file)
    file.seek(0)
    saved = torch.load(file)
    for p, twin, grad in zip(params, twins, saved, strict=True):
        assert torch.equal(p.grad, twin) and torch.equal(p.grad, grad)
        assert not hvd.is_shared(twin) and not hvd.is_shared(grad)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)


@pytest.mark.parametrize("bucket_view", ["auto", False])
@on_ranks(2)
def test_changing_or_replacing_a_gradient_in_flight_is_an_error_with_its_name(bucket_view):
    from horocache.errors import InvalidArgumentError

    params = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    named = [("first", params[0]), ("second", params[1])]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.0), named, num_groups=1, gradient_as_bucket_view=bucket_view
    )

    def backward():
        optimizer.zero_grad()
        sum(p.sum() for p in params).backward()

    backward()
    optimizer.step()
    changes = [
        (lambda: params[1].grad.mul_(2), "second was changed"),
        (lambda: params[1].grad.resize_(2), "second was resized"),
        (lambda: setattr(params[0], "grad", None), "first was set to None"),
        (lambda: setattr(params[0], "grad", torch.ones(4)), "first was replaced"),
        (lambda: setattr(params[1].grad, "data", torch.ones(4)), "second'? was (freed, or )?given other memory"),
    ]
    # The last change frees the gradient's memory. Only shared memory is kept until the operation is over.
    for change, how in changes if bucket_view else changes[:-1]:
        backward()
        change()
        with pytest.raises(InvalidArgumentError, match=how):
            optimizer.step()
        backward()
        optimizer.step()
        assert all(p.grad.tolist() == [1.0] * 4 for p in params)


@on_ranks(2, init=False)
def test_views_that_are_kept_stay_readable_after_shutdown_and_memory_is_given_back():
    import gc
    from pathlib import Path

    def shared_kib():
        with Path("/proc/self/smaps").open() as maps:
            found, mine = 0, False
            for line in maps:
                if "-" in line.split()[0] and ":" not in line.split()[0]:
                    mine = "memfd:horocache" in line
                elif mine and line.startswith("Rss:"):
                    found += int(line.split()[1])
        return found

    hvd.init()
    model = torch.nn.Linear(1000, 1000)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum
    )
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    grad = model.weight.grad
    hvd.shutdown()
    assert grad.sum().item() == 2e6
    with_view = shared_kib()
    assert with_view >= 4_000_000 // 1024
    del grad, optimizer
    model.zero_grad()
    gc.collect()
    assert shared_kib() < with_view - 3900


@on_ranks(2)
def test_true_with_a_compression_or_a_wrong_value_is_an_error():
    from horocache.errors import InvalidArgumentError, UnsupportedError

    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidArgumentError, match="'yes'; it is True, False or 'auto'"):
        hvd.DistributedOptimizer(sgd, model.named_parameters(), gradient_as_bucket_view="yes")
    with pytest.raises(UnsupportedError, match="compressed gradients are copies"):
        hvd.DistributedOptimizer(
            sgd, model.named_parameters(), compression=hvd.Compression.fp16, gradient_as_bucket_view=True
        )
    hvd.DistributedOptimizer(sgd, model.named_parameters(), compression=hvd.Compression.fp16)


@on_ranks(2)
def test_gradients_stay_private_where_torch_cannot_tell_who_else_has_their_memory():
    from horocache.torch.optimizer import bucket_views, gradient_queue

    from horocache.errors import UnsupportedError

    gradient_queue.count_users = bucket_views.count_users = None
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError, match="needs a torch that tells how many tensors"):
        hvd.DistributedOptimizer(sgd, model.named_parameters(), gradient_as_bucket_view=True)
    _, _, optimizer = train(hvd, 2, False, "auto", 2)
    assert not any(hvd.is_shared(gradient.param.grad) for gradient in optimizer.debug_state().gradients)


def test_a_torch_without_dlpacks_exchange_table_has_no_bucket_views():
    from horocache.torch.optimizer.gradient_queue import users_counter

    class Tensor:
        pass

    assert users_counter(Tensor) is None and users_counter(torch.Tensor) is not None


@on_ranks(2)
def test_gradients_without_memory_of_their_own_are_reduced():
    class NoGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            return torch._efficientzerotensor((3, 4))

    param, other = torch.nn.Parameter(torch.ones(3, 4)), torch.nn.Parameter(torch.ones(2))
    named = [("param", param), ("other", other)]
    for groups in (0, 1):
        sgd = torch.optim.SGD([param, other], lr=0.0)
        optimizer = hvd.DistributedOptimizer(sgd, named, num_groups=groups, op=hvd.Sum)
        for _ in range(3):
            optimizer.zero_grad()
            (NoGradient.apply(param) + other.sum()).backward()
            optimizer.step()
            assert param.grad.tolist() == [[0.0] * 4] * 3 and other.grad.tolist() == [2.0, 2.0]


def test_private_gradients_and_one_warning_where_no_memory_can_be_shared():
    def body():
        import os
        import tempfile

        import horocache.torch as hvd

        with tempfile.TemporaryFile() as said:
            os.dup2(said.fileno(), 2)
            hvd.init(region_bytes=2 << 20)
            model = torch.nn.Linear(1000, 1000)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum, num_groups=1
            )
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(1, 1000)).sum().backward()
                optimizer.step()
                assert model.weight.grad.sum().item() == 2e6 and not hvd.is_shared(model.weight.grad)
            assert not hvd.is_shared(hvd.empty(3 << 20))
            assert hvd.is_shared(hvd.empty(1000))
            said.seek(0)
            return said.read().decode()

    for text in run(body, 2):
        assert text.count("there is no shared memory left for a tensor of 4004000 bytes") == 1
        assert text.count("no shared memory left") == 1
