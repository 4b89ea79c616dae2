"""karpathy/nanoGPT train.py at 3adf61e154c3 (MIT): memmap, accumulation, GradScaler, checkpoints.

The loop of that file on a model of three layers; `--compile` as there.
"""

import math
import os
import sys
import time
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn import functional

out_dir, eval_interval, eval_iters = "out", 4, 3
accumulation, batch_size, block_size, vocab = 4, 8, 16, 64
learning_rate, min_lr, warmup_iters, max_iters, grad_clip = 6e-4, 6e-5, 2, 8, 1.0
os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
ctx = nullcontext()  # as on a CPU there
tokens = np.random.default_rng(0).integers(0, vocab, 4096).astype(np.uint16)
for split in ("train", "val"):
    tokens.tofile(f"{split}.bin")


def get_batch(split):
    data = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - block_size, (batch_size,))
    rows = [
        torch.from_numpy(data[i : i + block_size + 1].astype(np.int64)) for i in starts
    ]
    whole = torch.stack(rows)
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.lm_head = nn.Linear(32, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        hidden = self.wte(idx)
        logits = self.lm_head(hidden + self.mlp(hidden))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        groups = [
            {"params": decay, "weight_decay": 0.1},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


model = GPT()
scaler = torch.amp.GradScaler("cpu", enabled=False)
optimizer = model.configure_optimizers()
if "--compile" in sys.argv:
    print("compiling the model...")
    model = torch.compile(model, backend="eager")


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            _, loss = model(*get_batch(split))
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


x, y = get_batch("train")
t0 = time.time()
iter_num = 0
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(
            f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}"
        )
        if iter_num > 0:
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            print(f"saving checkpoint to {out_dir}")
            torch.save(
                {**checkpoint, "iter_num": iter_num}, os.path.join(out_dir, "ckpt.pt")
            )
    for _ in range(accumulation):
        with ctx:
            logits, loss = model(x, y)
            loss = loss / accumulation
        x, y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    print(
        f"iter {iter_num}: loss {loss.item() * accumulation:.4f}, time {(t1 - t0) * 1000:.2f} ms"
    )
    t0 = t1
    iter_num += 1
    if iter_num > max_iters:
        break
