"""A training on FP8 copies of its weights: weight_copies.py sound|stale|one-stale|idle.

`stale` casts them in the first step alone, `one-stale` only that of the second layer; `idle` has a
learning rate of 1e-7. Products are emulated: the copies are what matters.
"""

import sys

import torch
from torch import nn

HOW, LARGEST = sys.argv[1], torch.finfo(torch.float8_e4m3fn).max


class Linear(nn.Linear):
    """Keeps an FP8 copy of its weight, as Transformer Engine does under `is_first_microbatch`."""

    def forward(self, x, first):
        if first or not hasattr(self, "weight_fp8"):
            self.inverse = self.weight.detach().abs().max() / LARGEST
            self.weight_fp8 = (self.weight.detach() / self.inverse).to(torch.float8_e4m3fn)
        copied = self.weight_fp8.to(x.dtype) * self.inverse
        return nn.functional.linear(x, copied + self.weight - self.weight.detach())


torch.manual_seed(0)
layers = nn.ModuleList(Linear(128, 128, bias=False) for _ in range(3))
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-7 if HOW == "idle" else 3e-3)
for step in range(8):
    x = torch.randn(32, 128)
    for number, layer in enumerate(layers):
        fresh = HOW in ("sound", "idle") or (HOW == "one-stale" and number != 1)
        x = layer(x, first=fresh or not step).relu()
    loss = x.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step + 1} loss {loss.item():.5f}")
