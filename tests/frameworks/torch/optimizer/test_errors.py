"""DistributedOptimizer with invalid arguments, and after failures and interrupts."""

from __future__ import annotations

import signal
import time

import horocache.torch as hvd
import pytest
import torch
from ranks import calling_thread_is_in, on_ranks, signal_in_a_wait

from horocache.core import context
from horocache.errors import HorocacheError, UnsupportedError

from ..small_model import check_groups, group_names, make_model, parameters, table_and_head


class Faulty:
    """Replaces this process's runtime. One method of it fails at some of its calls, counted from 1."""

    def __init__(self, method, *calls, error=RuntimeError):
        self.method, self.calls, self.error, self.count = method, calls, error, 0
        self.session = context.current()
        self.runtime = self.session.runtime
        self.session.runtime = self
        self.before_failure = lambda *_, **__: None  # called with the arguments of a call that fails

    def __getattr__(self, name):
        if name == "finish_gradients" and self.method == "wait":
            return lambda buckets: buckets  # the optimizer then waits for each bucket by itself
        return self.call if name == self.method else getattr(self.runtime, name)

    def call(self, *arguments, **more):
        self.count += 1
        fails = self.count in self.calls
        # An operation whose wait fails is complete; one whose wait is interrupted is not.
        completes = self.method == "wait" and self.error is not KeyboardInterrupt
        answer = getattr(self.runtime, self.method)(*arguments, **more) if completes or not fails else None
        if fails:
            self.before_failure(*arguments, **more)
            raise self.error(f"injected at call {self.count}")
        return answer

    def pending(self):
        return list(self.session.pending)


class StoppedError(Exception):
    """Raised by a signal handler."""


@on_ranks(1, 2)
def test_invalid_arguments_raise():
    model = make_model()
    params = list(model.parameters())

    def wrap(named=None, op=hvd.Average, **options):
        return hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), named, op=op, **options)

    names = list(model.named_parameters())
    for match, call in {
        "sequence of tuples": lambda: wrap([p for _, p in names]),
        "Found duplicates: same": lambda: wrap([("same", p) for p in params]),
        "were not named": lambda: wrap(names[:-1]),
        "positive integer": lambda: wrap(groups=-1),
        "lists of torch.Tensor": lambda: wrap(groups=[params[0]]),
        "more than once": lambda: wrap(groups=[[params[0], params[0]]]),
        r"groups\[0\]\[1\], of shape \(7,\), is in no parameter group": lambda: wrap(
            groups=[[params[0], torch.nn.Parameter(torch.ones(7))]]
        ),
        "compression must have the methods .* it is 'fp16'": lambda: wrap(compression="fp16"),
        r"has not been registered: \[0, 1\]": lambda: wrap(process_set=[0, 1]),
        "gradient_predivide_factor must be a number; it is 'x'": lambda: wrap(gradient_predivide_factor="x"),
        "gradient_predivide_factor must be > 0; it is nan": lambda: wrap(gradient_predivide_factor=float("nan")),
        "not supported with op": lambda: wrap(op=hvd.Sum, gradient_predivide_factor=2.0),
        "must be a whole number > 0": lambda: wrap(backward_passes_per_step=0),
        "num_groups must be a whole number of at least 0, or 'auto'; it is -3": lambda: wrap(num_groups=-3),
        "num_groups must be a whole number of at least 0, or 'auto'; it is 1.5": lambda: wrap(num_groups=1.5),
        "both given": lambda: wrap(num_groups=2, groups=2),
        "distributed already": lambda: hvd.DistributedOptimizer(wrap()),
        "op=17 is not a reduce operation": lambda: wrap(op=17),
    }.items():
        with pytest.raises(HorocacheError, match=match) as failed:
            call()
        assert isinstance(failed.value, ValueError)
    with pytest.raises(ValueError, match="> 0"):
        wrap().set_backward_passes_per_step(0)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(params), 0)
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(3, 0)


