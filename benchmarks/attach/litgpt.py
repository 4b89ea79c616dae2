"""Lightning-AI/litgpt litgpt/pretrain.py at 26857050fe3f (Apache-2.0): Fabric, measured FLOPs.

The loops of `main`, `fit` and `validate` there on a model of three layers.
"""

from pathlib import Path

import lightning
import torch
from lightning.fabric.utilities.throughput import measure_flops
from torch import nn
from torch.nn import functional

accumulate, max_iters, interval, length, vocab = 2, 16, 4, 16, 64


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
        self.lm_head = nn.Linear(32, vocab)

    def forward(self, idx):
        hidden = self.wte(idx)
        return self.lm_head(hidden + self.mlp(hidden))


def cross_entropy(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(fabric, model, loader, max_iters):
    fabric.barrier()
    model.eval()
    losses = []
    for k, (batch,) in enumerate(loader):
        if k >= max_iters:
            break
        losses.append(cross_entropy(model(batch[:, :length]), batch[:, 1:]))
    model.train()
    fabric.barrier()
    return torch.stack(losses).mean()


def fit(fabric, state, train_loader, val_loader):
    model, optimizer = state["model"], state["optimizer"]
    validate(fabric, model, val_loader, max_iters=2)
    with torch.device("meta"):
        meta_model = GPT()
        x = torch.randint(0, 1, (4, length))
        flops = measure_flops(
            meta_model, lambda: meta_model(x), lambda y: cross_entropy(y, x)
        )
        fabric.print(f"Measured MFLOPs: {flops / 1e6:.2f}")
    for (batch,) in train_loader:
        if state["iter_num"] >= max_iters:
            break
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (state["iter_num"] + 1) / 4)
        state["iter_num"] += 1
        is_accumulating = state["iter_num"] % accumulate != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = cross_entropy(model(batch[:, :length]), batch[:, 1:])
            fabric.backward(loss / accumulate)
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            state["step_count"] += 1
            at = f"iter {state['iter_num']} step {state['step_count']}"
            fabric.print(f"Epoch 1 | {at} | loss train: {loss.item():.3f}")
        if not is_accumulating and state["step_count"] % interval == 0:
            val_loss = validate(fabric, model, val_loader, max_iters=2)
            fabric.print(f"iter {state['iter_num']}: val loss {val_loss.item():.4f}")
            fabric.save(
                Path("out", f"step-{state['step_count']:08d}.pt"), {"model": model}
            )


fabric = lightning.Fabric(accelerator="cpu", devices=1)
fabric.launch()
fabric.seed_everything(42, verbose=False)
with fabric.init_module():
    model = GPT()
model = fabric.setup(torch.compile(model, backend="eager"))
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
tokens = torch.utils.data.TensorDataset(torch.randint(0, vocab, (80, length + 1)))
loaders = fabric.setup_dataloaders(
    torch.utils.data.DataLoader(tokens, 4), torch.utils.data.DataLoader(tokens, 4)
)
fit(
    fabric,
    {"model": model, "optimizer": optimizer, "iter_num": 0, "step_count": 0},
    *loaders,
)
fabric.save(Path("out", "final.pt"), {"model": model})
