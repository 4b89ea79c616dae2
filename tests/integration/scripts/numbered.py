"""Trainings whose steps have numbers of their own: KIND, steps done before, steps to train.

kempnerforge and torchtitan log as those do (metrics/logger.py and scripts/train.py of KempnerForge,
trainer.py and components/metrics.py of torchtitan), printed prints such lines, told calls
`fp8verify.step(number)`, nothing has no numbers; dry_run makes the
optimizer's state before training, folds trains twice, gan has a critic, ema a copy.
"""

import copy
import logging
import sys

import torch

kind, done, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = logging.getLogger(kind)


def train(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def new():
    model = torch.nn.Linear(16, 16)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def kempnerforge():
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[rank 0] INFO     %(message)s"))
    logging.getLogger("kempnerforge").addHandler(handler)
    logger = logging.getLogger("kempnerforge.metrics")
    logging.getLogger("kempnerforge").setLevel(logging.DEBUG)
    logging.getLogger("kempnerforge").propagate = False
    model, optimizer = new()
    if done:
        logger.info(f"Resumed from step {done}, {done * 1024:,} tokens seen")
    for step in range(done + 1, done + count + 1):
        loss = train(model, optimizer)
        if step % 2 == 0 or step == 1:
            logger.info(f"\033[2m[step {step}]\033[0m loss={loss:.4f} | lr=1.00e-03")


def torchtitan():
    logger = logging.getLogger()
    logger.setLevel(logging.INFO)
    logger.handlers.clear()
    logger.addHandler(logging.StreamHandler(sys.stdout))
    model, optimizer = new()
    logger.info(f"Training starts at step {done + 1}")
    for step in range(done + 1, done + count + 1):
        loss = train(model, optimizer)
        logger.info(f"\033[31mstep: {step:2}  \033[32mloss: {loss:7.4f}  memory: 1GiB")


def printed():
    model, optimizer = new()
    for step in range(done + 1, done + count + 1):
        print("step:", step, "", f"loss: {train(model, optimizer):.4f}")


def told():
    import fp8verify

    model, optimizer = new()
    for step in range(done + 1, done + count + 1):
        train(model, optimizer)
        fp8verify.step(step)


def nothing():
    model, optimizer = new()
    for _ in range(count):
        train(model, optimizer)


def dry_run():
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    model, optimizer = new()
    model(torch.ones(4, 16)).square().mean().backward()  # as OLMo-core's trainer.py
    optimizer.zero_grad()
    _init_optim_state(optimizer)
    for _ in range(count):
        train(model, optimizer)


def folds():
    for fold in range(2):
        model, optimizer = new()
        for step in range(1, count + 1):
            loss = train(model, optimizer)
            print(f"fold {fold} [step {step}] loss={loss:.4f}")


def gan():
    (generator, first), (critic, second) = new(), new()
    for _ in range(count):
        for _ in range(3):
            train(critic, second)
        train(generator, first)


def ema():
    model, optimizer = new()
    shadow = copy.deepcopy(model)
    for step in range(done + 1, done + count + 1):
        loss = train(model, optimizer)
        with torch.no_grad():
            for ours, theirs in zip(shadow.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
            shadow(torch.ones(4, 16))
        print(f"[step {step}] loss={loss:.4f}")


vars()[kind]()
