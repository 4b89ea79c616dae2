"""Time decoder blocks and linear layers in BF16 and in FP8; run by its path.

Reads requests, one JSON object a line, from standard input: {"name", "probes": [{"tokens",
"groups": [{"k", "outputs", "role"}, …], "heads": [query, key, size] of a block or null, "variants":
{NAME: {"recipe", "groups": [place, …]}, …}}, …], "traces": FOLDER}. For each it writes one JSON
object a line: {"gpu", "torch", "torchao"} first, then for each probe {"probe": its number,
"rounds": {"bf16" or a variant: [µs, …]}, "errors": {…}, "traces": {…}, "traced_steps", "copies"},
then {"done"}. A time is that of one step: forward and backward, compiled, of "copies" blocks. The
precisions take turns, so that the rounds of one number belong together. "device": "cpu", "emulate",
"compile", "rounds" and "round_ms" are for tests without a GPU. Standard library, torch and torchao
only.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# The training's Python need not have this package, nor its folder on the path.
sys.path.insert(0, str(Path(__file__).parent))
import surroundings  # type: ignore[import-not-found]

BF16 = "bf16"
WARM_UP = 4
ROUNDS = 10
ROUND_MS = 40.0
LONGEST_SEQUENCE = 1024
TRACED_STEPS = 3
# The GPU sleeps while the CPU queues a round, so that launching costs nothing measured: at first
# so many cycles a step, and twice as many whenever that was too short. More launches than its
# queue takes (1,024) would wait for the GPU.
SLEEP_CYCLES = 1_000_000
MOST_CYCLES = 16 * SLEEP_CYCLES
MOST_LAUNCHES = 400

Step = Callable[[], None]


class Timeable(NamedTuple):
    """One step, and how many blocks it goes through."""

    step: Step
    copies: int


def main() -> None:
    """Answer each request on standard input."""
    for line in sys.stdin:
        answer(json.loads(line))
        say({"done": True})


def answer(request: dict[str, Any]) -> None:
    """Say where it runs, and the times of each probe."""
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
    for name in (BF16, *probe["variants"]):
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
        self.copies = 1

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
        step, self.copies = prepare(self.probe, name, self.request, self.device)
        place = len(self.timed)
        path = Path(self.request["traces"]) / f"{self.request['name']}-{self.number}-{place}.json"
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
            "copies": self.copies,
        }


def prepare(probe: dict[str, Any], name: str, request: dict[str, Any], device: str) -> Timeable:
    """Return what runs one compiled step of the probe in BF16 or in a variant of it."""
    seq = rows_of_a_sequence(probe["tokens"])
    shape = probe["tokens"] // seq, seq
    with torch.device(device):
        model = surroundings.build(probe).to(torch.bfloat16)
        inputs = [_tensor(*shape, width) for width in model.widths]
        targets = torch.randint(model.classes, shape) if model.classes else None
    if name != BF16:
        convert(model, probe["variants"][name], emulate=request.get("emulate", False))
    compiled = torch.compile(model, dynamic=False) if request.get("compile", True) else model
    step = _step(compiled, model, inputs, targets)
    for _ in range(WARM_UP):
        step()
    return Timeable(step, model.copies)


def rows_of_a_sequence(tokens: int) -> int:
    """Return how many tokens attend to each other."""
    return tokens if tokens <= LONGEST_SEQUENCE else gcd(tokens, LONGEST_SEQUENCE)


def _tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16).requires_grad_()


def convert(
    model: surroundings.Stack | surroundings.Alone, variant: dict[str, Any], *, emulate: bool
) -> None:
    """Convert the layers of some groups."""
    for group in variant["groups"]:
        for layers in model.layers_of(group):
            in_fp8(layers, variant["recipe"], emulate=emulate)


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
    targets: Tensor | None,
) -> Step:
    gradients: list[Tensor] = []

    def step() -> None:
        for tensor in (*inputs, *model.parameters()):
            tensor.grad = None
        outputs = compiled(inputs, targets)
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
    # The profiler's own list of events takes seconds to build.
    return path.read_bytes().count(b'"cat": "kernel"') // TRACED_STEPS


class Stopwatch:
    """Times rounds of steps, on a GPU without the time that the CPU takes to launch them."""

    def __init__(self, device: str, round_ms: float) -> None:
        self.on_gpu, self.round_ms = device == "cuda", round_ms
        self.cycles = SLEEP_CYCLES

    def steps_of_a_round(self, step: Step, launches: int) -> int:
        """Return how many steps make a round long enough, and fit in the queue of launches."""
        once = self.time(step, 2) / 1e3
        fits = MOST_LAUNCHES // max(1, launches)
        return max(1, min(fits, int(self.round_ms / max(once, 1e-3))))

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
            self.cycles = min(2 * self.cycles, MOST_CYCLES)
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
