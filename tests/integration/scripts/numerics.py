"""Trainings on torchao's emulated Float8Linear: faults of its numbers, or ways to train, to choose.

A way trains a model whose layers are shared: accumulate, scaler, clip, clip-value, optimizers,
lora, evaluate, foreach-off, plain, raise, interrupt, exit, or several of them, joined by +.
"""

import argparse
import hashlib
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

parser = argparse.ArgumentParser()
parser.add_argument("--way", default="")
parser.add_argument("--recipe", default="tensorwise")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--fault", choices=["weight", "gradient", "inf"])
parser.add_argument("--fault-step", type=int, default=5)
parser.add_argument("--clip", type=float)
parser.add_argument("--compile", nargs="?", const="eager")
parser.add_argument("--checkpoint", choices=["reentrant", "not reentrant"])
DIM, LAYERS, BATCH, LENGTH, FAULTY = 128, 5, 4, 32, 2


class OneSampleAboveAll(torch.autograd.Function):
    """Multiplies the gradient of the first sample."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        gradient = gradient.clone()
        gradient[0] *= 1e12
        return gradient


class Block(nn.Module):
    """A gated MLP that its residual leaves out, so that a fault stays where it was sown."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(DIM)
        self.up = nn.Linear(DIM, 2 * DIM, bias=False)
        self.down = nn.Linear(2 * DIM, DIM, bias=False)
        self.faulty_gradient = False

    def forward(self, x):
        inner = nn.functional.silu(self.up(self.norm(x)))
        out = self.down(inner)
        if self.faulty_gradient:
            out = OneSampleAboveAll.apply(out)
        return x.detach() + out


class Blocks(nn.Module):
    """Blocks whose losses are added up, in BF16."""

    def __init__(self, args):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS)).to(torch.bfloat16)
        self.args = args

    def loss(self, goes_wrong):
        x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.bfloat16, requires_grad=True)
        self.layers[FAULTY].faulty_gradient = (
            goes_wrong and self.args.fault == "gradient"
        )
        loss = 0
        for number, block in enumerate(self.layers):
            given = x
            if goes_wrong and self.args.fault == "inf" and number == FAULTY:
                given = x.clone()
                given[1, 3, 5] = float("inf")
            if how := self.args.checkpoint:
                out = checkpoint(block, given, use_reentrant=how == "reentrant")
            else:
                out = block(given)
            loss = loss + out.float().square().mean()
        return loss


class Adapted(nn.Module):
    """A frozen layer with trained ones beside it, as LoRA has them."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(DIM, 16, bias=False)
        self.up = nn.Linear(16, DIM, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Shared(nn.Module):
    """Two blocks that share a layer, and a head whose weight is that layer's, too."""

    def __init__(self, way):
        super().__init__()
        self.shared = nn.Linear(DIM, DIM)
        self.blocks = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))
        if "lora" in way:
            self.blocks = nn.ModuleList(map(Adapted, self.blocks))
        self.head = nn.Linear(DIM, DIM, bias=False)
        self.head.weight = self.shared.weight
        self.way = way

    def forward(self, x):
        for block in self.blocks:
            x = x + self.shared(torch.relu(block(nn.functional.dropout(x, 0.1))))
        return self.head(x)

    def loss(self, goes_wrong):
        x = torch.randn(32, DIM)
        if "evaluate" in self.way:
            with torch.inference_mode():
                self(x)
        loss = (self(x) - x.square()).square().mean()
        if goes_wrong and "raise" in self.way:
            raise RuntimeError("the training's own error")
        if goes_wrong and "interrupt" in self.way:
            raise KeyboardInterrupt
        if goes_wrong and "exit" in self.way:
            sys.exit(7)
        return loss


def main():
    args = parser.parse_args()
    way = args.way.split("+")
    torch.manual_seed(0)
    model = Shared(way) if args.way else Blocks(args)
    config = Float8LinearConfig.from_recipe_name(args.recipe)
    object.__setattr__(config, "emulate", True)
    convert_to_float8_training(model, config=config)
    if args.fault == "weight":
        weight = model.layers[FAULTY].down.weight
        with torch.no_grad():
            weight[0, 0] = 1e3 * weight.abs().mean()
    for module in ([model] if args.way else model.layers) if args.compile else ():
        module.compile(backend=args.compile)
    trained = [p for p in model.parameters() if p.requires_grad]
    half = len(trained) // 2 if "optimizers" in way else 0
    foreach = False if "foreach-off" in way else None
    kind, rate = (torch.optim.AdamW, 1e-2) if args.way else (torch.optim.SGD, 1e-30)
    optimizers = [kind(trained[half:], lr=rate, foreach=foreach)]
    if half:
        optimizers.append(torch.optim.SGD(trained[:half], lr=rate))
    scaler = torch.amp.GradScaler("cpu", enabled="scaler" in way, init_scale=1024.0)
    clip = args.clip or (0.1 if "clip" in way else None)
    for step in range(1, args.steps + 1):
        for _ in range(3 if "accumulate" in way else 1):
            loss = model.loss(goes_wrong=step == args.fault_step)
            scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        if "clip-value" in way:
            nn.utils.clip_grad_value_(trained, 0.01)
        if clip:
            nn.utils.clip_grad_norm_(trained, clip)
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        print(f"step {step} loss {loss.item()}", flush=True)
    weights = b"".join(p.detach().float().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(weights).hexdigest(), torch.rand(1).item())


if __name__ == "__main__":
    main()
