"""Several distributed optimizers in one process: those that work side by side, and the errors of the others."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run


def test_optimizers_without_names_work_side_by_side_and_equal_names_take_turns():
    def body():
        import horocache.torch as hvd

        pair = hvd.ProcessSet([0, 1])
        hvd.init(process_sets=[pair])
        params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(6)]
        weight = hvd.rank() + 1.0
        # A rank outside of the set makes no optimizer there; on the global set it counts as the other ranks do.
        made = [hvd.DistributedOptimizer(torch.optim.SGD([params[0]], lr=1.0))]
        if pair.included():
            made.append(hvd.DistributedOptimizer(torch.optim.SGD([params[1]], lr=1.0), process_set=pair))
        made.append(hvd.DistributedOptimizer(torch.optim.SGD([params[2]], lr=1.0)))
        made.append(hvd.DistributedOptimizer(torch.optim.SGD([params[3]], lr=1.0), num_groups=1))
        # Two optimizers with the same parameter name, which are never in flight together.
        same = [hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("same", p)]) for p in params[4:]]
        for _ in range(2):
            sum((p * weight).sum() for p in params[:4]).backward()
            for optimizer in made:
                optimizer.step()
                optimizer.zero_grad()
            for p, optimizer in zip(params[4:], same, strict=True):
                (p * weight).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [p.tolist()[0] for p in params], [next(iter(o._parameter_names.values())) for o in made]

    results = run(body, 3)
    for rank, (values, names) in enumerate(results):
        of_pair = [-3.0] if rank < 2 else [0.0]
        assert values == [-4.0, *of_pair, -4.0, -4.0, -4.0, -4.0], results
        of_set = ["noname.0.0"] if rank < 2 else []
        assert names == ["noname.0.0", *of_set, "optimizer_2.noname.0.0", "optimizer_3.noname.0.0"]


@pytest.mark.parametrize("options", [{}, {"num_groups": 1}, {"compression": "fp16"}])
@pytest.mark.parametrize("size", ["small", "large"])
@on_ranks(2)
def test_equal_names_and_the_very_same_parameters_are_an_error_that_says_whose(options, size):
    from horocache import DuplicateNameError

    chosen = dict(options)
    if "compression" in chosen:
        chosen["compression"] = hvd.Compression.fp16
    layers = [torch.nn.Linear(2, 2 if size == "small" else 1 << 17, bias=False) for _ in range(2)]

    def wrap(layer, prefix=""):
        sgd = torch.optim.SGD(layer.parameters(), lr=1.0)
        return hvd.DistributedOptimizer(sgd, layer.named_parameters(prefix=prefix), **chosen)

    def backward(*layers):
        sum(layer(torch.ones(1, 2)).sum() for layer in layers).backward()

    encoder, decoder = (wrap(layer) for layer in layers)
    said = (
        r"rank \d: DistributedOptimizer \d \(SGD of 1 parameters, wrapped at .*several_optimizers.py:\d+\) and "
        r"DistributedOptimizer \d .* both have a parameter of the name 'weight', .* named_parameters=encoder"
    )
    with pytest.raises(DuplicateNameError, match=said):
        backward(*layers)
    for optimizer in (encoder, decoder):
        optimizer.load_state_dict(optimizer.state_dict())  # drops what is in flight
    del optimizer
    encoder, decoder = (wrap(layer, prefix) for layer, prefix in zip(layers, ("encoder", "decoder"), strict=True))
    backward(*layers)
    encoder.step()
    decoder.step()

    old = encoder
    encoder = wrap(layers[0], "again")
    said = r"have these very parameters \(1, the first is '.*weight'\), .* still holds it"
    with pytest.raises(DuplicateNameError, match=said):
        backward(layers[0])
    for optimizer in (encoder, old):
        optimizer.load_state_dict(optimizer.state_dict())
    del old, optimizer
    encoder.zero_grad()
    backward(layers[0])
    encoder.step()
