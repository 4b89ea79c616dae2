"""What `run --numerics` finds and costs on a GPU: correct runs, injected faults, times, memory.

    python benchmarks/gpu/numerics.py [OUT]

trains a Llama-shaped model of four blocks under `fp8verify run --numerics` in each of `CASES`, and
prints Markdown tables; all of it goes to OUT (or $OUT) as numerics.md and numerics.json. Exits with
1 if a case is not as expected. Transformer Engine's cases run where it can be imported. With
`--costs` only times and memory are taken, of the sound torchao cases.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.gpu import numerics_costs as timing  # noqa: E402

DIM, FFN, HEADS, LAYERS, BATCH, LENGTH, VOCABULARY = 2048, 8192, 16, 4, 4, 2048, 8192
FAULTY = 2
WINDOW, MEASURED = timing.WINDOW, timing.MEASURED
SHORT_STEPS = MEASURED + 1


class Case(NamedTuple):
    """A run, and what is to be found: the code, its layers, and words of its message."""

    name: str
    code: str | None = None
    layers: Callable[[set[str]], bool] = lambda _: True
    words: str = ""


def _only(*names: str) -> Callable[[set[str]], bool]:
    return lambda layers: layers == set(names)


def _up_to_faulty(layers: set[str]) -> bool:
    """The gradient reaches all layers before the one that it was injected in, and none after it."""
    early = tuple(f"layers.{block}." for block in range(FAULTY + 1))
    return f"layers.{FAULTY}.down" in layers and all(
        name.startswith(early) for name in layers
    )


TIMED = (Case("tensorwise"), Case("rowwise"))
PARTS = Case("tensorwise-parts")
COMPILED = {case.name for case in (*TIMED, PARTS)}
CASES = (
    Case(
        "tensorwise-weight",
        "outlier-layer",
        _only(f"layers.{FAULTY}.down"),
        "the weight of",
    ),
    Case(
        "tensorwise-gradient",
        "gradient-flushed",
        _up_to_faulty,
        "of the grad_output of",
    ),
    Case(
        "tensorwise-inf", "nan-or-inf", _only("layers.0.q"), "the input of layers.0.q"
    ),
)
TE_CASES = (
    Case("te-delayed"),
    Case("te-current"),
    Case("te-block"),
    Case(
        "te-delayed-inf",
        "nan-or-inf",
        _only("layers.0.qkv"),
        "the input of layers.0.qkv",
    ),
    Case(
        "te-current-inf",
        "nan-or-inf",
        _only("layers.0.qkv"),
        "the input of layers.0.qkv",
    ),
    Case(
        "te-delayed-frozen",
        "scale-stuck",
        _only(f"layers.{FAULTY}.o"),
        "the scale of the input",
    ),
    Case(
        "te-current-recompute",
        "recompute-not-fp8",
        lambda layers: (
            bool(layers) and all(n.startswith(f"layers.{FAULTY}.") for n in layers)
        ),
    ),
)
OURS = {
    "nan-or-inf", "gradient-flushed", "scale-stuck", "scales-differ-between-ranks",
    "mxfp8-e5m2-gradients", "scale-unstable", "underflow-high", "sqnr-low", "outlier-layer",
    "saturates", "amax-spike", "mx-last-bucket", "recompute-not-fp8", "zero-rows", "history-unused",
}  # fmt: skip


def steps_of(name: str) -> int:
    """Return how many steps a case trains."""
    if name == PARTS.name:
        return MEASURED + timing.PARTS_EVERY + 1
    return timing.STEPS if name in COMPILED else SHORT_STEPS


# --- the training ---------------------------------------------------------------------------------


def _model(*, te: bool) -> Any:  # noqa: C901 - a list of classes
    """Make the model on the GPU, in BF16 or of Transformer Engine's modules."""
    import torch
    from torch import nn
    from torch.nn import functional

    class OneSampleAboveAll(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            gradient = gradient.clone()
            gradient[0] *= 1e12
            return gradient

    def attend(q, k, v, x):
        q, k, v = (
            part.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in (q, k, v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(x.shape)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
            self.q, self.k, self.v, self.o = (
                nn.Linear(DIM, DIM, bias=False) for _ in range(4)
            )
            self.gate, self.up = (nn.Linear(DIM, FFN, bias=False) for _ in range(2))
            self.down = nn.Linear(FFN, DIM, bias=False)
            self.faulty_gradient = False

        def forward(self, x):
            y = self.norm1(x)
            x = x + self.o(attend(self.q(y), self.k(y), self.v(y), x))
            y = self.norm2(x)
            y = self.down(functional.silu(self.gate(y)) * self.up(y))
            return x + (OneSampleAboveAll.apply(y) if self.faulty_gradient else y)

    class TransformerEngineBlock(nn.Module):
        def __init__(self):
            super().__init__()
            import transformer_engine.pytorch as te

            options = {"bias": False, "params_dtype": torch.bfloat16, "device": "cuda"}
            self.qkv = te.LayerNormLinear(DIM, 3 * DIM, **options)
            self.o = te.Linear(DIM, DIM, **options)
            self.mlp = te.LayerNormMLP(DIM, FFN, activation="swiglu", **options)

        def forward(self, x):
            x = x + self.o(attend(*self.qkv(x).chunk(3, -1), x))
            return x + self.mlp(x)

    class Model(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, DIM)
            self.layers = nn.ModuleList(block() for _ in range(LAYERS))
            self.head = nn.Linear(DIM, VOCABULARY, bias=False)
            self.infinite = self.checkpointed = False

        def forward(self, tokens):
            x = self.embedding(tokens)
            if self.infinite:
                x = x.clone()
                x[1, 3, 5] = float("inf")
            for place, block in enumerate(self.layers):
                if self.checkpointed and place == FAULTY:
                    x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
                else:
                    x = block(x)
            logits = self.head(x[:, :-1]).flatten(0, 1).float()
            return functional.cross_entropy(logits, tokens[:, 1:].flatten())

    return Model(TransformerEngineBlock if te else Block).to("cuda", torch.bfloat16)


def build(name: str) -> Any:
    """Make the model of a case on the GPU."""
    import torch

    te = name.startswith("te-")
    model = _model(te=te)
    if not te:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(name.split("-")[0])
        convert_to_float8_training(
            model, config=config, module_filter_fn=lambda _, fqn: fqn != "head"
        )
        for block in model.layers if name in COMPILED else ():
            block.compile()
    if name.endswith("-weight"):
        with torch.no_grad():
            weight = model.layers[FAULTY].down.weight
            weight[0, 0] = 1e3 * weight.abs().mean()
    model.checkpointed = name.endswith("-recompute")
    return model


@contextlib.contextmanager
def autocast(name: str) -> Iterator[None]:
    """Enter Transformer Engine's autocast for its cases."""
    if not name.startswith("te-"):
        yield
        return
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe

    made = {
        "delayed": lambda: recipe.DelayedScaling(
            amax_history_len=16, amax_compute_algo="max"
        ),
        "current": recipe.Float8CurrentScaling,
        "block": recipe.Float8BlockScaling,
    }[name.split("-")[1]]()
    with te.fp8_autocast(enabled=True, fp8_recipe=made):
        yield


def train(name: str) -> None:
    """Train a case and print a JSON line for each step."""
    import torch

    torch.manual_seed(0)
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    frozen: Any = None
    looks = Looks() if name == PARTS.name else None
    for step in range(1, steps_of(name) + 1):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")
        if step == MEASURED and name.endswith("-gradient"):
            model.layers[FAULTY].faulty_gradient = True
        model.infinite = step == MEASURED and name.endswith("-inf")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        phases = timing.Phases()
        with eagerly() if timing.eager_by_script(step) else contextlib.nullcontext():
            with autocast(name):
                loss = model(tokens)
            phases.end("forward")
            if name.endswith("-frozen") and step >= 4:
                scale = model.layers[FAULTY].o.fp8_meta["scaling_fwd"].scale
                frozen = scale[0].item() / 8 if frozen is None else frozen
                scale[0] = frozen
            loss.backward()
            phases.end("backward")
            optimizer.step()
            optimizer.zero_grad()
            phases.end("optimizer")
        torch.cuda.synchronize()
        phases.end("waiting")
        took = 1e3 * (time.perf_counter() - began)
        found = {
            "step": step,
            "ms": took,
            "peak": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        }
        if looks:
            looks.after(step, phases)
        print(json.dumps(found), f"| step {step} loss {loss.item():.4f}", flush=True)
    if looks:
        print(json.dumps({"parts": looks.found}), "| parts", flush=True)
    if name.startswith("te-") and name.count("-") == 1:
        print(json.dumps({"bytes_equal": te_bytes(name)}), "| bytes", flush=True)


class Looks:
    """Where the time of the first measured step goes, and of a later one."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._parts: timing.Parts | None = None

    def after(self, step: int, phases: timing.Phases) -> None:
        """Begin to look when the agent is there; keep what the steps of interest took."""
        if step == timing.WARM_EAGER[0]:
            self._parts = timing.Parts()
        titles = {
            timing.WARM_EAGER[-1]: "eager",
            MEASURED - 1: "before",
            MEASURED: "first",
            MEASURED + timing.PARTS_EVERY - 1: "between",
            MEASURED + timing.PARTS_EVERY: "again",
        }
        if step in titles and self._parts is not None:
            self.found[titles[step]] = {**self._parts.reset(), "phases": phases.ms}


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Run compiled code eagerly."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


def te_bytes(name: str) -> bool | None:
    """Hold the bytes that te.Linear saves against those of the replayed cast; None if not seen."""
    import torch
    import transformer_engine.pytorch as te

    from fp8verify.agent.casts import absolute_maxima, can_block, quantize
    from fp8verify.agent.precision import transformer_engine_casts

    layer = te.Linear(DIM, FFN, bias=False, params_dtype=torch.bfloat16, device="cuda")
    seen: list[Any] = []

    def pack(tensor: Any) -> Any:
        if tensor.dtype == torch.uint8:
            seen.append(tensor.clone())
        return tensor

    x = torch.randn(4096, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with autocast(name):
        layer(x)  # from the second pass on, delayed scaling has a scale of its own
    scales = layer.fp8_meta.get("scaling_fwd")
    kept = getattr(scales, "scale", None)
    kept = kept.clone() if kept is not None else None
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with autocast(name), hooks:
        layer(x)
    cast = transformer_engine_casts(layer)["input"]
    if kept is not None and cast.kept:
        cast = cast._replace(scale=kept[0])
    values = x.detach()
    candidates = []
    for given in (values, values.t().contiguous()):  # by row, and what wgrad reads
        if can_block(given.shape, cast.scaling):
            done = quantize(given, cast, absolute_maxima(given).max()).values
            candidates.append(done.reshape(given.shape).view(torch.uint8))
    same = [t for t in seen if t.numel() == values.numel()]
    if not same:
        return None
    return all(
        any(
            torch.equal(t.reshape(c.shape), c) for c in candidates if t.shape == c.shape
        )
        for t in same
    )


# --- the judgment --------------------------------------------------------------------------------


def every_of(name: str) -> int:
    """Return how many steps lie between measured ones."""
    return timing.PARTS_EVERY if name == PARTS.name else timing.EVERY


def run(case: Case, folder: Path) -> dict[str, Any]:
    """Run a case under `fp8verify run --numerics` and return its report and steps."""
    capture, report = folder / case.name, folder / f"{case.name}.json"
    began = time.perf_counter()
    words = [
        sys.executable, "-m", "fp8verify", "run", "--steps", f"{WINDOW[0]}-{WINDOW[1]}",
        "--numerics-every", f"{every_of(case.name)}", "--trace-dir", f"{capture}",
        "--format", "json", "-o", f"{report}", "--exit-zero", __file__, "--train", case.name,
    ]  # fmt: skip
    inherited = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (f"{ROOT}", inherited))),
    }
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False
    )
    found: dict[str, Any] = {"case": case.name, "code": done.returncode}
    found["wall_s"] = round(time.perf_counter() - began, 1)
    if done.returncode or not report.exists():
        return {**found, "error": (done.stderr or done.stdout)[-3000:]}
    lines = [
        line.split(" |")[0] for line in done.stdout.splitlines() if line.startswith("{")
    ]
    read = [json.loads(line) for line in lines]
    found["steps"] = {line["step"]: line for line in read if "step" in line}
    found["parts"] = next((line["parts"] for line in read if "parts" in line), None)
    found["bytes_equal"] = next(
        (line["bytes_equal"] for line in read if "bytes_equal" in line), None
    )
    document = json.loads(report.read_text())
    found["verdict"] = document["verdict"]
    found["findings"] = [f for f in document["findings"] if f["code"] in OURS]
    found["numerics"] = document["ranks"][0]["numerics"]
    return found


def judged(case: Case, found: dict[str, Any]) -> list[str]:
    """Return what is not as expected."""
    if "error" in found:
        return [
            f"failed: {found['error'].splitlines()[-1] if found['error'] else 'no output'}"
        ]
    findings, said = found["findings"], []
    about_layers = [f for f in findings if f["layers"]]
    if [f["code"] for f in about_layers] != ([case.code] if case.code else []):
        said.append(f"findings: {[(f['code'], f['message']) for f in findings]}")
    elif case.code and not case.layers(set(about_layers[0]["layers"])):
        said.append(f"layers: {about_layers[0]['layers']}")
    elif case.code and case.words not in about_layers[0]["message"]:
        said.append(f"message: {about_layers[0]['message']}")
    if case.code is None:
        said += [f"{row}" for row in unsound(found)]
        if found["bytes_equal"] is False:
            said.append("the bytes are not those that Transformer Engine saved")
    return said


def unsound(found: dict[str, Any]) -> list[str]:
    """Return the rows of a correct run whose SQNR is not as measured before."""
    expected = {"e4m3": 31.5, "e5m2": 25.5}
    rows = [row for row in found["numerics"]["rows"] if row["sqnr_db"] is not None]
    odd = [
        f"{row['layer']} {row['tensor']} {row['format']}: {row['sqnr_db']:.1f} dB"
        for row in rows
        if abs(row["sqnr_db"] - expected[row["format"]]) > 1.0
    ]
    return odd or ([] if rows else ["no tensor was measured"])


def main(out: Path, *, only_costs: bool) -> int:
    """Run all cases and print the tables."""
    out.mkdir(parents=True, exist_ok=True)
    cases = [*CASES, *(TE_CASES if find_spec("transformer_engine") else ())]
    if only_costs:
        cases = []
    with tempfile.TemporaryDirectory() as folder:
        results = [(case, run(case, Path(folder))) for case in (*TIMED, PARTS)]
        with ThreadPoolExecutor(4) as pool:
            others = list(pool.map(lambda case: run(case, Path(folder)), cases))
    results += list(zip(cases, others, strict=True))
    lines, failed = tables(results)
    text = "\n".join(lines) + "\n"
    (out / "numerics.md").write_text(text)
    (out / "numerics.json").write_text(
        json.dumps([found for _, found in results], indent=1)
    )
    print(text)
    return int(failed)


def tables(results: list[tuple[Case, dict[str, Any]]]) -> tuple[list[str], bool]:
    """Return Markdown of all results, and whether any is not as expected."""
    lines = ["| case | findings | E4M3 dB | E5M2 dB | bytes | wall s | as expected |"]
    lines.append("|---|---|---|---|---|---|---|")
    failed = False
    for case, found in results:
        wrong = judged(case, found)
        failed = failed or bool(wrong)
        codes = ", ".join(f["code"] for f in found.get("findings", [])) or "none"
        lines.append(
            f"| {case.name} | {codes} | {_range(found, 'e4m3')} | {_range(found, 'e5m2')} | "
            f"{found.get('bytes_equal')} | {found['wall_s']} | {'; '.join(wrong)[:900] or 'yes'} |"
        )
    for case, found in results:
        if "error" in found:
            continue
        if case in TIMED:
            measured = timing.costs(found["steps"])
            good = timing.good(measured)
            failed = failed or not good
            lines += [
                "",
                f"{case.name}: {'as expected' if good else 'NOT as expected'}",
                "",
            ]
            lines += ["| figure | value |", "|---|---|"]
            lines += [f"| {name} | {value:.4g} |" for name, value in measured.items()]
        if found["parts"]:
            lines += timing.part_lines(found["parts"])
    lines += [
        f"\n{case.name}:\n{found['error']}"
        for case, found in results
        if "error" in found
    ]
    return lines, failed


def _range(found: dict[str, Any], kind: str) -> str:
    rows = (found.get("numerics") or {}).get("rows", [])
    known = [
        r["sqnr_db"] for r in rows if r["format"] == kind and r["sqnr_db"] is not None
    ]
    return f"{min(known):.1f}-{max(known):.1f}" if known else "-"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train")
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("out", nargs="?")
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train)
    else:
        where = Path(arguments.out or os.environ.get("OUT", "."))
        sys.exit(main(where, only_costs=arguments.costs))
