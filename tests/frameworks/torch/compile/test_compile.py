"""Collectives in compiled torch functions: the bits, gradients, errors and order of eager calls.

``aot_eager`` is the compiler without its code generator. ``inductor`` is the whole compiler and takes seconds per
graph.
"""

from __future__ import annotations

import functools
import re
import sys

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks
from torch.func import functional_call, grad_and_value
from torch.utils.checkpoint import checkpoint

import horocache

from ..small_model import batch, make_model

# The first compilation imports these, in each rank unless the server of ranks has imported them.
COMPILER = ("torch._functorch.aot_autograd", "torch._inductor.compile_fx")
on_compiling_ranks = functools.partial(on_ranks, preload=COMPILER)


def numbers(*shape, rank=0):
    """Whole numbers that differ by rank, so that all sums are exact in any order."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32).reshape(shape) * 3 + rank) % 11 - 5


def outcome(function, inputs):
    """The results of a function, its inputs after the call, and their gradients."""
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    results = function(*inputs)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    weighted = [(r * numbers(*r.shape, rank=1)).sum() for r in results if r.requires_grad]
    if weighted:
        sum(weighted).backward()
    return [t.detach() for t in (*results, *inputs, *(t.grad for t in inputs if t.grad is not None))]


def check_same(function, *inputs, backend="aot_eager", fullgraph=True, **options):
    """Check that a compiled function has the eager function's outcome, also when it is called again."""
    torch.compiler.reset()
    want = outcome(function, inputs)
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph, **options)
    for _ in range(2):
        got = outcome(compiled, inputs)
        assert len(got) == len(want), function
        for place, (a, b) in enumerate(zip(got, want, strict=True)):
            assert a.dtype == b.dtype and torch.equal(a, b), (function, place, a, b)


@on_compiling_ranks(3, timeout=120)
def test_results_and_gradients_of_reductions_gathers_and_broadcasts_equal_those_of_eager_calls():
    me = hvd.rank()

    def reductions(x, y):
        half = hvd.allreduce(y, name="half", compression=hvd.Compression.fp16, prescale_factor=0.5)
        named = hvd.allreduce(x, name=b"bytes", op=hvd.Average, postscale_factor=3.0)
        return hvd.allreduce(x * 2, op=hvd.Sum), half, named, *hvd.grouped_allreduce([x, y.t()], op=hvd.Sum)

    def gathers(x, scalar):
        return hvd.allgather(x * 2) * 3, hvd.allgather(scalar), *hvd.grouped_allgather([x, x * scalar])

    def broadcasts(x, y):
        return hvd.broadcast(x * 2, 1), *hvd.grouped_broadcast([x, y], root_rank=0, name="group")

    rows = numbers(me + 1, 2, rank=me).requires_grad_()
    x = numbers(5, 2, rank=me).requires_grad_()
    check_same(reductions, x, numbers(3, 4, rank=me).requires_grad_())
    check_same(gathers, rows, torch.tensor(2.0 + me, requires_grad=True))
    check_same(broadcasts, x, numbers(4, rank=me).requires_grad_())


@on_compiling_ranks(3, timeout=120)
def test_results_and_gradients_of_scatterings_and_exchanges_equal_those_of_eager_calls():
    n, me = hvd.size(), hvd.rank()

    def scatterings(x, y):
        return hvd.reducescatter(x * 2, op=hvd.Sum), *hvd.grouped_reducescatter([x, y])

    def exchanges(x, splits):
        rows, received = hvd.alltoall(x, splits, name="given")
        pairs = hvd.grouped_alltoall([x, x * 2], list(range(n)))
        return hvd.alltoall(x[: 2 * n]), rows * 2, received, *(part for pair in pairs for part in pair)

    check_same(scatterings, numbers(5, 2, rank=me).requires_grad_(), numbers(7, rank=me).requires_grad_())
    # The tensor has more rows than some calls send; the other rows have no gradient.
    check_same(exchanges, numbers(4 * n, 2, rank=me).requires_grad_(), torch.tensor([me + i for i in range(n)]))


