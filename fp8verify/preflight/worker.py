"""Time linear layers in BF16 and in torchao's FP8; run by its path, in the run's Python.

Reads one JSON object from standard input: {"shapes": [[M, K, N], …], "recipes": [NAME, …],
"compile": bool}, and "device": "cpu" in tests. Writes one a line: {"gpu", "torch", "torchao"}
first, then for each shape {"rounds": {"bf16" or a recipe: [µs of a step, …]}, "errors": {…}}. A
step is the forward and the backward of one layer: fprop, dgrad, wgrad and, in FP8, all casts.
Standard library, torch and torchao only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

BF16 = "bf16"
WARM_UP = 3  # compiles, and chooses kernels
ROUNDS = 7
STEPS = 10
# The GPU sleeps some 10 ms while the CPU queues a round, so launching costs nothing measured.
SLEEP_CYCLES = 20_000_000


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    device = request.get("device", "cuda")
    if device == "cuda" and not torch.cuda.is_available():
        say({"error": "torch sees no GPU"})
        return
    import torchao

    gpu = "no GPU"
    if device == "cuda":
        gpu = torch.cuda.get_device_name()
    say(
        {
            "gpu": gpu,
            "torch": torch.__version__,
            "torchao": torchao.__version__,
        }
    )
    for shape in request["shapes"]:
        torch._dynamo.reset()
        say(measure(shape, request["recipes"], device, compiled=request["compile"]))


def say(answer: dict[str, Any]) -> None:
    """Write one line; torch and torchao may print to standard output too."""
    print(f"fp8verify: {json.dumps(answer)}", flush=True)


def measure(
    shape: list[int],
    recipes: list[str],
    device: str,
    *,
    compiled: bool,
) -> dict[str, Any]:
    """Return the times of one layer by precision, and errors by precision."""
    steps: dict[str, Callable[[], None]] = {}
    errors = {}
    for name in (BF16, *recipes):
        try:
            step = prepare(name, shape, device, compiled=compiled)
            for _ in range(WARM_UP):
                step()
            steps[name] = step
        except Exception as error:  # noqa: PERF203 - a recipe that fails leaves the others
            errors[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for (
            name,
            step,
        ) in steps.items():  # in turn, so a GPU that warms up slows all of them
            rounds[name].append(timed_us(step, device))
    return {"rounds": rounds, "errors": errors}


def prepare(
    name: str,
    shape: list[int],
    device: str,
    *,
    compiled: bool,
) -> Callable[[], None]:
    """Return one step of a layer of K inputs and N outputs that reads M tokens."""
    m, k, n = shape
    layer: nn.Module = nn.Linear(
        k,
        n,
        bias=False,
        device=device,
        dtype=torch.bfloat16,
    )
    if name != BF16:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = replace(
            Float8LinearConfig.from_recipe_name(name), emulate=device == "cpu"
        )
        layer = convert_to_float8_training(nn.Sequential(layer), config=config)
    if compiled:
        layer = torch.compile(layer)
    inputs = torch.randn(
        m,
        k,
        device=device,
        dtype=torch.bfloat16,
        requires_grad=True,
    )
    gradient = torch.randn(
        m,
        n,
        device=device,
        dtype=torch.bfloat16,
    )

    def step() -> None:
        layer(inputs).backward(gradient)
        inputs.grad = None
        layer.zero_grad(set_to_none=True)

    return step


def timed_us(step: Callable[[], None], device: str) -> float:
    """Return the µs of one step: those of the GPU, if there is one."""
    if device == "cpu":
        begin = time.perf_counter()
        step()
        return (time.perf_counter() - begin) * 1e6
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    start.record()
    for _ in range(STEPS):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / STEPS


if __name__ == "__main__":
    main()
