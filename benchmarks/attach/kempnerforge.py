"""KempnerInstitute/KempnerForge scripts/train.py at 5666d0d16153 (MIT): profiler, signals.

The loop of that file with `[profiling]` on: a handler for SIGTERM and SIGUSR1, a profiler with a
schedule that is advanced every step, a step that is left out if the loss is no number.
"""

import logging
import math
import signal
import sys

import torch
from torch import nn
from torch.nn import functional

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
logger = logging.getLogger("kempnerforge")
max_steps, grad_accum_steps, nan_at = 10, 2, 3


class ShutdownHandler:
    def __init__(self):
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._handle)

    def _handle(self, number, _):
        self.requested = True
        logger.warning(
            f"Received {signal.Signals(number).name} — requesting graceful shutdown"
        )


def build_profiler():
    def ready(prof):
        prof.export_chrome_trace("trace_rank0.json")

    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=6, warmup=1, active=2, repeat=1),
        on_trace_ready=ready,
        record_shapes=True,
    )


torch.manual_seed(0)
handler = ShutdownHandler()
model = nn.Sequential(
    nn.Embedding(64, 32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1.0, (step + 1) / 4)
)
prof = build_profiler()
model.train()
prof.start()
step = 0
while step < max_steps:
    total_loss = 0.0
    for _ in range(grad_accum_steps):
        input_ids, labels = torch.randint(0, 64, (4, 16)), torch.randint(0, 64, (4, 16))
        loss = functional.cross_entropy(
            model(input_ids).flatten(0, 1), labels.flatten()
        )
        (loss / grad_accum_steps).backward()
        total_loss += loss.item()
    avg_loss = math.nan if step == nan_at else total_loss / grad_accum_steps
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not math.isfinite(avg_loss):
        logger.warning(f"[step {step}] loss is {avg_loss}")
        optimizer.zero_grad()
        step += 1
        continue
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    step += 1
    logger.info(f"[step {step}] loss={avg_loss:.4f} grad_norm={grad_norm.item():.4f}")
    prof.step()
    if step % 5 == 0:
        torch.save(model.state_dict(), f"step_{step}.pt")
    if handler.requested:
        break
prof.stop()
logger.info(f"Training complete: {step} steps")
