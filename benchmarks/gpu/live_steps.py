"""Measure on a GPU what watching a run costs, and check what it finds.

    TOKENS=32768 python benchmarks/gpu/live_steps.py measure   # blocks with and without a watch
    CROWDED=1 TOKENS=32768 python benchmarks/gpu/live_steps.py measure   # with a million objects
    python benchmarks/gpu/live_steps.py train N   # for `fp8verify run`

`train` profiles itself with PROFILE=1. `measure` prints one line of JSON and exits with 1 if a
limit is not kept. A step must be so long that the GPU and not the host sets its time: with 32,768
tokens it takes about 14 ms on an H200.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
from contextlib import nullcontext, suppress
from statistics import mean, median, stdev
from typing import Any

import torch
from torch import nn

DIM, TOKENS, LAYERS = 4096, int(os.environ.get("TOKENS", "8192")), 4
BLOCK, EVERY, WINDOW = 90, 40, 2
ROUNDS = 24  # each a block with a watch and one without, whose order changes
NEAR = 3  # steps around a window that the profiler may touch
MAX_SHIFT, MAX_WINDOW_S = 0.005, 0.15


def build() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """Return a compiled FP8 model, its optimizer and a batch."""
    from torchao.float8 import convert_to_float8_training

    local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    layers = [nn.Linear(DIM, DIM, bias=False) for _ in range(LAYERS)]
    model: Any = nn.Sequential(*layers).to("cuda", torch.bfloat16)
    convert_to_float8_training(model)
    if ranks > 1:
        # NCCL refuses ranks that share a GPU.
        torch.distributed.init_process_group(
            "nccl" if ranks <= torch.cuda.device_count() else "gloo"
        )
        model = nn.parallel.DistributedDataParallel(model, device_ids=[local])
    model.compile()
    x = torch.randn(TOKENS, DIM, device="cuda", dtype=torch.bfloat16)
    return model, torch.optim.SGD(model.parameters(), lr=1e-4), x


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    """Train one step and return the time at its end."""
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    return time.perf_counter()


def block(training: Any, lines: list[Any] | None) -> list[float]:
    """Return the seconds of each step of a block, watched if `lines` takes what is found."""
    import fp8verify

    watch = (
        nullcontext()
        if lines is None
        else fp8verify.watch(EVERY, window=WINDOW, sinks=lines.append)
    )
    with watch:
        ends = [time.perf_counter()] + [step(*training) for _ in range(BLOCK)]
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


def crowd() -> list[Any]:
    """Return a million objects, and import the frameworks that are installed."""
    for framework in ("transformers.trainer", "lightning.pytorch", "deepspeed"):
        with suppress(ImportError):
            importlib.import_module(framework)
    return [[None] for _ in range(1_000_000)]


def measure() -> int:
    """Compare blocks, and return the exit code."""
    crowded = crowd() if os.environ.get("CROWDED") else []
    training = build()
    for _ in range(30):
        step(*training)
    block(training, [])  # CUPTI starts once in a process
    shifts: list[float] = []
    costs: list[float] = []
    plain: list[float] = []
    lines: list[Any] = []
    for turn in range(ROUNDS):
        taken = {
            watched: block(training, lines if watched else None)
            for watched in order(turn)
        }
        between, extra = split(taken[True])
        usual = [
            seconds
            for at, seconds in enumerate(taken[False], 1)
            if not near_a_window(at)
        ]
        shifts.append(median(between) / median(usual) - 1)
        costs += extra
        plain += usual
    found = {
        "step_ms": round(median(plain) * 1e3, 3),
        "shift_between_windows": round(mean(shifts), 5),
        "standard_error": round(stdev(shifts) / len(shifts) ** 0.5, 5),
        "window_s_median": round(median(costs), 4),
        "window_s_max": round(max(costs), 4),
        "windows": len(lines),
        "other_objects": len(crowded),
        "verdicts": sorted({line["verdict"] for line in lines}),
        "line": lines[0] if lines else None,
    }
    print(json.dumps(found))
    kept = abs(mean(shifts)) <= MAX_SHIFT and median(costs) <= MAX_WINDOW_S
    return 0 if kept and found["verdicts"] == ["ACTIVE"] else 1


def order(turn: int) -> tuple[bool, bool]:
    """Return in which order a round has its blocks: clocks drift."""
    return (True, False) if turn % 2 else (False, True)


def near_a_window(at: int) -> bool:
    """Return whether the profiler may touch a step of a watched block."""
    begins = range(EVERY, BLOCK, EVERY)
    return at >= BLOCK - 1 or any(b - NEAR <= at < b + WINDOW + NEAR for b in begins)


def split(watched: list[float]) -> tuple[list[float], list[float]]:
    """Return the steps between windows, and what each window took more than such steps."""
    between = [
        seconds for at, seconds in enumerate(watched, 1) if not near_a_window(at)
    ]
    extra = []
    for begin in range(EVERY, BLOCK, EVERY):
        around = watched[begin - NEAR - 1 : begin + WINDOW + NEAR - 1]
        extra.append(sum(around) - median(between) * len(around))
    return between, extra


def train(steps: int) -> None:
    """Train, with a profiler of its own over the steps 8-10 if PROFILE is set."""
    training = build()
    schedule = torch.profiler.schedule(wait=6, warmup=1, active=3, repeat=1)
    theirs = torch.profiler.profile(
        schedule=schedule,
        on_trace_ready=torch.profiler.tensorboard_trace_handler("theirs"),
        record_shapes=True,
    )
    with theirs if os.environ.get("PROFILE") else nullcontext():
        for number in range(1, steps + 1):
            step(*training)
            if os.environ.get("PROFILE"):
                theirs.step()
            print(f"step {number}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        sys.exit(measure())
    train(int(sys.argv[2]))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
