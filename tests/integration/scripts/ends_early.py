"""Train four steps on a GPU, then work on for a while: `ends_early.py main|threads`.

A window from step 6 on is prepared by then and never begins.
"""

import sys
import threading

import torch

WIDTH = 32
STEPS = 4
PASSES = 150


def train():
    """Take the steps."""
    model = torch.nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(8, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()


def work():
    """Run forward and backward passes without an optimizer."""
    model = torch.nn.Linear(WIDTH, WIDTH).cuda()
    for _ in range(PASSES):
        model(torch.ones(8, WIDTH, device="cuda")).square().mean().backward()


def train_and_work():
    """Do both."""
    train()
    work()


if sys.argv[1] == "main":
    train_and_work()
else:
    threads = [
        threading.Thread(target=target) for target in (train_and_work, work, work)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("done")
