"""A run with faults injected into its numbers, which writes down the true figures of each step.

usage: python benchmarks/figures_training.py TRUTH.jsonl [--recipe R] [--fault F] [--kind K] ...

Truth is computed over whole tensors with plain torch casts; nothing of fp8verify is imported.
Layers are torchao's Float8Linear, emulated, so it runs on a CPU.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

LAYERS, DIM, TOKENS, FAULTY, FIRST, STEPS = 5, 512, 1024, 2, 5, 9
FAULTS = (
    "gradient",
    "dead",
    "inf",
    "weight",
    "input",
    "underflow",
    "zero-rows",
    "padding",
)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WHAT_IF = {
    "tensorwise_e4m3": ("tensor", E4M3),
    "tensorwise_e5m2": ("tensor", E5M2),
    "rowwise_e4m3": ("row", E4M3),
    "block_1x128_e4m3": ("block", E4M3),
    "mxfp8_e4m3": ("mx", E4M3),
}


def cast(x, how, kind, power_of_2):
    """Return the FP8 values of a tensor, and these in its own range."""
    width = {"tensor": x.numel(), "row": x.shape[-1], "block": 128, "mx": 32}[how]
    groups = x.float().reshape(-1, width)
    largest = torch.finfo(kind).max
    amax = groups.abs().amax(dim=1, keepdim=True)
    if how == "mx":
        scale = torch.exp2(
            -torch.ceil(torch.log2(amax.clamp(min=2.0**-126) / largest)).clamp(-127)
        )
    else:
        scale = (largest / amax.double().clamp(min=1e-12)).float()
        scale = torch.exp2(torch.floor(torch.log2(scale))) if power_of_2 else scale
    values = (groups * scale).clamp(-largest, largest).to(kind).float()
    return values, values.double() / scale.double(), groups.double()


class Truth:
    """The figures of each layer's tensors, added up over the passes of a step."""

    def __init__(self, recipe):
        self.how = "tensor" if recipe == "tensorwise" else "row"
        self.gradient = E5M2 if recipe == "tensorwise" else E4M3
        self.sums = defaultdict(lambda: defaultdict(float))
        self.active = False

    def add(self, layer, tensor, x):
        """Add a tensor."""
        x = x.detach()
        sums = self.sums[f"{layer} {tensor}"]
        finite = torch.isfinite(x)
        sums["elements"] += x.numel()
        sums["nan"] += int(x.isnan().sum())
        sums["inf"] += int(x.isinf().sum())
        sums["rows"] += x.numel() // x.shape[-1]
        sums["zero_rows"] += int((x.reshape(-1, x.shape[-1]) == 0).all(dim=1).sum())
        if not bool(finite.all()):
            return
        kind = self.gradient if tensor == "grad_output" else E4M3
        values, back, groups = cast(x, self.how, kind, self.how == "row")
        sums["amax"] = max(sums["amax"], float(x.abs().max()))
        sums["zeros"] += int((groups == 0).sum())
        sums["flushed"] += int(((values == 0) & (groups != 0)).sum())
        sums["signal"] += float(groups.square().sum())
        sums["noise"] += float((groups - back).square().sum())
        for name, (how, other) in WHAT_IF.items():
            _, back, groups = cast(x, how, other, how == "row")
            sums[name] += float((groups - back).square().sum())

    def take(self):
        """Return the figures by layer and tensor, and begin anew."""
        sums, self.sums = self.sums, defaultdict(lambda: defaultdict(float))
        return {name: figures(one) for name, one in sums.items()}


def figures(sums):
    """Return what the report should say."""
    elements = sums["elements"]
    broken = {
        "nan": sums["nan"] / elements,
        "inf": sums["inf"] / elements,
        "zero_rows": sums["zero_rows"] / sums["rows"],
    }
    if sums["nan"] or sums["inf"]:
        return broken
    return {
        **broken,
        "amax": sums["amax"],
        "rms": math.sqrt(sums["signal"] / elements),
        "zeros": sums["zeros"] / elements,
        "flushed": sums["flushed"] / elements,
        "sqnr_db": decibels(sums["signal"], sums["noise"]),
        "what_if": {name: decibels(sums["signal"], sums[name]) for name in WHAT_IF},
    }


