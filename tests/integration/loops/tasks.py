"""asyncio: each optimizer step runs on a thread of the pool."""

import asyncio

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


async def train():
    for _ in range(12):
        loss = model(torch.ones(4, 16)).sum()
        loss.backward()
        await asyncio.to_thread(optimizer.step)
        optimizer.zero_grad()
        await asyncio.sleep(0)
    print(f"{loss.item():.4f}")


async def main():
    await asyncio.gather(train(), asyncio.to_thread(sum, range(10**6)))


asyncio.run(main())
