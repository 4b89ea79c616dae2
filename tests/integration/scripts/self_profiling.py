"""A training loop that profiles itself: self_profiling.py WHEN TRACE [STEPS DONE BEFORE].

A window of 4-6 is ours. kempnerforge profiles as its `[profiling]` section with steps 5 to 8 does
(kempnerforge/profiling/profiler.py), torchtitan round after round, a folder for each
(torchtitan/tools/profiling.py); TRACE is then a folder.
"""

import sys
from pathlib import Path

import torch
from torch.profiler import (
    ProfilerActivity,
    profile,
    schedule,
    tensorboard_trace_handler,
)

SPANS = {
    "during": (5, 6), "in-our-warm-up": (3, 3), "before": (3, 5), "before-and-done": (1, 2),
    "after": (8, 9),
}  # fmt: skip
SCHEDULES = {
    "warming-up": {"wait": 1, "warmup": 3, "active": 2, "repeat": 1},
    "kempnerforge": {"wait": 4, "warmup": 1, "active": 3, "repeat": 1},
    "torchtitan": {"wait": 3, "warmup": 2, "active": 1},
}
when, trace = sys.argv[1], sys.argv[2]
done = int(sys.argv[3]) if len(sys.argv) > 3 else 0
first, last = SPANS.get(when, (0, 0))


def write(profiler):
    target = Path(trace)
    if when == "torchtitan":
        target = target / f"iteration_{profiler.step_num}" / "rank0_trace.json"
        target.parent.mkdir(parents=True)
    profiler.export_chrome_trace(str(target))


options = {"activities": [ProfilerActivity.CPU]}
if when in SCHEDULES:
    handler = tensorboard_trace_handler(trace) if when == "kempnerforge" else write
    options |= {"schedule": schedule(**SCHEDULES[when]), "on_trace_ready": handler}
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
profiler = profile(**options)
if when in SCHEDULES:
    profiler.start()
    profiler.step_num = done
for step in range(done + 1, done + (11 if when == "warming-up" or first else 17)):
    if step == first:
        profiler.start()
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if when in SCHEDULES:
        profiler.step()
    if step == last:
        profiler.stop()
        write(profiler)
    print(f"step {step} loss {loss.item():.8f}", flush=True)
if when in SCHEDULES:
    profiler.stop()
