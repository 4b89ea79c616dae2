"""Loops in which torch.compile sees more than a model's forward pass: `compiled.py CASE [full]`."""

import sys

import torch
from torch import nn

CASE, FULL = sys.argv[1], "full" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
x = torch.ones(4, 16)


class Plain(torch.optim.Optimizer):
    """An optimizer whose step can be traced whole, as those of many packages."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * group["lr"])


def compiled(function):
    # With autograd's graphs, the backward pass is compiled when the first one begins.
    backend = "aot_eager" if CASE == "late_backward" else "eager"
    return torch.compile(function, backend=backend, fullgraph=FULL)


if "torchao" in sys.argv:
    import torchao.float8  # noqa: F401
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # its thread ends at any time


kind = Plain if CASE == "traced_optimizer" else torch.optim.Adam
optimizer = kind(
    model.parameters(), lr=0.01, **({"fused": True} if CASE == "fused_step" else {})
)
if CASE == "fused_step":  # as torchtune does
    optimizer.step = torch.compile(optimizer.step, backend="eager")
scaler = torch.amp.GradScaler("cpu")


def forward(batch):
    return model(batch).sum()


if CASE == "builds_modules":

    def forward(batch):  # as transformers' `self.layers[:n]`
        for layer in nn.ModuleList(model[:2]):
            batch = layer(batch)
        return nn.Sequential(model[2])(batch).sum()


if CASE == "names_ranges":

    def forward(batch):
        with torch.profiler.record_function("mine"):
            return model(batch).sum()


def train():
    optimizer.zero_grad()
    if CASE == "scaler":
        scaler.scale(forward(x)).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        forward(x).backward()
        optimizer.step()


def update():
    optimizer.step()


if CASE in ("train_step", "late_backward", "scaler"):
    train = compiled(train)
elif CASE in ("optimizer", "traced_optimizer"):
    optimizer_step = compiled(update)

    def train():
        optimizer.zero_grad()
        forward(x).backward()
        optimizer_step()

elif CASE == "module":
    model = compiled(model)
else:
    forward = compiled(forward)

for _ in range(8):
    train()
print(forward(x).item())
