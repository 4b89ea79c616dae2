"""Time decoder blocks and linear layers in BF16 and in FP8; run by its path.

Reads one request, a JSON object, from standard input: {"probes": [{"tokens", "groups": [{"k",
"outputs", "role", "low"}, …], "heads": [query, key, size] of a block or null}, …], "recipes":
[NAME, …], "traces": FOLDER}. It writes one JSON object a line: {"gpu", "torch", "torchao"} first,
then for each probe {"rounds": {"bf16" or a recipe: [µs, …]}, "errors": {…}, "trace": a path, of
BF16, "traced_steps", "copies"}. A time is that of one step: forward and backward, compiled, of
"copies" blocks. The precisions take turns, so that the rounds of one number belong together.
"device": "cpu", "emulate", "compile", "rounds" and "round_ms" are for tests without a GPU. The
training's Python need not have this package: standard library, torch and torchao only.

The compiler fuses casts with the work around them, and which work that is depends on the whole
graph: a norm whose input is also the residual stream is computed otherwise than one alone. So
decoder blocks are built whole, and cut where the compiler cannot fuse anyway: after attention.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BF16 = "bf16"
BLOCKS = 2  # so that attention's output is also one that the graph itself computes
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


def main() -> None:
    """Answer the request on standard input: where it runs, and the times of each probe."""
    request = json.load(sys.stdin)
    device = request.get("device", "cuda")
    if device == "cuda" and not torch.cuda.is_available():
        say({"error": "torch sees no GPU"})
        return
    gpu = torch.cuda.get_device_name() if device == "cuda" else "none"
    say({"gpu": gpu, "torch": torch.__version__, "torchao": _torchao()})
    for number, probe in enumerate(request["probes"]):
        say(measure(number, probe, request, device))


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
    for _ in range(request.get("rounds", ROUNDS)):
        for name in list(bench.timed):  # in turn, so that a GPU that warms up slows all of them
            bench.attempt(name, bench.round)
    return {
        "rounds": {name: times for name, (_, _, times) in bench.timed.items()},
        "errors": bench.errors,
        "trace": str(bench.path(BF16)),
        "traced_steps": TRACED_STEPS,
        "copies": BLOCKS if probe["heads"] else 1,
    }


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
        launches = trace(step, self.path(name), self.device)
        self.timed[name] = step, self.watch.steps_of_a_round(step, launches), []

    def path(self, name: str) -> Path:
        """Return the path of the trace in one precision."""
        return Path(self.request["traces"]) / f"{self.number}-{name}.json"

    def round(self, name: str) -> None:
        """Time one round."""
        step, count, times = self.timed[name]
        times.append(self.watch.time(step, count))


def prepare(probe: dict[str, Any], name: str, request: dict[str, Any], device: str) -> Step:
    """Return what runs one compiled step of the probe in BF16 or by a recipe."""
    seq = rows_of_a_sequence(probe["tokens"])
    shape = probe["tokens"] // seq, seq
    with torch.device(device):
        model = build(probe).to(torch.bfloat16)
        inputs = [_tensor(*shape, width) for width in model.widths]
        targets = torch.randint(model.classes, shape) if model.classes else None
    if name != BF16:
        convert(model, name, emulate=request.get("emulate", False))
    compiled = torch.compile(model, dynamic=False) if request.get("compile", True) else model
    step = _step(compiled, model, inputs, targets)
    for _ in range(WARM_UP):
        step()
    return step


def rows_of_a_sequence(tokens: int) -> int:
    """Return how many tokens attend to each other."""
    return tokens if tokens <= LONGEST_SEQUENCE else gcd(tokens, LONGEST_SEQUENCE)


def _tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16).requires_grad_()


def convert(model: Stack | Alone, recipe: str, *, emulate: bool) -> None:
    """Convert the layers that the model has in FP8, by torchao's recipe of that name."""
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    if emulate:
        config = replace(config, emulate=True)
    for layers in model.in_fp8():
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


@torch.library.custom_op("fp8verify::hand_on", mutates_args=(), schema="(Tensor tensor) -> Tensor")  # type: ignore[untyped-decorator]
def hand_on(tensor: Tensor) -> Tensor:
    """Copy a tensor, opaque to the compiler: it represents the previous layer, which is a GEMM."""
    return tensor.clone()


@hand_on.register_fake  # type: ignore[untyped-decorator]
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor)


