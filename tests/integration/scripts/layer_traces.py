"""Record a training step of small models on the CPU, their layers named, one trace each."""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from fp8verify.agent.instruments import name_layers

TOKENS = 7


class Stack(nn.Module):
    """Three linears of different sizes, two of them perhaps recomputed, and a plain product."""

    def __init__(self, checkpointing=None):
        super().__init__()
        self.checkpointing = checkpointing
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 48, bias=False)
        self.head = nn.Linear(48, 64, bias=False)
        self.plain = nn.Parameter(torch.randn(64, 80))

    def body(self, x):
        return self.down(torch.relu(self.up(x)))

    def forward(self, x):
        if self.checkpointing is None:
            x = self.body(x)
        else:
            x = checkpoint(
                self.body, x, use_reentrant=self.checkpointing == "reentrant"
            )
        return self.head(x) @ self.plain


class Adapter(nn.Linear):
    """A frozen linear with two small ones inside, as LoRA's."""

    def __init__(self):
        super().__init__(16, 32, bias=False)
        self.weight.requires_grad_(False)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 32, bias=False)

    def forward(self, x):
        x = x.to(torch.float32)
        return super().forward(x) + self.up(self.down(x.to(torch.float32)))


class Raises(nn.Linear):
    """A linear whose forward pass fails once it has multiplied."""

    def forward(self, x):
        super().forward(x)
        raise ValueError


class Rescued(nn.Module):
    """Goes on after a layer that raised."""

    def __init__(self):
        super().__init__()
        self.bad, self.good = Raises(16, 48), nn.Linear(16, 32, bias=False)
        self.plain = nn.Parameter(torch.randn(32, 80))

    def forward(self, x):
        try:
            self.bad(x)
        except ValueError:
            return self.good(x) @ self.plain


def float8(model):
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    return convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))


MODELS = {
    "plain": Stack, "reentrant": lambda: Stack("reentrant"),
    "nonreentrant": lambda: Stack("nonreentrant"), "float8": lambda: float8(Stack()),
    "float8 reentrant": lambda: float8(Stack("reentrant")),
    "float8 nonreentrant": lambda: float8(Stack("nonreentrant")),
    "adapter": lambda: nn.Sequential(Adapter()), "rescued": Rescued,
}  # fmt: skip


def record(model, path):
    x = torch.randn(TOKENS, 16, requires_grad=True)

    def step():
        model(x).square().mean().backward()
        model.zero_grad()

    step()
    linears = [(name, module) for name, module in model.named_modules()]
    end = name_layers(
        [(name, module) for name, module in linears if isinstance(module, nn.Linear)]
    )
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for number in (1, 2):
            with record_function(f"ProfilerStep#{number}"):
                step()
    end()
    profiler.export_chrome_trace(str(path))


for name, make in MODELS.items():
    if name.startswith("float8") and not find_spec("torchao"):
        continue
    record(make(), Path(sys.argv[1], f"{name}.json"))
