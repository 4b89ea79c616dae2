"""Train a small MLP in FP8 through Hugging Face accelerate with its torchao backend.

    accelerate launch examples/train_accelerate.py
    fp8verify run --steps 5-7 examples/train_accelerate.py

What fp8verify should say: ACTIVE on a GPU of compute capability 8.9 or above, INACTIVE with
--mixed-precision bf16. accelerate leaves the first and the last linear layer in high precision.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import AORecipeKwargs
from torch import nn


def main() -> None:
    """Train on random features, printing the loss of each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixed-precision", choices=["bf16", "fp8"], default="fp8")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dim", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8192)
    args = parser.parse_args()
    torch.manual_seed(0)
    handlers = [AORecipeKwargs()] if args.mixed_precision == "fp8" else []
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision, kwargs_handlers=handlers
    )
    blocks = [
        nn.Sequential(nn.Linear(args.dim, args.dim, bias=False), nn.GELU())
        for _ in range(args.layers)
    ]
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    features = torch.randn(args.batch, args.dim, device=accelerator.device)
    for step in range(1, args.steps + 1):
        loss = (model(features) - features).float().square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step:3d} | loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