@on_compiling_ranks(3, timeout=120, init=False)
def test_results_of_other_types_and_in_process_sets_equal_those_of_eager_calls():
    some = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[some])
    n, me = hvd.size(), hvd.rank()

    def others(x):
        most = hvd.allreduce(x.to(torch.int32), op=hvd.Max)
        return most, hvd.allreduce(x > me, op=hvd.Or), hvd.allgather(x[me:] * n), hvd.rank() * x + hvd.local_size()

    check_same(others, numbers(6, rank=me), dynamic=True)

    def in_a_set(x):
        if not some.included():
            return x
        return hvd.allreduce(x, process_set=some) * some.size() + some.rank(), hvd.broadcast(x, 2, process_set=some)

    check_same(in_a_set, numbers(5, 2, rank=me).requires_grad_())


@on_compiling_ranks(2, timeout=120)
def test_operations_in_place_change_their_tensors():
    n, me = hvd.size(), hvd.rank()

    def reductions(x, y):
        same = hvd.allreduce_(x, op=hvd.Sum) is x
        hvd.grouped_allreduce_([x, y.t()], name="group")
        hvd.broadcast_(y[1:], 1)  # a view
        middle = y * 2
        hvd.grouped_broadcast_([middle], 0)
        return middle, torch.tensor(same)

    def moves(x, y):
        whole = hvd.allgather_(x) * 2
        exchanged, received = hvd.alltoall_(y, splits=[2] * n)
        own = hvd.reducescatter_(y)
        hvd.grouped_alltoall_([x, y], name="group")
        return whole, exchanged * 1, received, own * 3, *hvd.grouped_reducescatter_([x], op=hvd.Sum)

    def unseen_by_autograd(x):
        y = x * 2
        hvd.allreduce_(y, op=hvd.Sum)
        return y * 3

    def compressed(x, y):
        hvd.allreduce_(x, op=hvd.Sum, compression=hvd.Compression.fp16)
        hvd.grouped_allreduce_([y], op=hvd.Sum, compression=hvd.Compression.bf16)
        return x * 2

    check_same(reductions, numbers(4, 2, rank=me), numbers(3, 4, rank=me))
    check_same(compressed, numbers(4, 2, rank=me), numbers(3, 4, rank=me))
    check_same(moves, numbers(2 * n, 2, rank=me), numbers(2 * n, rank=me))
    check_same(unseen_by_autograd, numbers(4, rank=me).requires_grad_())


@on_compiling_ranks(2, timeout=120)
def test_the_code_generator_keeps_results_and_gradients():
    n, me = hvd.size(), hvd.rank()

    def function(x, splits):
        reduced = hvd.allreduce(x.relu(), op=hvd.Sum) + 1
        rows, _ = hvd.alltoall(reduced, splits)
        gathered = hvd.allgather(rows * 2, name="rows")
        hvd.broadcast_(gathered, 1)
        own = hvd.reducescatter(reduced * 2, op=hvd.Sum)
        return gathered.sum(0) * own, rows

    splits = torch.tensor([me + 1] + [1] * (n - 1))
    check_same(function, numbers(2 * n + 1, 2, rank=me).requires_grad_(), splits, backend="inductor")


