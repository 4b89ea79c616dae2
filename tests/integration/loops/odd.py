"""Trainings that do more than train: `odd.py CASE`."""

import os
import signal
import sys
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)


def train(steps=6):
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.ones(4, 16)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return f"{loss.item():.4f}"


def functional():
    """Without an optimizer: gradients by torch.func."""
    weight = torch.ones(16)
    gradient = torch.func.grad(lambda w: (torch.ones(4, 16) @ w).square().mean())
    for _ in range(6):
        weight = weight - 0.001 * gradient(weight)
    print(f"{weight.sum().item():.4f}")


def restarts():
    """Replace itself by another training, as elastic launchers of one node do."""
    print(train(), flush=True)
    if "again" not in sys.argv:
        os.execv(sys.executable, [sys.executable, __file__, "restarts", "again"])


def daemon():
    """Train in a process of its own session, whose parent is gone."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("daemon.part", "w") as file:
                file.write(train())
            os.rename("daemon.part", "daemon.txt")
        os._exit(0)
    os.wait()
    for _ in range(1200):
        if os.path.exists("daemon.txt"):
            break
        time.sleep(0.05)
    time.sleep(0.2)
    with open("daemon.txt") as file:
        print(file.read())


def signals():
    """Handle signals of its own, one in the midst of a window."""
    heard = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: heard.append(number))
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        os.kill(os.getpid(), signal.SIGTERM if step == 3 else signal.SIGUSR1)
    print(sorted(map(int, heard)))


globals()[sys.argv[1]]()
