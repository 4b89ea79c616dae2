"""A small model of torchao's emulated Float8Linear, with faults of its numbers to choose from."""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

parser = argparse.ArgumentParser()
parser.add_argument("--recipe", default="tensorwise")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--fault", choices=["weight", "gradient", "inf"])
parser.add_argument("--fault-step", type=int, default=5)
parser.add_argument("--clip", type=float)
parser.add_argument("--compile", action="store_true")
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


def main():
    args = parser.parse_args()
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(LAYERS))
    model = nn.ModuleDict({"layers": blocks}).to(torch.bfloat16)
    config = Float8LinearConfig.from_recipe_name(args.recipe)
    object.__setattr__(config, "emulate", True)
    convert_to_float8_training(model, config=config)
    if args.fault == "weight":
        with torch.no_grad():
            blocks[FAULTY].down.weight[0, 0] = 1e3 * blocks[FAULTY].down.weight.abs().mean()
    for block in blocks if args.compile else ():
        block.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
    for step in range(1, args.steps + 1):
        x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.bfloat16, requires_grad=True)
        now = step == args.fault_step
        blocks[FAULTY].faulty_gradient = now and args.fault == "gradient"
        loss = 0
        for number, block in enumerate(blocks):
            given = x
            if now and args.fault == "inf" and number == FAULTY:
                given = x.clone()
                given[1, 3, 5] = float("inf")
            if args.checkpoint:
                out = checkpoint(block, given, use_reentrant=args.checkpoint == "reentrant")
            else:
                out = block(given)
            loss = loss + out.float().square().mean()
        loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        model.zero_grad()
        print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
