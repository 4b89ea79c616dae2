"""pytorch/tutorials recipes_source/recipes/profiler_recipe.py at 13be508e9c33 (BSD-3-Clause).

Its section on long-running jobs, with a training step in the place of an inference: the script's
own profiler records two steps in four, again and again.
"""

import torch
from torch.profiler import ProfilerActivity, profile

torch.manual_seed(0)
layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def trace_handler(p):
    print(
        "events",
        sorted(e.key for e in p.key_averages() if e.key.startswith("aten::addmm")),
    )
    p.export_chrome_trace(f"trace_{p.step_num}.json")


with profile(
    activities=[ProfilerActivity.CPU],
    schedule=torch.profiler.schedule(wait=1, warmup=1, active=2),
    on_trace_ready=trace_handler,
) as p:
    for idx in range(8):
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{idx} {loss.item():.6f}")
        p.step()