def decibels(signal, noise):
    """Return a ratio in dB, at most 150."""
    if not signal:
        return None
    return min(150.0, 10 * math.log10(signal / noise)) if noise else 150.0


def scaled_gradient(x, rows, factor):
    """Return the same values, whose gradient is multiplied in the first rows."""
    weights = torch.ones(len(x), 1)
    weights[:rows] = factor
    out = x * 1
    out.register_hook(lambda gradient: gradient * weights.to(gradient.dtype))
    return out


def batch(kind):
    """Return inputs of one kind of distribution."""
    x = torch.randn(TOKENS, DIM)
    if kind == "heavy":  # each row of its own size, over six octaves, with a heavy tail
        x = (
            x
            * torch.exp2(6 * torch.rand(TOKENS, 1))
            / torch.rand(TOKENS, DIM).clamp(min=1e-3)
        )
    if kind == "sparse":
        x = x * (torch.rand(TOKENS, DIM) < 0.1)
    if kind == "clumped":  # a quarter of the rows is padding, another quarter small
        x[: TOKENS // 4] = 0
        x[-TOKENS // 4 :] *= 1e-4
    return x.to(torch.bfloat16)


def sow(x, fault):
    """Return an input of the faulty layer."""
    x = x.clone()
    if fault == "inf":
        x[7, 3] = math.inf
    if fault == "input":
        x[7, 3] = 1e5
    if fault == "underflow":
        x[: TOKENS // 2] *= 1e-8
    if fault in ("zero-rows", "padding"):
        x[: TOKENS // 3] = 0
    return x


def build(recipe):
    """Return layers that cast as the recipe does."""
    layers = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(LAYERS))
    model = nn.ModuleDict({"layers": layers}).to(torch.bfloat16)
    config = Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", True)
    return convert_to_float8_training(model, config=config)


def watch(name, layer, truth):
    """Let a layer's tensors be added to the truth."""

    def before(_, inputs):
        if truth.active and torch._C._current_graph_task_id() == -1:
            truth.add(name, "input", inputs[0])
            truth.add(name, "weight", layer.weight)

    def after(_, __, out):
        if truth.active and out.requires_grad:
            out.register_hook(lambda gradient: truth.add(name, "grad_output", gradient))

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after)


def forward(layers, args, fault):
    """Return the loss of a micro-batch."""
    loss = 0
    for number, layer in enumerate(layers):
        x = batch(args.kind).requires_grad_()
        x = sow(x, fault) if number == FAULTY else x
        out = checkpoint(layer, x, use_reentrant=False) if args.checkpoint else layer(x)
        if number == FAULTY and fault in ("gradient", "dead"):
            out = scaled_gradient(out, TOKENS // 4 if fault == "gradient" else 1, 1e12)
        loss = loss + out.float().square().mean()
    return loss / args.accumulate


def gradients(model, clip):
    """Return the norm that the optimizer sees, and what clipping left of it."""
    ratio = None
    if clip:
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
        ratio = min(1.0, clip / (norm + 1e-6)) if math.isfinite(norm) else None
    norms = [parameter.grad.double().norm() for parameter in model.parameters()]
    norm = float(torch.stack(norms).norm())
    return {"norm": norm if math.isfinite(norm) else None, "clip_ratio": ratio}


def main():
    """Train, and write a line a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("truth", type=Path)
    parser.add_argument("--recipe", default="tensorwise")
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--fault-step", type=int, default=7)
    parser.add_argument("--kind", default="normal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--checkpoint", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model, truth = build(args.recipe), Truth(args.recipe)
    for number, layer in enumerate(model["layers"]):
        watch(f"layers.{number}", layer, truth)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with args.truth.open("w", encoding="utf-8") as file:
        for step in range(1, STEPS + 1):
            truth.active = step >= FIRST
            fault = args.fault if step >= args.fault_step else None
            if fault == "weight":
                with torch.no_grad():
                    model["layers"][FAULTY].weight[0, 0] = 1e3
            for _ in range(args.accumulate):
                loss = forward(model["layers"], args, fault)
                loss.backward()
            seen = gradients(model, args.clip)
            optimizer.step()
            optimizer.zero_grad()
            if truth.active:
                file.write(
                    json.dumps({"step": step, **seen, "rows": truth.take()}) + "\n"
                )
            print(f"step {step} loss {loss.item():.5g}", flush=True)


if __name__ == "__main__":
    main()
