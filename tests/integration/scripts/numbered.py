"""Trainings whose steps have numbers of their own: KIND, steps done before, steps to train.

torchtitan logs as that does (trainer.py and components/metrics.py), told calls
`fp8verify.step(number)`; dry_run makes the optimizer's state before training, folds trains twice,
gan has a critic, ema a copy.
"""

import copy
import logging
import sys

import torch

kind, done, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def update(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def new():
    model = torch.nn.Linear(16, 16)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(say=None):
    model, optimizer = new()
    for step in range(done + 1, done + count + 1):
        loss = update(model, optimizer)
        if say is not None:
            say(step, loss)


def logger_of(name, form):
    logger = logging.getLogger(name)
    logger.handlers.clear()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(form))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger


def torchtitan():
    logger = logger_of(None, "%(message)s")
    logger.info(f"Training starts at step {done + 1}")
    train(
        lambda step, loss: logger.info(
            f"\033[31mstep: {step:2}  \033[32mloss: {loss:7.4f}  memory: 1GiB"
        )
    )


def told():
    import fp8verify

    train(lambda step, _: fp8verify.step(step))


def dry_run():
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    model, optimizer = new()
    model(torch.ones(4, 16)).square().mean().backward()  # as OLMo-core's trainer.py
    optimizer.zero_grad()
    _init_optim_state(optimizer)
    for _ in range(count):
        update(model, optimizer)


def folds():
    for fold in range(2):
        train(
            lambda step, loss, fold=fold: print(
                f"fold {fold} [step {step}] loss={loss:.4f}"
            )
        )


def gan():
    generator, critic = new(), new()
    for _ in range(count):
        for _ in range(3):
            update(*critic)
        update(*generator)


def ema():
    model, optimizer = new()
    shadow = copy.deepcopy(model)
    for step in range(done + 1, done + count + 1):
        print(f"[step {step}] loss={update(model, optimizer):.4f}")
        with torch.no_grad():
            for ours, theirs in zip(
                shadow.parameters(), model.parameters(), strict=True
            ):
                ours.lerp_(theirs, 0.1)
            shadow(torch.ones(4, 16))


vars()[kind]()
