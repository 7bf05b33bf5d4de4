"""Several distributed optimizers in one process: independent ones, and ones that share a name or a parameter."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache import DuplicateNameError


@on_ranks(3, init=False)
def test_unnamed_optimizers_run_together_and_equal_names_in_turn():
    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(6)]
    weight = hvd.rank() + 1.0
    # Rank 2 makes no optimizer on the pair. It numbers its optimizers on the global set as the other ranks do.
    together = [hvd.DistributedOptimizer(torch.optim.SGD([params[0]], lr=1.0))]
    if pair.included():
        together.append(hvd.DistributedOptimizer(torch.optim.SGD([params[1]], lr=1.0), process_set=pair))
    together.append(hvd.DistributedOptimizer(torch.optim.SGD([params[2]], lr=1.0)))
    together.append(hvd.DistributedOptimizer(torch.optim.SGD([params[3]], lr=1.0), num_groups=1))
    # Two optimizers with the same parameter name, which are never in flight together.
    in_turn = [hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("same", p)]) for p in params[4:]]
    for _ in range(2):
        sum((p * weight).sum() for p in params[:4]).backward()
        for optimizer in together:
            optimizer.step()
            optimizer.zero_grad()
        for p, optimizer in zip(params[4:], in_turn, strict=True):
            (p * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    value_of_pair = -3.0 if pair.included() else 0.0
    assert [p.tolist()[0] for p in params] == [-4.0, value_of_pair, -4.0, -4.0, -4.0, -4.0]
    names = [gradient.name for optimizer in together for gradient in optimizer.debug_state().gradients]
    name_of_pair = ["noname.0.0"] if pair.included() else []
    assert names == ["noname.0.0", *name_of_pair, "optimizer_2.noname.0.0", "optimizer_3.noname.0.0"]


@pytest.mark.parametrize("options", [{}, {"num_groups": 1}, {"compression": "fp16"}])
@pytest.mark.parametrize("size", ["small", "large"])
@on_ranks(2)
def test_optimizers_with_an_equal_name_or_parameter_raise(options, size):
    if "compression" in options:
        options["compression"] = hvd.Compression.fp16
    layers = [torch.nn.Linear(2, 2 if size == "small" else 1 << 17, bias=False) for _ in range(2)]

    def wrap(layer, prefix=""):
        sgd = torch.optim.SGD(layer.parameters(), lr=1.0)
        return hvd.DistributedOptimizer(sgd, layer.named_parameters(prefix=prefix), **options)

    def backward(*layers):
        sum(layer(torch.ones(1, 2)).sum() for layer in layers).backward()

    encoder, decoder = (wrap(layer) for layer in layers)
    message = (
        r"rank \d: DistributedOptimizer \d \(SGD of 1 parameters, wrapped at .*several_optimizers.py:\d+\) and "
        r"DistributedOptimizer \d .* both have a parameter of the name 'weight', .* named_parameters=encoder"
    )
    with pytest.raises(DuplicateNameError, match=message):
        backward(*layers)
    for optimizer in (encoder, decoder):
        optimizer.load_state_dict(optimizer.state_dict())  # drops gradients in flight
    del optimizer
    encoder, decoder = (wrap(layer, prefix) for layer, prefix in zip(layers, ("encoder", "decoder"), strict=True))
    backward(*layers)
    encoder.step()
    decoder.step()

    old = encoder
    encoder = wrap(layers[0], "again")
    message = r"have these very parameters \(1, the first is '.*weight'\), .* still holds it"
    with pytest.raises(DuplicateNameError, match=message):
        backward(layers[0])
    for optimizer in (encoder, old):
        optimizer.load_state_dict(optimizer.state_dict())
    del old, optimizer
    encoder.zero_grad()
    backward(layers[0])
    encoder.step()
