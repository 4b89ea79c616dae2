"""karpathy/nanochat scripts/base_train.py at 92d63d4e8bb4 (MIT): a Muon of its own, gc frozen.

The loop of that file: the model is built on the meta device, steps of the optimizer call compiled
functions, the last iteration only evaluates and saves, and the garbage collector is switched off
after the first step.
"""

import gc
import json
import os

import torch
from torch import nn
from torch.nn import functional

num_iterations, grad_accum_steps, eval_every = 8, 2, 4


@torch.compile(dynamic=False, fullgraph=True, backend="eager")
def adamw_step_fused(p, grad, first, second, lr):
    first.lerp_(grad, 0.2)
    second.lerp_(grad.square(), 0.05)
    p.sub_(first / (second.sqrt() + 1e-10) * lr)


@torch.compile(dynamic=False, fullgraph=True, backend="eager")
def muon_step_fused(p, grad, momentum_buffer, momentum, lr):
    momentum_buffer.lerp_(grad, 1 - momentum)
    g = grad.lerp(momentum_buffer, momentum)
    g = g / (g.norm() * 1.02 + 1e-6)
    for _ in range(3):
        g = 1.5 * g - 0.5 * g @ g.mT @ g
    p.sub_(g * lr)


class MuonAdamW(torch.optim.Optimizer):
    def __init__(self, groups):
        super().__init__(groups, defaults={})
        self.lr, self.momentum = torch.tensor(0.0), torch.tensor(0.0)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            self.lr.fill_(group["lr"])
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["first"], state["second"] = (
                        torch.zeros_like(p),
                        torch.zeros_like(p),
                    )
                if group["kind"] == "adamw":
                    adamw_step_fused(
                        p, p.grad, state["first"], state["second"], self.lr
                    )
                else:
                    self.momentum.fill_(group["momentum"])
                    muon_step_fused(p, p.grad, state["first"], self.momentum, self.lr)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(64, 32)
        self.c_fc, self.c_proj = (
            nn.Linear(32, 64, bias=False),
            nn.Linear(64, 32, bias=False),
        )
        self.lm_head = nn.Linear(32, 64, bias=False)

    def init_weights(self):
        for p in self.parameters():
            nn.init.normal_(p, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx)
        x = x + self.c_proj(functional.relu(self.c_fc(x)).square())
        return functional.cross_entropy(
            self.lm_head(x).flatten(0, 1), targets.flatten()
        )

    def setup_optimizer(self):
        groups = [
            {"kind": "adamw", "params": list(self.lm_head.parameters()), "lr": 0.004},
            {"kind": "adamw", "params": list(self.wte.parameters()), "lr": 0.2},
            {
                "kind": "muon",
                "params": [self.c_fc.weight, self.c_proj.weight],
                "lr": 0.02,
            },
        ]
        groups[2]["momentum"] = 0.95
        optimizer = MuonAdamW(groups)
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        return optimizer


def loader():
    position = 0
    while True:
        rows = torch.randint(64, (8, 17))
        position += 1
        yield (
            rows[:, :-1].contiguous(),
            rows[:, 1:].contiguous(),
            {"position": position},
        )


torch.manual_seed(42)
with torch.device("meta"):
    model = GPT()
model.to_empty(device="cpu")
model.init_weights()
orig_model = model
model = torch.compile(model, dynamic=False, backend="eager")
optimizer = orig_model.setup_optimizer()
train_loader = loader()
x, y, loader_state = next(train_loader)
step, smooth_train_loss = 0, 0.0
while True:
    last_step = step == num_iterations
    if last_step or step % eval_every == 0:
        model.eval()
        with torch.no_grad():
            val = sum(model(*next(loader())[:2]).item() for _ in range(2)) / 2
        print(f"Step {step:05d} | Validation: {val:.6f}", flush=True)
        model.train()
    if last_step:
        os.makedirs("base_checkpoints", exist_ok=True)
        torch.save(orig_model.state_dict(), f"base_checkpoints/model_{step:06d}.pt")
        torch.save(optimizer.state_dict(), f"base_checkpoints/optim_{step:06d}.pt")
        with open(f"base_checkpoints/meta_{step:06d}.json", "w") as file:
            json.dump({"step": step, "loader": loader_state}, file)
        break
    for _ in range(grad_accum_steps):
        loss = model(x, y)
        train_loss = loss.detach()
        (loss / grad_accum_steps).backward()
        x, y, loader_state = next(train_loader)
    lrm = min(1.0, (step + 1) / 3)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * lrm
        if group["kind"] == "muon":
            group["momentum"] = 0.85 + 0.01 * step
    optimizer.step()
    model.zero_grad(set_to_none=True)
    smooth_train_loss = 0.9 * smooth_train_loss + 0.1 * train_loss.item()
    debiased = smooth_train_loss / (1 - 0.9 ** (step + 1))
    at = f"step {step:05d}/{num_iterations:05d}"
    print(f"{at} | loss: {debiased:.6f} | lrm: {lrm:.2f}", flush=True)
    if step == 0:
        gc.collect()
        gc.freeze()
        gc.disable()
    step += 1
