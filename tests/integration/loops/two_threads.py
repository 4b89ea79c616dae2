"""Two trainings in two threads of one process."""

import threading

import torch

torch.set_num_threads(1)


def train(seed):
    random = torch.Generator().manual_seed(seed)
    model = torch.nn.Linear(16, 1)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(60):
        model(torch.rand(64, 16, generator=random)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    sums[seed] = round(model.weight.sum().item(), 3)


sums = {}
threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(sums.items()))
