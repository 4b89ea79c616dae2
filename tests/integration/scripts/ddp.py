"""Two ranks of DistributedDataParallel on gloo.

`by-time` makes 200 short steps, the clock of one rank a few steps behind the other's.
"""

import sys
import time

import torch
from torch.distributed import destroy_process_group, get_rank, init_process_group
from torch.nn.parallel import DistributedDataParallel

by_time = sys.argv[1:] == ["by-time"]
init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if by_time and get_rank() == 1:
    now = time.time
    time.time = lambda: now() - 0.12
for step in range(1, 201 if by_time else 7):
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if by_time:
        time.sleep(0.02)
    elif get_rank() == 0:
        print(f"step {step} loss {loss.item():.8f}", flush=True)
destroy_process_group()
