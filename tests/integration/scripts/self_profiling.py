"""A training loop that profiles itself; the argument says when. A window of 4-6 is ours."""

import sys

import torch

ORDERS = {
    "during": (5, 6),
    "in-our-warm-up": (3, 3),
    "before": (3, 5),
    "before-and-done": (1, 2),
    "after": (8, 9),
    "warming-up": None,
}
order, trace = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
schedule = torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU],
    schedule=torch.profiler.schedule(wait=1, warmup=3, active=2, repeat=1),
    on_trace_ready=lambda done: done.export_chrome_trace(trace),
)
if ORDERS[order] is None:
    schedule.start()
for step in range(1, 11):
    first, last = ORDERS[order] or (0, 0)
    if step == first:
        profiler.start()
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if ORDERS[order] is None:
        schedule.step()
    if step == last:
        profiler.stop()
        profiler.export_chrome_trace(trace)
    print(f"step {step} loss {loss.item():.8f}", flush=True)
