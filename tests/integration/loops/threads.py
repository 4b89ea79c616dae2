"""Optimizer steps on changing threads: `threads.py ABBA` names them; M is the main thread."""

import queue
import sys
import threading

import torch

torch.manual_seed(0)
torch.set_num_threads(1)


class Worker:
    def __init__(self):
        self.calls, self.done = queue.Queue(), queue.Queue()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            self.done.put(self.calls.get()())

    def __call__(self, function):
        self.calls.put(function)
        self.done.get()


threads = {name: Worker() for name in "ABC"} | {"M": lambda function: function()}
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(10)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for name in sys.argv[1]:
    loss = model(torch.ones(4, 16)).sum()
    loss.backward()
    threads[name](optimizer.step)
    optimizer.zero_grad()
print(f"{loss.item():.4f}")
