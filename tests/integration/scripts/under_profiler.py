"""A training on the CPU whose torch says that it has a GPU, and tells `tests.fake_profilers`."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=9)
parser.add_argument("--exit", type=int, default=0)
parser.add_argument("--kill-at", type=int)
parser.add_argument("--terminate-at", type=int)
parser.add_argument("--apart", action="store_true")
args = parser.parse_args()
RANK, WORLD = (
    int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))
)


def tell(call, **more):
    event = {"call": call, "ns": time.monotonic_ns(), "pid": os.getpid(), **more}
    with Path(os.environ["FAKE_PROFILER"]).open("a") as file:
        file.write(json.dumps(event) + "\n")


def reduce_gradients(step):
    """Wait until all ranks are in this step."""
    here = Path(os.environ["FAKE_PROFILER"]).parent
    (here / f"rank{RANK}.{step}").touch()
    while not all((here / f"rank{rank}.{step}").exists() for rank in range(WORLD)):
        time.sleep(0.001)


class EmitNvtx:
    def __init__(self, record_shapes=False):
        self.shapes = record_shapes

    def __enter__(self):
        tell("emit_nvtx", shapes=self.shapes)

    def __exit__(self, *_):
        tell("no_nvtx")


def range_start(name):
    range_start.last += 1
    tell("range_start", id=range_start.last, name=name)
    return range_start.last


range_start.last = 0
torch.cuda.is_available = lambda: True
torch.cuda.profiler.start = lambda: tell("cudaProfilerStart")
torch.cuda.profiler.stop = lambda: tell("cudaProfilerStop")
torch.cuda.nvtx.range_start = range_start
torch.cuda.nvtx.range_end = lambda number: tell("range_end", id=number)
torch.autograd.profiler.emit_nvtx = EmitNvtx
if roctx := sys.modules.get("_fp8verify_agent.profiling.capture_ranges"):

    class Roctx:
        def roctxProfilerResume(self, thread):  # noqa: N802
            tell("roctxProfilerResume", thread=thread.value)

        def roctxProfilerPause(self, thread):  # noqa: N802
            tell("roctxProfilerPause", thread=thread.value)

    roctx._roctx = Roctx

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, args.steps + 1):
    if step == args.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    tell("work", step=step)
    reduce_gradients(step)
    if args.apart and RANK:  # a rank whose optimizer is slow
        time.sleep(0.03)
        tell("work", step=step)
    model(torch.ones(2, 8)).sum().backward()
    if step == args.terminate_at:
        os.kill(os.getpid(), signal.SIGTERM)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}", flush=True)
sys.exit(args.exit)
