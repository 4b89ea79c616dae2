"""A training loop with switches for what real ones do; prints each loss.

`--before`, `--at STEP` and `--after` run code: before the model is built, at the beginning of a
step, and after the last.
"""

import argparse
import atexit
import os  # noqa: F401 - for the code that is given
import signal  # noqa: F401
import sys
import threading  # noqa: F401
import time  # noqa: F401

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--scaler-skips", type=int, nargs="*", default=())
parser.add_argument("--compile", choices=["model", "step", "train_step"])
parser.add_argument("--float8", choices=["tensorwise", "rowwise_with_gw_hp"])
parser.add_argument("--workers", choices=["fork", "spawn"])
parser.add_argument("--before", default="")
parser.add_argument(
    "--at", nargs=2, action="append", default=[], metavar=("STEP", "CODE")
)
parser.add_argument("--after", default="")
parser.add_argument("--two-optimizers", action="store_true")
parser.add_argument("--device", default="cpu")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((32,), index / 1000)


def batches(args):
    if args.workers:
        loader = torch.utils.data.DataLoader(
            Numbers(),
            batch_size=16,
            num_workers=1,
            multiprocessing_context=args.workers,
        )
        yield from loader
    while True:
        yield torch.randn(16, 32, device=args.device)


def build(args):
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 24))
    if args.float8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(args.float8)
        object.__setattr__(config, "emulate", True)
        convert_to_float8_training(
            model, config=config, module_filter_fn=lambda _, fqn: fqn == "0"
        )
    model = model.to(args.device)
    return torch.compile(model, backend="eager") if args.compile == "model" else model


def run_code(args, step):
    for at, code in args.at:
        if int(at) == step:
            exec(code, {**globals(), "step": step})


def main(args):
    torch.manual_seed(0)
    exec(args.before)
    atexit.register(
        lambda: print("goodbye from", sys.modules["__main__"].Numbers.__module__)
    )
    model = build(args)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3)]
    if args.two_optimizers:
        optimizers.append(torch.optim.SGD(model.parameters(), lr=1e-3))
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=4.0, enabled=bool(args.scaler_skips)
    )
    updates = [optimizer.step for optimizer in optimizers]
    if args.compile == "step":
        updates = [torch.compile(update, backend="eager") for update in updates]
    data = batches(args)

    def train_step(batch):
        loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        return loss

    if args.compile == "train_step":
        train_step = torch.compile(train_step, backend="eager")
    for step in range(1, args.steps + 1):
        run_code(args, step)
        for _ in range(args.accumulate):
            loss = train_step(next(data))
        if step in args.scaler_skips:
            next(model.parameters()).grad.fill_(float("inf"))
        if args.scaler_skips:
            scaler.step(optimizers[0])
            scaler.update()
        else:
            for update in updates:
                update()
        model.zero_grad()
        print(f"step {step} loss {loss.item():.8f}", flush=True)
    exec(args.after)
    print("random", torch.rand(1).item(), file=sys.stderr)


if __name__ == "__main__":
    main(parser.parse_args())
