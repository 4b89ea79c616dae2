"""Two gloo ranks of 200 short steps, the clock of one a few steps behind the other's."""

import time

import torch
from torch.distributed import destroy_process_group, get_rank, init_process_group
from torch.nn.parallel import DistributedDataParallel

init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if get_rank() == 1:
    now = time.time
    time.time = lambda: now() - 0.12
for _ in range(200):
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
destroy_process_group()
