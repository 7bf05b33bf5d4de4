"""With gradients in shared memory, the process keeps memory that a step frees and reuses its pages."""

import os
import platform

import pytest
import torch

from horocache.testing import run_ranks as run

TUNED = [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]
pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's"),
    pytest.mark.skipif(bool(TUNED), reason=f"the environment says what malloc does: {TUNED}"),
]

BLOCKS, BLOCK = 64, 1 << 20  # bytes
PAGES = BLOCKS * BLOCK // 4096


def faults_after_training(bucket_view):
    """Return the page faults of allocating and freeing the same amount of memory as shortly before."""
    import resource

    import horocache.torch as hvd
    import numpy as np

    hvd.init()
    model = torch.nn.Linear(64, 64)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), gradient_as_bucket_view=bucket_view
    )
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    assert hvd.is_shared(model.weight.grad) is bool(bucket_view)
    for _ in range(4):  # glibc maps blocks of this size one by one until one has been freed
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [np.ones(BLOCK, np.uint8) for _ in range(BLOCKS)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_memory_is_kept_where_gradients_are_shared():
    assert all(faults < PAGES // 8 for faults in run(faults_after_training, 2, args=("auto",)))


@pytest.mark.parametrize(("bucket_view", "knobs"), [("auto", {"keep_heap": "off"}), (False, {})])
def test_malloc_is_left_alone_elsewhere(bucket_view, knobs):
    assert all(faults > PAGES // 2 for faults in run(faults_after_training, 2, args=(bucket_view,), knobs=knobs))


@pytest.mark.parametrize(
    ("variable", "value", "keeps"),
    [
        ("MALLOC_ARENA_MAX", "2", True),
        ("MALLOC_TRIM_THRESHOLD_", "131072", False),
        ("MALLOC_MMAP_THRESHOLD_", "131072", False),
        ("MALLOC_TOP_PAD_", "131072", False),
        ("MALLOC_MMAP_MAX_", "0", False),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2", True),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2:glibc.malloc.trim_threshold=131072", False),
    ],
)
def test_what_the_environment_tells_malloc_stands(variable, value, keeps):
    def body():
        from horocache import _core

        return [_core.keep_freed_memory(), _core.keep_freed_memory()]

    assert run(body, 1, environment={variable: value}) == [[keeps, keeps]]
