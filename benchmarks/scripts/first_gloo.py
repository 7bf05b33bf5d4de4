"""A first collective of torch.distributed over gloo; prints the system's monotonic time when it is done."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert tensor[0] == dist.get_world_size()
sys.stdout.write(f"{time.monotonic()}\n")  # one write, so that the lines of two ranks do not mix
dist.destroy_process_group()
