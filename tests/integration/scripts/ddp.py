"""Two ranks of DistributedDataParallel on gloo."""

import torch
from torch.distributed import destroy_process_group, get_rank, init_process_group
from torch.nn.parallel import DistributedDataParallel

init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 7):
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if get_rank() == 0:
        print(f"step {step} loss {loss.item():.8f}", flush=True)
destroy_process_group()
