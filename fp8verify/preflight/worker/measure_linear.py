"""Time linear layers amid their surroundings in BF16 and in FP8; run by its path.

Reads {"probes": [{"tokens", "k", "outputs", "role"}, …], "recipes": […], "traces": FOLDER} from
standard input and writes one JSON object a line: {"gpu", "torch", "torchao"} first, then for each
probe {"probe": its number, "rounds": {"bf16" or a recipe: [µs, …]}, "errors": {…}, "traces": {…},
"traced_steps"}. A time is that of one step: forward and backward, compiled. The precisions take
turns, so that the rounds of one number belong together. "device": "cpu", "emulate", "compile",
"rounds" and "round_ms" are for tests without a GPU. Standard library, torch and torchao only.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BF16 = "bf16"
WARM_UP = 4
ROUNDS = 10
ROUND_MS = 40.0
TRACED_STEPS = 3
# The GPU sleeps while the CPU queues a round, so that launching costs nothing measured: at first
# so many cycles a step, and twice as many whenever that was too short. More launches than its
# queue takes (1,024) would wait for the GPU.
SLEEP_CYCLES = 1_000_000
MOST_LAUNCHES = 400

Step = Callable[[], None]

# What computes the input of a layer, and what reads its outputs, by the role of the layer. There
# the compiler fuses casts with other work, or cannot: attention and GEMMs are closed to it.
SURROUNDINGS = {
    "attention in": ("norm", "tensor"),
    "attention out": ("tensor", "residual"),
    "feed-forward in": ("norm", "activation"),
    "feed-forward out": ("activation", "residual"),
    "head": ("norm", "loss"),
    "other": ("norm", "residual"),
}


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    device = request.get("device", "cuda")
    if device == "cuda" and not torch.cuda.is_available():
        say({"error": "torch sees no GPU"})
        return
    gpu = torch.cuda.get_device_name() if device == "cuda" else "none"
    say({"gpu": gpu, "torch": torch.__version__, "torchao": _torchao()})
    for number, probe in enumerate(request["probes"]):
        say({"probe": number, **measure(number, probe, request, device)})


def say(answer: dict[str, Any]) -> None:
    """Write one line; torch and torchao may print to standard output too."""
    print(f"fp8verify: {json.dumps(answer)}", flush=True)


def _torchao() -> str | None:
    try:
        import torchao
    except ImportError:
        return None
    return str(getattr(torchao, "__version__", "unknown"))


def measure(
    number: int, probe: dict[str, Any], request: dict[str, Any], device: str
) -> dict[str, Any]:
    """Return the times of one probe; a precision that cannot run has its error instead."""
    forget(device)
    bench = Bench(number, probe, request, device)
    for name in (BF16, *request["recipes"]):
        bench.attempt(name, bench.prepare)
        if BF16 in bench.errors:  # out of memory, most likely; nothing to compare with
            break
    for _ in range(
        request.get("rounds", ROUNDS)
    ):  # in turn, so that a GPU that warms up slows all of them
        for name in list(bench.timed):
            bench.attempt(name, bench.round)
    return bench.answer()


def forget(device: str) -> None:
    """Free what the probe before compiled and kept."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


class Bench:
    """One probe in all precisions: what was prepared, timed and refused."""

    def __init__(
        self, number: int, probe: dict[str, Any], request: dict[str, Any], device: str
    ) -> None:
        self.number, self.probe, self.request, self.device = number, probe, request, device
        self.watch = Stopwatch(device, request.get("round_ms", ROUND_MS))
        self.timed: dict[str, tuple[Step, int, list[float]]] = {}
        self.traces: dict[str, str] = {}
        self.errors: dict[str, str] = {}

    def attempt(self, name: str, action: Callable[[str], None]) -> None:
        """Do something with one precision; a refusal of a library is an answer too."""
        try:
            action(name)
        except Exception as error:
            self.timed.pop(name, None)
            lines = str(error).strip().splitlines()
            self.errors[name] = f"{type(error).__name__}: {lines[0][:200] if lines else ''}"

    def prepare(self, name: str) -> None:
        """Compile, warm up, trace, and choose how many steps a round has."""
        step = prepare(self.probe, name, self.request, self.device)
        path = Path(self.request["traces"]) / f"{self.number}-{name}.json"
        launches = trace(step, path, self.device)
        self.traces[name] = str(path)
        self.timed[name] = step, self.watch.steps_of_a_round(step, launches), []

    def round(self, name: str) -> None:
        """Time one round."""
        step, count, times = self.timed[name]
        times.append(self.watch.time(step, count))

    def answer(self) -> dict[str, Any]:
        """Return the line for this probe."""
        rounds = {name: times for name, (_, _, times) in self.timed.items()}
        return {
            "rounds": rounds,
            "errors": self.errors,
            "traces": self.traces,
            "traced_steps": TRACED_STEPS,
        }


