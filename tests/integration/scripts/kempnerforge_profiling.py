"""Profile as KempnerForge does (kempnerforge/profiling/profiler.py), on a model of one layer.

Its `[profiling]` sets `start_step`, `end_step` and `trace_dir`: the profiler waits until the step
before `start_step`, warms up in that one, and records up to `end_step`, inclusive; TensorBoard's
handler exports the trace.
"""

import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from fp8verify.record.settings_file import read_toml

settings = read_toml(Path(sys.argv[1]))["profiling"]
wait = max(0, settings["start_step"] - 1)
active = settings["end_step"] - settings["start_step"]
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=wait, warmup=1, active=active, repeat=1),
    on_trace_ready=tensorboard_trace_handler(settings["trace_dir"]),
    record_shapes=True,
    profile_memory=True,
) as profiler:
    for step in range(1, 17):
        loss = model(torch.randn(4, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
        print(f"[step {step}] loss={loss.item():.4f}", flush=True)
