"""pytorch/examples mnist_hogwild/main.py and train.py at 77f55b912142 (BSD-3-Clause).

Shared weights. The loop of those files: the main process trains nothing itself; processes that it
spawns step optimizers of their own on the one model. Here one after the other, so losses can
be compared.
"""

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional


def batches():
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(8, 16, generator=generator), torch.arange(8) % 4) for _ in range(4)
    ]


def train(rank, model):
    torch.manual_seed(1 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(1, 3):
        train_epoch(rank, epoch, model, optimizer)


def train_epoch(rank, epoch, model, optimizer):
    model.train()
    for batch, (data, target) in enumerate(batches()):
        optimizer.zero_grad()
        loss = functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        print(
            f"{rank}\tTrain Epoch: {epoch} [{batch}]\tLoss: {loss.item():.6f}",
            flush=True,
        )


def test(model):
    model.eval()
    with torch.no_grad():
        correct = sum((model(x).max(1)[1] == y).sum().item() for x, y in batches())
    print(f"\nTest set: Accuracy: {correct}/32\n")


if __name__ == "__main__":
    torch.manual_seed(1)
    mp.set_start_method("spawn", force=True)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.LogSoftmax(dim=1)
    )
    model.share_memory()
    for rank in range(2):
        process = mp.Process(target=train, args=(rank, model))
        process.start()
        process.join()
    test(model)