class Probe(nn.Module):  # type: ignore[misc]
    """Linear layers that read one input, between what makes it and what reads their outputs."""

    def __init__(self, k: int, outputs: list[int], role: str) -> None:
        super().__init__()
        self.before, self.after = SURROUNDINGS[role]
        self.linears = nn.ModuleList(nn.Linear(k, n, bias=False) for n in outputs)
        if self.before == "norm":
            self.norm = nn.RMSNorm(k)
        if self.after == "residual":
            self.norms = nn.ModuleList(nn.RMSNorm(n) for n in outputs)

    def widths(self, k: int, outputs: list[int]) -> tuple[list[int], list[int]]:
        """Return the widths of what `forward` takes: for the layers' input, and beside outputs."""
        firsts = [k, k] if self.before == "activation" else [k]
        return firsts, outputs if self.after == "residual" else []

    def forward(self, inputs: list[Tensor], others: list[Tensor]) -> list[Tensor]:
        """Map the inputs of the surroundings to what they hand on."""
        x = self._input(inputs)
        y = [linear(x) for linear in self.linears]
        if self.after == "activation":
            return [activate(y)]
        if self.after == "residual":
            sums = [one + other for one, other in zip(y, others, strict=True)]
            return sums + [norm(one) for norm, one in zip(self.norms, sums, strict=True)]
        if self.after == "loss":
            return [functional.cross_entropy(one.float(), others[0]) for one in y]
        return y

    def _input(self, inputs: list[Tensor]) -> Tensor:
        if self.before == "norm":
            return self.norm(inputs[0])
        return activate(inputs) if self.before == "activation" else inputs[0]


def activate(parts: list[Tensor]) -> Tensor:
    """Return SwiGLU of two tensors, GELU of one, SiLU times all others of more."""
    if len(parts) == 1:
        return functional.gelu(parts[0], approximate="tanh")
    result = functional.silu(parts[0])
    for part in parts[1:]:
        result = result * part
    return result


def prepare(probe: dict[str, Any], name: str, request: dict[str, Any], device: str) -> Step:
    """Return the function that runs one compiled step of the probe in BF16 or by a recipe."""
    tokens, k, outputs = probe["tokens"], probe["k"], probe["outputs"]
    with torch.device(device):
        model = Probe(k, outputs, probe["role"]).to(torch.bfloat16)
        firsts, seconds = model.widths(k, outputs)
        inputs = [_tensor(tokens, width) for width in firsts]
        others = [_tensor(tokens, width) for width in seconds]
        if model.after == "loss":
            others = [torch.randint(min(outputs), (tokens,))]
    if name != BF16:
        in_fp8(model.linears, name, emulate=request.get("emulate", False))
    compiled = torch.compile(model, dynamic=False) if request.get("compile", True) else model
    step = _step(compiled, model, inputs, others)
    for _ in range(WARM_UP):
        step()
    return step


def _tensor(tokens: int, width: int) -> Tensor:
    return torch.randn(tokens, width, dtype=torch.bfloat16).requires_grad_()


def in_fp8(layers: nn.Module, recipe: str, *, emulate: bool) -> None:
    """Convert by torchao's recipe of that name."""
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    if emulate:
        config = replace(config, emulate=True)
    convert_to_float8_training(layers, config=config)


def _step(
    compiled: Callable[..., list[Tensor]],
    model: nn.Module,
    inputs: list[Tensor],
    others: list[Tensor],
) -> Step:
    gradients: list[Tensor] = []

    def step() -> None:
        for tensor in (*inputs, *others, *model.parameters()):
            tensor.grad = None
        outputs = compiled(inputs, others)
        if not gradients:
            gradients.extend(torch.ones_like(one) if not one.dim() else one.detach().clone()
                             for one in outputs)  # fmt: skip
        torch.autograd.backward(outputs, gradients)

    return step


def trace(step: Step, path: Path, device: str) -> int:
    """Record some steps with the profiler, and return how many kernels one launches."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=kinds, record_shapes=True) as profiler:
        for _ in range(TRACED_STEPS):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    on_gpu = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    return len(on_gpu) // TRACED_STEPS


class Stopwatch:
    """Times rounds of steps, on a GPU without the time that the CPU takes to launch them."""

    def __init__(self, device: str, round_ms: float) -> None:
        self.on_gpu, self.round_ms = device == "cuda", round_ms
        self.cycles = SLEEP_CYCLES

    def steps_of_a_round(self, step: Step, launches: int) -> int:
        """Return how many steps make a round long enough, and fit in the queue of launches."""
        once = self.time(step, 2) / 1e3
        fits = MOST_LAUNCHES // max(1, launches)
        return max(2, min(fits, int(self.round_ms / max(once, 1e-3))))

    def time(self, step: Step, count: int) -> float:
        """Return the µs of one of `count` steps."""
        if not self.on_gpu:
            begin = time.perf_counter()
            for _ in range(count):
                step()
            return 1e6 * (time.perf_counter() - begin) / count
        for _ in range(4):
            taken, waited = self._on_gpu(step, count)
            if not waited:
                break
            self.cycles *= 2
        return taken

    def _on_gpu(self, step: Step, count: int) -> tuple[float, bool]:
        """Return the µs of a step, and whether the GPU may have waited for the CPU.

        As many steps again run before, so that the clocks are those of a GPU at work.
        """
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(self.cycles * count)
        for _ in range(count):
            step()
        begin.record()
        for _ in range(count):
            step()
        waited = begin.query()
        end.record()
        torch.cuda.synchronize()
        return 1e3 * float(begin.elapsed_time(end)) / count, waited


if __name__ == "__main__":
    main()
