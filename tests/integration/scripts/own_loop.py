"""A loop of its own that watches itself; the argument says how."""

import sys
from pathlib import Path

import torch

import fp8verify

how = sys.argv[1]
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def train_without_torch_optim():
    loss = model(torch.ones(4, 8)).sum()
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True
    ):
        parameter.data -= 0.1 * gradient


if how == "window":
    train()
    with fp8verify.window("cap") as w:
        for _ in range(3):
            train_without_torch_optim()
            w.step()
    train()
    print(w.report.verdict.value, w.report.ranks[0].clock.windows[0])
    print(
        [step.step for step in w.report.ranks[0].steps],
        Path("cap/report.json").exists(),
    )
elif how == "profiled":
    with torch.profiler.profile() as theirs, fp8verify.window("cap") as w:
        train()
        w.step()
    print(w.report.verdict.value, w.report.ranks[0].clock.windows[0].state)
    theirs.export_chrome_trace("theirs.json")
elif how == "short":
    for _ in range(
        2
    ):  # the second one begins to record where the first one had warmed up
        with fp8verify.watch(
            every=5, sinks=lambda line: print(line["first_step"], line["step"])
        ):
            for _ in range(13):
                train()
    with fp8verify.watch(
        every=5, sinks=lambda line: print(line["first_step"], line["step"])
    ):
        for _ in range(9):  # the second window has begun, and holds no whole step
            train()
    fp8verify.watch(every=5, sinks="fp8.jsonl")
    for _ in range(15):
        train()
elif how == "never":
    with fp8verify.window("cap") as w:
        with torch.profiler.profile():
            train()
            w.step()
        train()
        w.step()
    print(w.report.ranks[0].clock.windows[0].last)
elif how == "watch":
    changes = []
    with fp8verify.watch(
        every=10,
        sinks=["fp8.jsonl", print],
        on_change=lambda was, _: changes.append(was),
    ):
        for _ in range(35):
            train()
    print(changes)
    lines = []
    sinks = [print, lines.append]
    with fp8verify.watch(every=5, window=1, steps="3", sinks=sinks) as w:
        for _ in range(10):
            train_without_torch_optim()
            w.step()
    print([line["step"] for line in lines], w.last["step"])
