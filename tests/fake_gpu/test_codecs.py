"""Codecs on tensors of the fake CUDA device: the values go by the host, and the results are on the device."""

import pytest
from test_torch import NCCL, assert_alike, on_device


@pytest.mark.parametrize("variables", [{}, NCCL], ids=["host", "nccl"])
def test_codecs_give_what_they_give_on_the_cpu(variables):
    def run(torch, hvd):
        def answers(place):
            given = (torch.arange(300.0).reshape(20, 15) / 7 + hvd.rank()).to(place)
            results = []
            for codec in (hvd.Compression.zfp(tolerance=1e-2), hvd.Compression.int8(), hvd.Compression.topk(k=30)):
                call = {"op": hvd.Sum, "compression": codec}
                results.append(hvd.allreduce(given, name=f"{codec.name}.{place}", **call))
                results += hvd.grouped_allreduce([given.t(), given[3]], name=f"group.{codec.name}.{place}", **call)
                in_place = given.bfloat16() if codec.name == "int8" else given.clone()
                results.append(hvd.synchronize(hvd.allreduce_async_(in_place, name=f"in.{codec.name}.{place}", **call)))
            assert all(result.device.type == place for result in results), [result.device for result in results]
            return [result.float().cpu().tolist() for result in results]

        return answers("cpu"), answers("fakecuda")

    assert_alike(on_device(run, 2, **variables))
