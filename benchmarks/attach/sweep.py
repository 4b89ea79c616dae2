"""written here: three runs one after the other in one process, as agents of sweeps do it."""

import torch
from torch import nn

for lr in (0.1, 0.03, 0.01):
    torch.manual_seed(0)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(4):
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"lr {lr}: {loss.item():.6f}")
