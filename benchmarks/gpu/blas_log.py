"""What cuBLASLt's own log of a window costs and shows, and that the training stays the same.

    python benchmarks/gpu/blas_log.py OUT [KIND ...]
    python benchmarks/gpu/blas_log.py cost

Starts each script twice under `fp8verify run`, without and with --blas-log, and compares losses bit
by bit, and what the report says of the log. Prints a Markdown table and leaves in OUT each
capture's report, and the capture of `own`. Exits with 1 if losses differ, or a log that should be
joined was not, or the other way round (CUDA graphs).

`cost` runs steps in one process, the logger on and off in turn as the agent switches it, and prints
what it adds to a step and to a product. The profiler is off. It takes about a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).parents[2]
TOKENS, DIM, HIDDEN, LAYERS, STEPS = 4096, 2048, 8192, 4, 16
FIRST, LAST = 10, 12
TIMEOUT_S = 100

Context = Callable[[], AbstractContextManager[Any]]


def main(out: Path, kinds: list[str]) -> int:
    """Compare each kind of training without and with the log."""
    out.mkdir(parents=True, exist_ok=True)
    print("| training | losses equal | verdict | products | agreed | note |")
    print("|---|---|---|---|---|---|")
    failed = 0
    for kind in kinds:
        plain, logged = (run(kind, out, log=log) for log in (False, True))
        if plain is None or logged is None:
            print(f"| {kind} | - | did not run | | | see {kind}.*.txt |", flush=True)
            failed |= not kind.startswith("te")
            continue
        equal = plain["losses"] == logged["losses"]
        found = logged["report"]["ranks"][0].get("library_log") or {}
        notes = [
            note
            for note in logged["report"]["notes"]
            if "LASLt" in note or "BLAS lib" in note
        ]
        print(
            f"| {kind} | {equal} | {logged['report']['verdict']} | {found.get('products', '-')} | "
            f"{found.get('vouched', '-')} of {found.get('gemms', '-')} | {'; '.join(notes)} |",
            flush=True,
        )
        joins = (
            kind != "own-graphs"
        )  # replays are not in the log, and the report says so
        failed |= not equal or not notes or bool(found.get("vouched")) != joins
    return int(failed)


def run(kind: str, out: Path, *, log: bool) -> dict[str, Any] | None:
    """Record a run; return its losses and the report, None if it failed."""
    name = f"{kind}.{'log' if log else 'plain'}"
    capture = out / name
    shutil.rmtree(capture, ignore_errors=True)
    words = [
        sys.executable,
        "-m",
        "fp8verify",
        "run",
        "--steps",
        f"{FIRST}-{LAST}",
        "--exit-zero",
    ]
    words += ["--trace-dir", str(capture), "-o", str(out / f"{name}.json")]
    words += [*(["--blas-log"] if log else []), str(Path(__file__)), "train", kind]
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            words,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        (out / f"{name}.txt").write_text("no end in time")
        return None
    (out / f"{name}.txt").write_text(
        f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    rows = [
        line.split() for line in done.stdout.splitlines() if line.startswith("step ")
    ]
    if not (kind == "own" and log):
        shutil.rmtree(capture, ignore_errors=True)
    if done.returncode or len(rows) != STEPS:
        return None
    return {
        "losses": [row[2] for row in rows],
        "report": json.loads((out / f"{name}.json").read_text()),
    }


# ---- the runs


def train(kind: str) -> None:
    """Train a stack of MLPs; print each step's loss, exactly."""
    step = training(kind)
    for number in range(1, STEPS + 1):
        print("step", number, step().item().hex())