@on_compiling_ranks(3, timeout=120)
def test_no_operation_is_removed_merged_or_moved():
    def counted(function):
        def count(*inputs):
            before = hvd.metrics().get("op_count.allreduce", 0)
            result = function(*inputs)
            if result.requires_grad:
                result.sum().backward()
            return result.detach() * 0 + hvd.metrics()["op_count.allreduce"] - before

        return count

    def unused(x):
        hvd.allreduce(x, name="loss")
        hvd.allreduce_(x * 2, name="middle")
        hvd.broadcast_(x * 3, 0, name="other")
        hvd.barrier()
        mean = hvd.allreduce(x.sum(), name="mean")
        return x * mean if hvd.rank() == 0 else x * 2

    def equal(x):
        return hvd.allreduce(x, name="x") + hvd.allreduce(x, name="x")

    def crossed(x):
        a, b = hvd.allreduce(x * 2, name="a"), hvd.allreduce(x.cos(), name="b")
        c, d = hvd.allgather(x, name="c"), hvd.broadcast(x.sin(), 0, name="d")
        if hvd.rank() == 0:
            return (d.sum() + b.sin().sum()) * a.sum() + c.sum()
        if hvd.rank() == 1:
            return (c.exp().sum() - a.sum()) * d.sum() + b.sum()
        return b.sum() + d.sum() + a.sum() + c.sum()

    options = {"backend": "aot_eager", "fullgraph": True}
    for function, x, expected in (
        (unused, numbers(4), 3),
        (equal, numbers(4).requires_grad_(), 4),
        (crossed, numbers(4), 2),
        # Two allreduces forward, and one for the gradient of each of the four operations.
        (crossed, numbers(4).requires_grad_(), 6),
    ):
        torch.compiler.reset()
        compiled = torch.compile(function, **options)
        for variant in (function, compiled, compiled):
            number = counted(variant)(x)
            assert (number == expected).all(), (function, variant is compiled, number)


@on_compiling_ranks(2, timeout=120)
def test_generated_code_keeps_the_order_even_if_it_costs_memory():
    def function(x):  # matrix products, for which no kernels are generated
        parts = x.unbind()
        a = hvd.allreduce(parts[0] @ parts[1], name="a")
        b = hvd.allreduce(parts[2][:1] @ parts[3], name="b")
        hvd.barrier()
        c = hvd.allreduce(parts[4] @ parts[5][:, :1], name="c")
        d = hvd.broadcast(parts[6] @ parts[7], 0, name="d")
        return (d @ a, b @ c) if hvd.rank() == 0 else (a @ a,)

    check_same(function, numbers(8, 4, 4), backend="inductor")


@on_compiling_ranks(1)
def test_generated_cpp_code_with_operations_raises():
    from torch._inductor.exc import InductorError

    compiled = torch.compile(lambda x: hvd.allreduce(x * 2), fullgraph=True, options={"cpp_wrapper": True})
    with pytest.raises(InductorError, match=r"cannot be in the C\+\+ code .* Compile without it"):
        compiled(numbers(3))


@on_compiling_ranks(2, timeout=120)
def test_a_training_step_in_one_graph_gives_the_same_parameters():
    model = make_model()

    def step(parameters, x, y):
        def loss_of(parameters):
            return torch.nn.functional.cross_entropy(functional_call(model, parameters, (x,)), y)

        gradients, loss = grad_and_value(loss_of)(parameters)
        reduced = hvd.grouped_allreduce(list(gradients.values()), name="gradients")
        updated = zip(parameters.items(), reduced, strict=True)
        return {name: value - 0.1 * gradient for (name, value), gradient in updated}, hvd.allreduce(loss)

    def trained(step):
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        losses = []
        for number in range(3):
            parameters, loss = step(parameters, *batch(number, hvd.rank()))
            losses.append(loss)
        return [*parameters.values(), *losses]

    compiled = trained(torch.compile(step, backend="aot_eager", fullgraph=True))
    for got, want in zip(compiled, trained(step), strict=True):
        assert torch.equal(got, want)


@on_compiling_ranks(2, timeout=120)
def test_a_distributed_optimizer_in_a_compiled_step_gives_the_same_parameters():
    graphs = []

    def spy(graph, _):
        graphs.append(graph)
        return graph

    def trained(wrap_step, wrap_optimizer):
        torch.compiler.reset()
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), num_groups=2)
        update = wrap_optimizer(optimizer.step)

        def step(x, y):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            update()

        step = wrap_step(step)
        for number in range(3):
            step(*batch(number, hvd.rank()))
        return [p.detach() for p in model.parameters()]

    def plain(function):
        return function

    def compiled(function):
        return torch.compile(function, backend=spy)

    want = trained(plain, plain)
    for got in (trained(compiled, plain), trained(plain, compiled)):
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)
    # One graph for the forward pass, and two for each of the two optimizers: its first step, which creates the
    # momentum, and its later steps. The graphs have no nodes of hooks or reductions.
    assert len(graphs) == 5, graphs
    lines = "".join(node.meta.get("stack_trace") or "" for graph in graphs for node in graph.graph.nodes)
    assert "reducer.py" not in lines and "horocache/collectives/submitter.py" not in lines


