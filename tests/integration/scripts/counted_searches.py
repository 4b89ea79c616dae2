"""Count searches of all objects and walks over modules: STEPS for each line."""

import gc
import sys

import torch

steps = int(sys.argv[1])
counts = {"searches": 0, "walks": 0}


def count(owner, name, what, is_one=lambda *_, **__: True):
    original = getattr(owner, name)

    def counted(*args, **options):
        counts[what] += is_one(*args, **options)
        return original(*args, **options)

    setattr(owner, name, counted)


def is_outermost(_, memo=None, *__, **___):
    return memo is None


model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(200)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
count(gc, "get_objects", "searches")
count(torch.nn.Module, "named_modules", "walks", is_outermost)
for _ in range(4):
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(counts["searches"], counts["walks"])
    counts.update(searches=0, walks=0)
