"""huggingface/pytorch-image-models train.py at aa4b5850c154 (Apache-2.0): NativeScaler, EMA, AGC.

The loop of `train_one_epoch` there and of timm/utils/cuda.py: the scaler is called with the
optimizer, the last batches of an epoch are accumulated over fewer, lines go through logging. Two
updates are skipped for an overflow, as at the start of a run in half precision.
"""

import copy
import logging

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(message)s")
logger = logging.getLogger("train")


class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**8)

    def __call__(self, loss, optimizer, parameters, need_update):
        self._scaler.scale(loss).backward(create_graph=False)
        if need_update:
            self._scaler.unscale_(optimizer)
            adaptive_clip_grad(parameters, 0.01)
            self._scaler.step(optimizer)
            self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()


def adaptive_clip_grad(parameters, clip_factor):
    for p in parameters:
        limit = p.detach().norm().clamp_(min=1e-3) * clip_factor
        norm = p.grad.detach().norm()
        p.grad.detach().copy_(
            torch.where(norm < limit, p.grad, p.grad * (limit / norm))
        )


def train_one_epoch(epoch, model, ema, loader, optimizer, loss_scaler):
    model.train()
    accum_steps = 2
    last_accum_steps = len(loader) % accum_steps
    updates_per_epoch = (len(loader) + accum_steps - 1) // accum_steps
    num_updates = epoch * updates_per_epoch
    optimizer.zero_grad()
    for batch_idx, (images, target) in enumerate(loader):
        last_batch = batch_idx == len(loader) - 1
        need_update = last_batch or (batch_idx + 1) % accum_steps == 0
        if batch_idx >= len(loader) - last_accum_steps:
            accum_steps = last_accum_steps
        with torch.amp.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), target) / accum_steps
        if num_updates in (1, 4):
            loss = loss * float("inf")
        loss_scaler(loss, optimizer, list(model.parameters()), need_update)
        if not need_update:
            continue
        num_updates += 1
        optimizer.zero_grad()
        with torch.no_grad():
            for average, p in zip(
                ema.state_dict().values(), model.state_dict().values()
            ):
                average.lerp_(p, 0.002)
        scale = loss_scaler.state_dict()["scale"]
        lr = sum(group["lr"] for group in optimizer.param_groups) / len(
            optimizer.param_groups
        )
        update = f"[{batch_idx // 2:>4d}/{updates_per_epoch}]"
        logger.info(
            f"Train: {epoch} {update}  Loss: {loss.item():#.3g}  LR: {lr:.3e}  {scale}"
        )


torch.manual_seed(42)
data = torch.utils.data.TensorDataset(torch.randn(80, 32), torch.arange(80) % 10)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
ema = copy.deepcopy(model).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
loss_scaler = NativeScaler()
for epoch in range(2):
    loader = torch.utils.data.DataLoader(data, 16, shuffle=True)
    train_one_epoch(epoch, model, ema, loader, optimizer, loss_scaler)
    torch.save(
        {"state_dict_ema": ema.state_dict(), "epoch": epoch}, f"checkpoint-{epoch}.pt"
    )