@on_compiling_ranks(2, timeout=120)
def test_calls_that_cannot_be_compiled_break_the_graph_once():
    from torch._dynamo.exc import Unsupported
    from torch._dynamo.utils import counters

    class Rounding:
        @staticmethod
        def compress(tensor):
            return tensor.round().half(), tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            return tensor.to(ctx)

    me = hvd.rank()
    x = numbers(3, 2, rank=me)

    def asynchronous(x):
        handle = hvd.allreduce_async(x * 2, op=hvd.Sum)
        return hvd.synchronize(handle) + 1  # torch does not compile a remainder that begins without tensors

    # Without fullgraph, torch leaves operations with results of unknown size out of its graphs.
    def gathered(x):
        return hvd.allgather(x * 2) + 1

    def objects(x):
        return hvd.broadcast_object({"factor": me + 2}, 1)["factor"] * x

    def rooted(x):
        result = hvd.reduce(x * 2, root_rank=0)
        return x if result is None else result + x

    def own_compressor(x):
        return hvd.allreduce(x * 2, compression=Rounding) + 1

    def with_codec(x):
        return hvd.allreduce(x * 2, compression=hvd.Compression.int8(block=4)) + 1

    def arrays(x):
        return torch.from_numpy(horocache.allreduce(x.numpy() * 2)) + x

    def odd_name(x):
        return hvd.allreduce(x * 2, name=b"\xff") + 1

    def again_in_backward(x):
        return checkpoint(lambda x: hvd.allreduce(x.sin()).cos(), x, use_reentrant=False) * 2

    functions = (asynchronous, gathered, objects, rooted, own_compressor, with_codec, arrays, odd_name)
    for function in (*functions, again_in_backward):
        counters.clear()
        check_same(function, x.clone().requires_grad_(function is again_in_backward), fullgraph=False)
        assert sum(counters["graph_break"].values()) == 1, (function, counters["graph_break"])
        assert counters["stats"]["unique_graphs"] <= 2, (function, counters["stats"])
        if function is not gathered:
            torch.compiler.reset()
            with pytest.raises(Unsupported, match="horocache: "):
                torch.compile(function, backend="aot_eager", fullgraph=True)(x)


@on_compiling_ranks(2, timeout=120, init=False)
def test_rank_and_size_are_constants_of_the_running_job():
    from horocache.torch.compile.custom_ops import op

    def function(x):
        return hvd.reducescatter(x * hvd.size() + hvd.rank(), op=hvd.Sum, name="x")

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    x = numbers(5)
    hvd.init()
    rank = hvd.rank()
    for alone in (False, True, False):
        if alone:
            hvd.shutdown()
            hvd.init(comm=[rank])
        elif hvd.size() == 1:
            hvd.shutdown()
            hvd.init()
        assert torch.equal(compiled(x), function(x)), hvd.size()
    # A graph that the user kept calls the operator like this, without a guard on the rank.
    with pytest.raises(ValueError, match=r"compiled for rank 0 of 5 .* is rank \d of 2. Compile it again"):
        op("allreduce")([x], "", 1, 1.0, 1.0, None, 0, 0, 5, None, False)
    hvd.shutdown()
    with pytest.raises(hvd.HorocacheError, match="not been initialized"):
        torch.compile(lambda x: hvd.allreduce(x, name="x"), backend="aot_eager", fullgraph=True)(x)


@on_compiling_ranks(2)
def test_a_reduction_without_a_gradient_fails_in_the_backward_pass():
    def largest(x):
        return hvd.allreduce(x, name="largest", op=hvd.Max)

    def smallest_rows(x):
        return hvd.grouped_reducescatter([x], name="smallest", op=hvd.Min)[0]

    for function in (largest, smallest_rows):
        torch.compiler.reset()
        x = numbers(4, rank=hvd.rank()).requires_grad_()
        result = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
        assert torch.equal(result, function(x.detach()))
        with pytest.raises(NotImplementedError, match="detach the tensor"):
            result.sum().backward()