def training(kind: str, tokens: int = TOKENS) -> Callable[[], Any]:
    """Return a function that runs a step and returns its loss."""
    import torch

    torch.manual_seed(0)
    model, context = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = [
        torch.randn(tokens, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    ]

    def loss_of(x: Any, wanted: Any) -> Any:
        return (model(x) - wanted).square().float().mean()

    loss_of = torch.compile(loss_of) if kind.endswith("-compiled") else loss_of

    def pass_both() -> Any:
        optimizer.zero_grad()
        with context():
            loss = loss_of(*data)
        loss.backward()
        return loss.detach()

    run_both = captured(pass_both, optimizer) if kind.endswith("-graphs") else pass_both

    def step() -> Any:
        loss = run_both()
        optimizer.step()
        return loss

    return step


def captured(pass_both: Callable[[], Any], optimizer: Any) -> Callable[[], Any]:
    """Return a function that replays a CUDA graph of the forward and the backward pass."""
    import torch

    import fp8verify

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            pass_both()
    torch.cuda.current_stream().wait_stream(aside)
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = pass_both()

    def replay() -> Any:
        graph.replay()
        fp8verify.step()  # a replay calls no module: nothing else marks the steps
        return loss

    return replay


def build(kind: str) -> tuple[Any, Context]:
    """Return the model and what its forward pass runs in."""
    import torch
    from torch import nn

    def stack(linear: Callable[..., nn.Module]) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [
                linear(DIM, HIDDEN, bias=False),
                nn.ReLU(),
                linear(HIDDEN, DIM, bias=False),
            ]
        return nn.Sequential(*layers).to("cuda", torch.bfloat16)

    if kind.startswith("te-"):
        return transformer_engine(kind.removeprefix("te-"), stack)
    if kind.startswith("own"):
        return stack(own_linear()), nullcontext
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe = "rowwise" if kind == "rowwise" else "tensorwise"
    config = Float8LinearConfig.from_recipe_name(recipe)
    return convert_to_float8_training(stack(nn.Linear), config=config), nullcontext


def transformer_engine(recipe: str, stack: Callable[..., Any]) -> tuple[Any, Context]:
    """Return Transformer Engine's layers and its autocast."""
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as recipes

    kind = {"delayed": recipes.DelayedScaling, "block": recipes.Float8BlockScaling}[
        recipe
    ]
    return stack(te.Linear), lambda: te.fp8_autocast(enabled=True, fp8_recipe=kind())


def own_linear() -> Any:
    """Return a layer of our own that multiplies by torch.nn.functional.scaled_mm in all passes."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    def cast(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        scale = torch.finfo(kind).max / x.abs().amax().float().clamp(min=1e-12)
        return (x * scale).to(kind), scale.reciprocal()

    def multiply(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
        """Return a @ b.T of FP8 matrices with their scales."""
        if not hasattr(functional, "scaled_mm"):  # torch 2.9 and older
            return torch._scaled_mm(
                a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16
            )
        per_tensor = functional.ScalingType.TensorWise
        return functional.scaled_mm(a[0], b[0].t(), a[1], per_tensor, b[1], per_tensor)

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
            ctx.save_for_backward(x, weight)
            kind = torch.float8_e4m3fn
            return multiply(cast(x, kind), cast(weight, kind))

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            x, weight = ctx.saved_tensors
            kind, steep = torch.float8_e4m3fn, torch.float8_e5m2
            rows = cast(grad, steep), cast(weight.t().contiguous(), kind)
            columns = cast(grad.t().contiguous(), steep), cast(x.t().contiguous(), kind)
            return multiply(*rows), multiply(*columns)

    class OwnLinear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return Multiply.apply(x, self.weight)

    return OwnLinear


# ---- the cost

PAIRS, WINDOW, SMALL = 30, 10, 256


def cost(has_te: bool) -> None:
    """Print what the log adds to a step, to a product, and to a window."""
    import torch

    small = [
        torch.randn(SMALL, SMALL, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    ]
    kinds: dict[str, Callable[[], Any]] = {
        f"own layers, {TOKENS} tokens": training("own"),
        f"own layers, {SMALL} tokens: the GPU waits for the CPU": training(
            "own", SMALL
        ),
        "torchao tensorwise": training("tensorwise"),
        **({"Transformer Engine delayed": training("te-delayed")} if has_te else {}),
        "200 products of 256 x 256": lambda: [torch.mm(*small) for _ in range(200)],
    }
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {PAIRS} pairs of windows of"
    )
    print(f"{WINDOW} steps with the log and without, medians and quartiles\n")
    print(
        "| step | without, ms | with, change | a product, µs | switching on and off, ms |"
    )
    print("|---|---|---|---|---|")
    for name, step in kinds.items():
        for _ in range(5):
            step()
        print(f"| {name} | {measured(step)} |", flush=True)


def measured(step: Callable[[], Any]) -> str:
    """Return the cells of a row: windows with the log and without it, in turn."""
    from fp8verify.agent.instruments import NOWHERE, OFF, TRACE, loaded, open_loaded

    library, without, added, switches = open_loaded(loaded()[0]), [], [], []
    with tempfile.NamedTemporaryFile() as file:
        for pair in range(PAIRS):
            took: dict[bool, float] = {}
            for log in (pair % 2 == 0, pair % 2 == 1):
                if log:
                    os.truncate(file.name, 0)
                begun = time.perf_counter()
                if log:
                    library.cublasLtLoggerOpenFile(os.fsencode(file.name))
                    library.cublasLtLoggerSetMask(TRACE)
                switched = time.perf_counter()
                took[log] = window(step)
                if log:
                    again = time.perf_counter()
                    library.cublasLtLoggerSetMask(OFF)
                    library.cublasLtLoggerOpenFile(NOWHERE)
                    switches.append(switched - begun + time.perf_counter() - again)
            without.append(took[False])
            added.append(took[True] - took[False])
        lines = Path(file.name).read_bytes().count(b"Matmul] ") or 1
    per_step = lines / WINDOW  # the file is of the last window alone
    low, middle, high = quantiles(added, n=4)
    base = median(without)
    return (
        f"{1e3 * base:.2f} | {middle / base:+.2%} ({low / base:+.2%} to {high / base:+.2%}) | "
        f"{1e6 * middle / per_step:+.1f} ({per_step:.0f} a step) | {1e3 * median(switches):.2f}"
    )


def window(step: Callable[[], Any]) -> float:
    """Return the seconds a step of a window of them takes."""
    import torch

    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(WINDOW):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / WINDOW


KINDS = [
    "own",
    "tensorwise",
    "rowwise",
    "own-compiled",
    "own-graphs",
    "te-delayed",
    "te-block",
]

if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(sys.argv[2])
    else:
        has_te = (
            subprocess.run(
                [sys.executable, "-c", "import transformer_engine.pytorch"],
                capture_output=True,
                check=False,
            ).returncode
            == 0
        )
        if sys.argv[1] == "cost":
            cost(has_te)
            sys.exit()
        wanted = sys.argv[2:] or [
            kind for kind in KINDS if has_te or not kind.startswith("te")
        ]
        sys.exit(main(Path(sys.argv[1]), wanted))
