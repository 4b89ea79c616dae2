"""Trainings of many kinds on torchao's emulated Float8Linear; prints each loss bit for bit."""

import argparse
import hashlib
import sys

import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

parser = argparse.ArgumentParser()
parser.add_argument("way")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--compile")
parser.add_argument("--odd-step", type=int, default=5, help="the step that goes wrong")
DIM = 64


class Adapted(nn.Module):
    """A frozen layer with trained ones beside it, as LoRA has them."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(DIM, 16, bias=False)
        self.up = nn.Linear(16, DIM, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Model(nn.Module):
    """Two blocks that share a layer, and a head whose weight is that layer's, too."""

    def __init__(self, adapted):
        super().__init__()
        self.shared = nn.Linear(DIM, DIM)
        self.blocks = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))
        if adapted:
            self.blocks = nn.ModuleList(map(Adapted, self.blocks))
        self.head = nn.Linear(DIM, DIM, bias=False)
        self.head.weight = self.shared.weight

    def forward(self, x):
        for block in self.blocks:
            x = x + self.shared(torch.relu(block(nn.functional.dropout(x, 0.1))))
        return self.head(x)


def built(way, backend):
    model = Model("lora" in way)
    config = Float8LinearConfig.from_recipe_name("tensorwise")
    object.__setattr__(config, "emulate", True)
    convert_to_float8_training(model, config=config)
    if backend:
        model.compile(backend=backend)
    return model


def optimizers_of(way, trained):
    half = len(trained) // 2 if "optimizers" in way else len(trained)
    foreach = False if "foreach-off" in way else None
    yield torch.optim.AdamW(trained[:half], lr=1e-2, foreach=foreach)
    if "optimizers" in way:
        yield torch.optim.SGD(trained[half:], lr=1e-2)


def loss_of(model, way, goes_wrong):
    x = torch.randn(32, DIM)
    if "evaluate" in way:
        with torch.inference_mode():
            model(x)
    loss = (model(x) - x.square()).square().mean()
    if goes_wrong and "raise" in way:
        raise RuntimeError("the training's own error")
    if goes_wrong and "interrupt" in way:
        raise KeyboardInterrupt
    if goes_wrong and "exit" in way:
        sys.exit(7)
    return loss


def update(way, trained, optimizers, scaler):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    if "clip-value" in way:
        nn.utils.clip_grad_value_(trained, 0.01)
    if "clip" in way:
        nn.utils.clip_grad_norm_(trained, max_norm=0.1)
    for optimizer in optimizers:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()


def main():
    args = parser.parse_args()
    way = args.way.split("+")
    torch.manual_seed(0)
    model = built(way, args.compile)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizers = list(optimizers_of(way, trained))
    scaler = torch.amp.GradScaler("cpu", enabled="scaler" in way, init_scale=1024.0)
    for step in range(1, args.steps + 1):
        for _ in range(3 if "accumulate" in way else 1):
            loss = loss_of(model, way, step == args.odd_step)
            scaler.scale(loss).backward()
        update(way, trained, optimizers, scaler)
        print(f"step {step} loss {loss.item().hex()}", flush=True)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(weights).hexdigest(), torch.rand(1).item().hex())


if __name__ == "__main__":
    main()
