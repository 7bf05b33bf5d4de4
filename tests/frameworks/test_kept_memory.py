"""With gradients in shared memory, malloc keeps the memory that a step frees, and the next step reuses its pages."""

import os
import platform
import resource

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

from horocache import _core

TUNED = [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]
pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's"),
    pytest.mark.skipif(bool(TUNED), reason=f"the environment configures malloc: {TUNED}"),
]

BLOCKS, BLOCK = 64, 1 << 20  # bytes
PAGES = BLOCKS * BLOCK // 4096


def faults_after_training(bucket_view):
    """Train a step, then return the page faults of allocating and freeing as much memory as was just freed."""

    model = torch.nn.Linear(64, 64)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), gradient_as_bucket_view=bucket_view
    )
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    assert hvd.is_shared(model.weight.grad) is bool(bucket_view)
    for _ in range(4):  # glibc maps each block of this size separately until one has been freed
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [np.ones(BLOCK, np.uint8) for _ in range(BLOCKS)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@on_ranks(2)
def test_freed_pages_are_reused_if_gradients_are_shared():
    assert faults_after_training("auto") < PAGES // 8


@on_ranks(2, knobs={"keep_heap": "off"})
def test_malloc_is_unchanged_if_keep_heap_is_off():
    assert faults_after_training("auto") > PAGES // 2


@on_ranks(2)
def test_malloc_is_unchanged_if_gradients_are_not_shared():
    assert faults_after_training(False) > PAGES // 2


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
@on_ranks(1, init=False)
def test_malloc_settings_of_the_environment_take_precedence(variable, value, keeps):
    os.environ[variable] = value
    assert [_core.keep_freed_memory(), _core.keep_freed_memory()] == [keeps, keeps]
