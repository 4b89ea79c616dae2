"""Trainings that do more than train: `odd.py CASE`; `changes ABBA` names the threads of steps."""

import asyncio
import atexit
import os
import queue
import signal
import sys
import threading
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)


def build(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Linear(16, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(steps=6, model_and_optimizer=None, step=lambda function: function()):
    model, optimizer = model_and_optimizer or build()
    for _ in range(steps):
        loss = model(torch.ones(4, 16)).sum()
        loss.backward()
        step(optimizer.step)
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
        python = os.environ.get("PYTHON_EXEC", sys.executable)  # as torchrun names it
        os.execv(python, [python, __file__, "restarts", "again"])


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


def forgets():
    """End in a window, without what was to be done at the exit."""
    print(train(3), flush=True)
    atexit._clear()


def signals():
    """Handle signals of its own, one in the midst of a window."""
    heard = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: heard.append(number))
    model, optimizer = build()
    for step in range(6):
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        os.kill(os.getpid(), signal.SIGTERM if step == 3 else signal.SIGUSR1)
    print(sorted(map(int, heard)))


class Worker:
    """A thread that calls what it is given."""

    def __init__(self):
        self.calls, self.done = queue.Queue(), queue.Queue()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            self.done.put(self.calls.get()())

    def __call__(self, function):
        self.calls.put(function)
        self.done.get()


def changes():
    """Step on changing threads; M is the main thread."""
    threads = {name: Worker() for name in "ABC"} | {"M": lambda function: function()}
    names = iter(sys.argv[2])
    print(train(len(sys.argv[2]), step=lambda function: threads[next(names)](function)))


def two_threads():
    """Train twice, in two threads of one process."""
    both, losses = [build(seed) for seed in (1, 2)], {}

    def run(number):
        losses[number] = train(60, both[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sorted(losses.items()))


def tasks():
    """Let a pool of asyncio make each optimizer step, while it is busy."""
    model, optimizer = build()

    async def steps():
        for _ in range(24):
            loss = model(torch.ones(4, 16)).sum()
            loss.backward()
            await asyncio.to_thread(optimizer.step)
            optimizer.zero_grad()
            await asyncio.sleep(0)
        print(f"{loss.item():.4f}")

    async def both():
        await asyncio.gather(steps(), asyncio.to_thread(sum, range(10**6)))

    asyncio.run(both())


globals()[sys.argv[1]]()
