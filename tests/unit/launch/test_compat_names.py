"""Names of Horovod's modules for torch and for data that public programs import."""

import subprocess
import sys

PROGRAM = """
import horovod.torch as hvd
import torch
from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.runner.util.threads import in_thread
from horovod.torch.mpi_ops import _basics
from horovod.torch.optimizer import _DistributedAdasumOptimizer, _DistributedOptimizer

try:
    hvd.rank()
except ValueError as error:
    assert "Horovod has not been initialized" in str(error), error
assert not _basics.is_initialized()
hvd.init()
assert (_basics.rank(), _basics.size()) == (0, 1)
called = []
thread = in_thread(called.append, ("done",), name="caller")
thread.join()
assert called == ["done"] and thread.name == "caller" and thread.daemon
in_thread(lambda: 1 // 0, silent=True).join()
try:
    in_thread(called.append, ["not a tuple"])
except ValueError as error:
    assert "as a tuple, not as list" in str(error), error
model = torch.nn.Linear(2, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
assert isinstance(optimizer, _DistributedOptimizer) and not isinstance(optimizer, _DistributedAdasumOptimizer)
assert sorted(optimizer._parameter_names.values()) == ["noname.0.0", "noname.0.1"]
model.weight.grad = torch.ones(2, 2)
handle, context = optimizer._allreduce_grad_async(model.weight)
assert hvd.synchronize(handle).tolist() == [[1.0, 1.0]] * 2 and context is None


class Loader(AsyncDataLoaderMixin, BaseDataLoader):
    def __init__(self, count, fails=False):
        self.count, self.fails = count, fails
        super().__init__()

    def __len__(self):
        return self.count

    def _iterate(self):
        yield from range(self.count)
        if self.fails:
            raise OSError("the disk")

    def _process_batch(self, batch):
        return batch * 2


for size in (0, 1, 64):
    loader = Loader(200)
    loader.async_loader_queue_size = size
    for _ in range(2):
        assert list(loader) == list(range(0, 400, 2)), size
    for batch in loader:  # and leave in the middle
        if batch == 4:
            break
    loader.close_async_loader()
    failing, seen = Loader(3, fails=True), []
    failing.async_loader_queue_size = size
    try:
        for batch in failing:
            seen.append(batch)
    except OSError as error:
        assert (seen, str(error)) == ([0, 2, 4], "the disk"), size
    else:
        raise AssertionError(size)
print("done")
"""


def test_names_that_public_programs_import_exist_and_work():
    done = subprocess.run(
        [sys.executable, "-m", "horocache.compat", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["done"], done.stderr
