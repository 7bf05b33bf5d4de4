"""A program that knows only torch.distributed: it names the backend, and imports nothing of horocache."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

how = sys.argv[1] if len(sys.argv) > 1 else "well"
imported = [name for name in sys.modules if name.startswith("horocache.torch.")]
dist.init_process_group("horocache")
rank, size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.full((1, 4), float(rank))).sum().backward()
pair = dist.new_group([0, 1])
value = torch.tensor([float(rank + 1)])
dist.all_reduce(value)
facts = {"what": "sums", "value": value.item(), "gradient": model.module.weight.grad[0, 0].item(), "imported": imported}
sys.stdout.write(json.dumps(facts | {"local_rank": os.environ["LOCAL_RANK"], "size": size}) + "\n")
sys.stdout.flush()
if how == "well":
    dist.barrier()
    dist.destroy_process_group()
elif how == "open":  # ends with operations and futures in flight, as careless programs do
    pending = dist.all_reduce(torch.ones(1), async_op=True)
    future = pending.get_future()
    if rank < 2:
        never = dist.irecv(torch.ones(1), 1 - rank).get_future()
elif how == "raise" and rank == 1:
    raise ValueError("the data are bad")
else:
    dist.all_reduce(value)
