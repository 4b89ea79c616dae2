"""FP8 copies of weights on a GPU: sound and stale ones are told apart, and what sampling costs.

    python benchmarks/gpu/weight_copies.py [OUT]

trains Transformer Engine's modules, below subclasses as Megatron-LM's are, under `fp8verify run
--numerics` in each of `CASES`; prints a Markdown table, which goes to OUT (or $OUT) as
weight_copies.md. Exits with 1 if a case is not as expected: a stale copy missed, a sound one
accused, or layers without figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
DIM, LAYERS, TOKENS, STEPS, MICRO_BATCHES = 2048, 24, 2048, 10, 2


class Case(NamedTuple):
    """A recipe, how copies are refreshed, the learning rate, and whether they are then stale."""

    recipe: str
    how: str
    rate: float
    stale: bool = False


RECIPES = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling")
CASES = (
    *(Case(recipe, "cached", 1e-4) for recipe in RECIPES),
    *(Case(recipe, "never", 1e-2, stale=True) for recipe in RECIPES),
    Case("DelayedScaling", "cached", 1e-7),
    Case("DelayedScaling", "cached", 0.0),
    Case("DelayedScaling", "uncached", 1e-4),
    Case("DelayedScaling", "fp8-parameters", 1e-3),
    Case("DelayedScaling", "fp8-parameters-never", 1e-2, stale=True),
    Case("Float8CurrentScaling", "fp8-parameters", 1e-3),
)


def train(case: Case) -> None:
    """Train a stack of layers; runs inside `fp8verify run`."""
    import torch
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as recipes

    class TELayerNormColumnParallelLinear(te.LayerNormLinear):
        pass

    class TERowParallelLinear(te.Linear):
        pass

    base = getattr(recipes, case.recipe)
    recipe = type(f"TE{case.recipe}", (base,), {})()  # as megatron.core's TEDelayedScaling
    options = {"bias": False, "params_dtype": torch.bfloat16, "device": "cuda"}
    own_fp8 = case.how.startswith("fp8-parameters")
    init = getattr(te, "quantized_model_init", None) or te.fp8_model_init
    torch.manual_seed(0)
    with init(enabled=own_fp8, recipe=recipe):
        layers = torch.nn.ModuleList(
            (TERowParallelLinear if n % 2 else TELayerNormColumnParallelLinear)(DIM, DIM, **options)
            for n in range(LAYERS)
        )
    parameters = [p for p in layers.parameters() if p.dim() > 1]
    masters = []
    for parameter in parameters if own_fp8 else ():
        parameter.main_param = parameter.dequantize().float().detach()  # type: ignore[attr-defined]
        masters.append(torch.nn.Parameter(parameter.main_param))
        parameter.main_param = masters[-1]
    optimizer = torch.optim.AdamW(masters or parameters, lr=case.rate, weight_decay=0.0)
    for step in range(1, STEPS + 1):
        for number in range(MICRO_BATCHES):
            x = torch.randn(TOKENS, DIM, device="cuda", dtype=torch.bfloat16)
            first: bool | None = None
            if case.how in ("cached", "never"):
                first = not number and (case.how == "cached" or step == 1)
            with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
                for layer in layers:
                    x = x + layer(x, is_first_microbatch=first)
            x.float().square().mean().backward()
        for master, parameter in zip(masters, parameters, strict=False):
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        optimizer.zero_grad()
        if case.how == "fp8-parameters":
            with torch.no_grad():
                for master, parameter in zip(masters, parameters, strict=True):
                    parameter.copy_(master)
        print(f"step {step} loss {x.float().square().mean().item():.5g}", flush=True)


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Run a case and read its capture."""
    import fp8verify
    from fp8verify.capture.files import read_numerics

    capture = folder / "capture"
    command = [
        sys.executable, "-m", "fp8verify", "run", "--steps", "4-5", "--numerics", "--exit-zero",
        "--trace-dir", str(capture), "--", sys.executable, __file__, "train",
        case.recipe, case.how, str(case.rate),
    ]  # fmt: skip
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, (str(ROOT), inherited)))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"bad": f"exit {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"}
    (window,) = read_numerics(capture)[0].record.windows[-1:]
    report = fp8verify.inspect(capture)
    numbers = report.ranks[0].numerics
    found = [one for one in report.findings if one.code == "weight-stale"]
    copies, layers = len(window.weights), {row.layer for row in numbers.rows} if numbers else set()
    wanted = 0 if case.how == "uncached" else LAYERS
    stale = len(found[0].layers) if found else 0
    problems = [
        f"{stale} stale of {LAYERS}" if stale != (LAYERS if case.stale else 0) else "",
        f"{copies} copies sampled of {wanted}" if copies != wanted else "",
        f"figures of {len(layers)} layers" if len(layers) != LAYERS else "",
    ]
    return {
        "copies": copies,
        "stale": stale,
        "layers": len(layers),
        "recast": sum(one.code == "weight-recast" for one in report.findings),
        "notes": "; ".join(numbers.notes) if numbers else "",
        "bad": "; ".join(filter(None, problems)),
    }


def main() -> None:
    """Run all cases and print a table."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("OUT", "."))
    lines = ["| recipe | copies | lr | sampled | stale | layers | recast | notes | wrong |"]
    lines.append("|---" * 9 + "|")
    wrong = False
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(case, Path(folder))
        wrong = wrong or bool(found["bad"])
        keys = ("copies", "stale", "layers", "recast", "notes", "bad")
        cells = [case.recipe, case.how, f"{case.rate:g}", *(str(found.get(k, "")) for k in keys)]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    (out / "weight_copies.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(Case(sys.argv[2], sys.argv[3], float(sys.argv[4])))
    else:
        main()