@on_compiling_ranks(2, timeout=120)
def test_errors_equal_those_of_eager_calls():
    me = hvd.rank()
    x = numbers(2, 3)
    mistakes = [
        (lambda x: hvd.allreduce(x, name="shape"), numbers(2 + me)),
        (lambda x: hvd.allreduce(x, name="type"), x.double() if me else x),
        (lambda x: hvd.allreduce(x, name="op", op=hvd.Sum if me else hvd.Max), x),
        (lambda x: hvd.allreduce(x, op=99), x),
        (lambda x: hvd.allreduce(x, backend="none"), x),
        (lambda x: hvd.broadcast(x, 7), x),
        (lambda x: hvd.reducescatter(x, name="x"), x[0, 0]),
        (lambda x: hvd.alltoall(x, [5, 5]), x),
        (lambda x: hvd.alltoall_(x, [1 + me, 1 - me]), x),
    ]
    for function, tensor in mistakes:
        torch.compiler.reset()
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        with pytest.raises(hvd.HorocacheError) as eager:
            function(tensor.clone())
        with pytest.raises(type(eager.value)) as in_a_graph:
            compiled(tensor.clone())
        # The rank that submits first is named first, so the order of the words may differ.
        words = [sorted(re.findall(r"\w+", str(error.value))) for error in (in_a_graph, eager)]
        assert words[0] == words[1]
    # Without fullgraph, calls that cannot be compiled go to the eager function, which raises its error.
    for function in (lambda: hvd.allreduce(3.0), lambda: hvd.grouped_allreduce([]), lambda: hvd.allreduce(x, no=1)):
        with pytest.raises((hvd.HorocacheError, TypeError)) as eager:
            function()
        with pytest.raises(type(eager.value)) as outside:
            torch.compile(function, backend="aot_eager")()
        assert str(outside.value) == str(eager.value)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="after").item() == hvd.size()


@on_compiling_ranks(2, timeout=120)
def test_sync_batch_norm_is_part_of_the_graph():
    x = numbers(3 + hvd.rank(), 2, rank=hvd.rank()).requires_grad_()
    norms = [hvd.SyncBatchNorm(2), hvd.SyncBatchNorm(2)]
    results = [outcome(norm, [x]) for norm in (norms[0], torch.compile(norms[1], backend="aot_eager", fullgraph=True))]
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(norms[0].state_dict().values(), norms[1].state_dict().values(), strict=True):
        assert torch.equal(a, b)


@on_compiling_ranks(1, init=False)
def test_graphs_break_at_collectives_if_torch_has_no_effects():
    from torch._dynamo.utils import counters
    from torch.library import Library

    del Library._register_effectful_op
    import horocache.torch as hvd  # after the deletion; this test does not use the module's import

    hvd.init()
    assert "horocache.torch.compile.custom_ops" not in sys.modules
    check_same(lambda x: hvd.allreduce(x * 2) + 1, numbers(3).requires_grad_(), fullgraph=False)
    assert sum(counters["graph_break"].values()) == 1


@on_compiling_ranks(1)
def test_the_operators_pass_opcheck():
    from horocache.torch.compile.custom_ops import op
    from torch.library import opcheck

    tail = ("name", 0, 0, 1, None, False)
    reduction = ("fp16", hvd.Sum, 0.5, 1.0)
    x = numbers(3, 2).requires_grad_()
    calls = {
        "allreduce": ([x, x], *reduction, *tail[:-1], True),
        "allgather": ([x], *tail),
        "broadcast": ([x], 0, True, *tail),
        "reducescatter": ([x], *reduction, *tail),
        "alltoall": ([x], torch.tensor([2]), None, *tail),
        "allgather_in_place": ([x.detach()], *tail),
        "alltoall_in_place": ([x.detach()], None, *tail),
    }
    for name, arguments in calls.items():
        opcheck(op(name), arguments)
