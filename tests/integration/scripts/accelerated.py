"""The loop of an accelerate example, with gradient accumulation."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(1, 13):
    with accelerator.accumulate(model):
        loss = model(torch.randn(4, 16)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print(f"batch {step} loss {loss.item():.8f}", flush=True)