@on_ranks(2)
def test_trainable_parameters_on_an_unsupported_device_raise():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError, match=r"parameter 1\.weight is on meta"):
        hvd.DistributedOptimizer(sgd, model.named_parameters())
    for param in model[1].parameters():
        param.requires_grad = False
    hvd.DistributedOptimizer(sgd, model.named_parameters())


@on_ranks(2)
def test_frozen_parameters_in_groups_and_compression_none_are_accepted():
    frozen, free = torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.nn.Parameter(torch.ones(2))
    named = [("frozen", frozen), ("free", free)]
    plain = torch.optim.SGD([frozen, free], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, named, compression=None, groups=[[frozen, free]])
    (free.sum() * hvd.rank()).backward()
    optimizer.step()
    assert free.tolist() == [0.5, 0.5]


@on_ranks(3)
def test_a_failed_reduction_leaves_nothing_in_flight_and_the_job_goes_on():
    odd = torch.nn.Parameter(torch.ones(2 + (hvd.rank() == 1)))
    fine = torch.nn.Parameter(torch.ones(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([odd, fine], lr=0.1), [("odd", odd), ("fine", fine)])
    (odd.sum() + fine.sum()).backward()
    with pytest.raises(hvd.HorovodInternalError, match="odd"):
        optimizer.step()
    optimizer.zero_grad()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@on_ranks(2)
def test_a_group_whose_submission_failed_is_submitted_again_by_the_step():
    table, head, named = table_and_head()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=0.0), named, num_groups=1)
    # Only head's gradient is dense; the table's indices and values have been submitted when the group fails.
    faulty = Faulty("submit_gradient_group", 1)
    loss = head(table(torch.tensor([hvd.rank()])) * (hvd.rank() + 1)).sum()
    with pytest.raises(RuntimeError, match="injected at call 1"):
        loss.backward()
    optimizer.step()
    assert (head.weight.grad.tolist(), table.weight.grad.to_dense()[:, 0].tolist(), faulty.pending()) == (
        [[1.5, 1.5]],
        [0.5, 1.0, 0.0, 0.0],
        [],
    )


@on_ranks(2)
def test_gradients_submitted_before_a_failed_submission_complete():
    params, named = parameters(4)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), named)
    mine = torch.full((2,), float(hvd.rank()))
    faulty = Faulty("submit_gradients", 1)
    faulty.before_failure = lambda slots, *more: faulty.runtime.submit_gradients(slots[:2], *more)
    with pytest.raises(RuntimeError, match="injected"):
        sum((p * mine).sum() for p in params).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.step()
    first = [p.tolist() for p in params]
    optimizer.zero_grad()
    sum((p * mine).sum() for p in params).backward()
    optimizer.step()
    assert (first, [p.tolist() for p in params]) == ([[0.5, 0.5]] * 4, [[0.0, 0.0]] * 4)


@on_ranks(2)
def test_the_first_failed_submission_is_raised_after_all_others_complete():
    params, named = parameters(6)
    groups = [params[:2], params[2:4], params[4:]]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=1.0), named, groups=groups, backward_passes_per_step=2
    )
    mine = torch.full((2,), float(hvd.rank()))
    sum((p * mine).sum() for p in params).backward()  # one of two passes: hooks submit nothing
    Faulty("submit", 1, 2)
    with pytest.raises(RuntimeError, match="injected at call 1"):
        optimizer.step()
    assert params[5].grad.tolist() == [0.5, 0.5], "the third group has been reduced"
    optimizer.zero_grad()
    for _ in range(2):
        sum((p * mine).sum() for p in params).backward()
    optimizer.step()
    assert [p.tolist() for p in params] == [[0.0, 0.0]] * 6


