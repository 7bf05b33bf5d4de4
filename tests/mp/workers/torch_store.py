"""torch.distributed starts at the address that horocacherun sets, beside a horocache job."""

import torch
import torch.distributed as dist
from common import allreduce_and_check, job, report

with job():
    dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    allreduce_and_check("x")
    report("sums", value=value.item(), world=dist.get_world_size())
    dist.destroy_process_group()