hand_on.register_autograd(lambda _context, gradient: hand_on(gradient.contiguous()))


def build(probe: dict[str, Any]) -> Stack | Alone:
    """Return the module of a probe: a decoder block if it has heads, else its one group alone."""
    return Stack(probe["groups"], probe["heads"]) if probe["heads"] else Alone(probe["groups"][0])


def _linears(group: dict[str, Any]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(group["k"], n, bias=False) for n in group["outputs"])


def _join(stream: Tensor, branch: Tensor) -> Tensor:
    """Return the residual stream after a layer that wrote `branch`."""
    return stream + hand_on(branch)


class Block(nn.Module):  # type: ignore[misc]
    """All between two attentions: the rest of one decoder block, and the beginning of the next."""

    def __init__(self, groups: list[dict[str, Any]], heads: Sequence[int]) -> None:
        super().__init__()
        width, self.heads = groups[0]["k"], heads
        self.groups = nn.ModuleList(map(_linears, groups))
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Map the residual stream and what attention wrote to those of the next block."""
        into_attention, attention_out, into, out = self.groups
        x = x + attention_out[0](attended)
        read = self.feed_forward_norm(x)
        parts = [layer(read) for layer in into]
        if parts[0].shape[-1] == 2 * out[0].in_features:
            parts = list(parts[0].chunk(2, dim=-1))
        x = x + out[0](activate(parts))
        read = self.attention_norm(x)
        return x, attend([layer(read) for layer in into_attention], *self.heads)


def attend(parts: list[Tensor], query: int, key: int, size: int) -> Tensor:
    """Return causal attention of queries, keys and values, which one or more layers wrote."""
    if len(parts) == 1:
        parts = list(parts[0].split([query, key, key], dim=-1))
    parts = sorted(parts, key=lambda part: part.shape[-1] != query)
    if len(parts) == 2:
        parts = [parts[0], *parts[1].split(key, dim=-1)]
    q, k, v = (part.unflatten(-1, (-1, size)).transpose(1, 2) for part in parts)
    grouped = {"enable_gqa": True} if key != query else {}
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
    return y.transpose(1, 2).flatten(2)


class Stack(nn.Module):  # type: ignore[misc]
    """Decoder blocks one after the other."""

    def __init__(self, groups: list[dict[str, Any]], heads: Sequence[int]) -> None:
        super().__init__()
        self.low = [place for place, group in enumerate(groups) if group["low"]]
        self.blocks = nn.ModuleList(Block(groups, heads) for _ in range(BLOCKS))
        self.widths, self.classes = [groups[0]["k"], heads[0]], 0

    def in_fp8(self) -> Iterator[nn.Module]:
        """Yield the layers that are in FP8 in each block."""
        return (block.groups[place] for block in self.blocks for place in self.low)

    def forward(self, inputs: list[Tensor], _targets: Tensor | None) -> list[Tensor]:
        """Map the residual stream and what attention wrote to those after the last block."""
        x, attended = inputs
        for block in self.blocks:
            x, attended = block(x, attended)
        return [x, attended]


class Alone(nn.Module):  # type: ignore[misc]
    """Layers that read one normed residual stream; those of a head end in a loss."""

    def __init__(self, group: dict[str, Any]) -> None:
        super().__init__()
        self.layers, self.norm = _linears(group), nn.RMSNorm(group["k"])
        self.widths = [group["k"], group["k"]]
        self.classes = min(group["outputs"]) if group["role"] == "head" else 0

    def in_fp8(self) -> Iterator[nn.Module]:
        """Yield the layers."""
        yield self.layers

    def forward(self, inputs: list[Tensor], targets: Tensor | None) -> list[Tensor]:
        """Map the residual stream and its branch to the outputs, or to the losses of a head."""
        x = _join(*inputs)
        read = self.norm(x)
        y = [layer(read) for layer in self.layers]
        if targets is not None:
            return [
                functional.cross_entropy(one.flatten(0, 1).float(), targets.flatten()) for one in y
            ]
        # The residual stream goes on, so that its gradient joins that of the norm.
        return [*y, x]


def activate(parts: list[Tensor]) -> Tensor:
    """Return SwiGLU of two tensors, GELU of one, SiLU times all others of more."""
    if len(parts) == 1:
        return functional.gelu(parts[0], approximate="tanh")
    result = functional.silu(parts[0])
    for part in parts[1:]:
        result = result * part
    return result


if __name__ == "__main__":
    main()