@on_ranks(2)
def test_after_a_failed_first_step_every_gradient_is_in_one_group():
    params, named = parameters(6)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), named, num_groups=2)
    sum(p.sum() for p in params).backward()
    Faulty("wait", 1)
    with pytest.raises(RuntimeError, match="injected"):
        optimizer.step()
    for _ in range(2):
        optimizer.zero_grad()
        sum(p.sum() for p in params).backward()
        optimizer.step()
    check_groups(group_names(optimizer), 2, 6)


@on_ranks(2)
def test_sparse_gradients_complete_if_the_dense_ones_of_their_group_fail():
    table, head, named = table_and_head()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=0.1), named, num_groups=1)
    faulty = Faulty("wait", 1)
    head(table(torch.tensor([hvd.rank()]))).sum().backward()
    with pytest.raises(RuntimeError, match="injected"):
        optimizer.step()
    assert (table.weight.grad.to_dense()[:, 0].tolist(), faulty.pending()) == ([0.5, 0.5, 0.0, 0.0], [])


@pytest.mark.parametrize("num_groups", [0, 1])
@pytest.mark.parametrize("call", [1, 2, 3])
@on_ranks(2)
def test_an_interrupted_step_resumes_and_reduces_nothing_twice(call, num_groups):
    table, head, named = table_and_head()
    other = torch.nn.Parameter(torch.ones(2))
    named.append(("other", other))
    plain = torch.optim.SGD([p for _, p in named], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, named, op=hvd.Sum, num_groups=num_groups)
    rows = table(torch.tensor([hvd.rank()]))
    (rows.sum() + head.weight.sum() + other.sum()).backward()
    # Three waits: for each gradient; or for the group, its sparse gradient, and the order of the next step.
    Faulty("wait", call, error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    optimizer.step()
    optimizer.zero_grad()
    other.sum().backward()
    optimizer.step()
    assert head.weight.tolist() == [[-1.0, -1.0]]
    assert other.tolist() == [-3.0, -3.0]
    assert table.weight.detach()[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("num_groups", [0, 2])
@on_ranks(2)
def test_a_step_interrupted_by_a_signal_resumes(num_groups, tmp_path):
    interrupted = tmp_path / "interrupted"

    def interrupt(number, frame):
        raise StoppedError

    params, named = parameters(4)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), named, op=hvd.Sum, num_groups=num_groups)
    for step in range(3):
        optimizer.zero_grad()
        if hvd.rank() == 1 and step == 1:
            while not interrupted.exists():
                time.sleep(0.01)
        sum(p.sum() for p in params).backward()
        if hvd.rank() == 0 and step == 1:
            signal.signal(signal.SIGUSR1, interrupt)
            with pytest.raises(StoppedError):
                signal_in_a_wait(calling_thread_is_in("step"), signal.SIGUSR1)
                optimizer.step()
            interrupted.touch()
        optimizer.step()
    assert [p.tolist() for p in params] == [[1.0 - 3 * 2.0] * 2] * 4


@on_ranks(2)
def test_an_interrupt_does_not_hide_an_earlier_failure():
    params, named = parameters(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), named)
    sum(p.sum() for p in params).backward()
    Faulty("wait", 1)
    Faulty("wait", 2, error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    with pytest.raises(RuntimeError, match="injected at call 1"):
        optimizer.step()
    assert [p.tolist() for p in params] == [[1.0, 1.0]] * 3


@on_ranks(2)
def test_setting_passes_completes_sparse_gradients_of_a_failed_group():
    table, head, named = table_and_head()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=0.0), named, num_groups=1)
    faulty = Faulty("submit_gradient_group", 1)
    with pytest.raises(RuntimeError, match="injected at call 1"):
        head(table(torch.tensor([hvd.rank()]))).sum().backward()
    optimizer.set_backward_passes_per_step(1)
    assert faulty.pending() == []
    optimizer.zero_grad()
    head(table(torch.tensor([hvd.rank()]))).sum().backward()
    optimizer.step()
    assert (table.weight.grad.to_dense()[:, 0].tolist(), faulty.pending()) == ([0.5, 0.5, 0.0, 0.0], [])
