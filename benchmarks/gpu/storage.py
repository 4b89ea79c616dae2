"""Runs whose weights or states are only stored in FP8, eager and compiled: `WAYS` has the truth.

    python benchmarks/gpu/storage.py FOLDER          # all of them, three minutes on an H100
    fp8verify run --steps 5-7 benchmarks/gpu/storage.py kohya [--compile]

Eight frozen layers of 2048 x 2048 with LoRA adapters, as each library keeps them. The first form
records every way in FOLDER, holds verdicts, finding and exit code against `WAYS`, and fails if one
differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM, TOKENS = (2048, 4096) if DEVICE == "cuda" else (64, 32)
LAYERS, RANK, STEPS, BLOCK = 8, 16, 8, 32
FP8, LARGEST = torch.float8_e4m3fn, 448.0
TOGETHER = 4  # runs at once: only their verdicts count


class Truth(NamedTuple):
    """What a report must say of a way, and what the way is."""

    verdict: str
    storage: bool
    what: str


WAYS = {
    "kohya": Truth(
        "INACTIVE", True, "sd-scripts --fp8_base: weights are FP8 parameters"
    ),
    "musubi": Truth(
        "INACTIVE", True, "--fp8_scaled: FP8 parameters beside a buffer of scales"
    ),
    "diffusers": Truth(
        "INACTIVE", True, "layerwise casting: hooks convert modules to and fro"
    ),
    "torchao": Truth("INACTIVE", True, "Float8WeightOnlyConfig: a tensor class"),
    "quanto": Truth("INACTIVE", True, "a tensor class with its own `linear`"),
    "checkpoint": Truth(
        "INACTIVE", True, "transformers: FP8 parameters and scales of blocks"
    ),
    "claimed": Truth("CONTRADICTED", True, "kohya, and the log claims FP8"),
    "qat": Truth("EMULATED", False, "torchao's QAT rounds activations and weights"),
    "qat-weights": Truth("INACTIVE", False, "torchao's QAT rounds weights alone"),
    "optimizer": Truth("INACTIVE", False, "AdamWFp8: the optimizer's states are FP8"),
}


def _scaled(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight.abs().amax().float() / LARGEST
    return (weight / scale).to(FP8), scale


class Quantized(Tensor):
    """As quanto's `WeightQBytesTensor`: bytes and a scale under the type of the activations."""

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor) -> Quantized:
        """Wrap FP8 values."""
        made: Quantized = Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=torch.bfloat16, device=data.device
        )
        return made

    def __init__(self, data: Tensor, scale: Tensor) -> None:
        self._data, self._scale = data, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["_data", "_scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, *_: Any) -> Quantized:
        return cls(inner["_data"], inner["_scale"])

    def wide(self) -> Tensor:
        """Return the values as BF16."""
        return self._data.to(torch.bfloat16) * self._scale.to(torch.bfloat16)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, _: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0]._data, args[0]._scale)
        plain = [arg.wide() if isinstance(arg, cls) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


class Adapter(nn.Module):
    """A LoRA adapter around a layer; `registers` whether the layer is a child of it, as in PEFT."""

    def __init__(self, layer: nn.Module, *, registers: bool) -> None:
        super().__init__()
        self.down = nn.Linear(
            DIM, RANK, bias=False, device=DEVICE, dtype=torch.bfloat16
        )
        self.up = nn.Linear(RANK, DIM, bias=False, device=DEVICE, dtype=torch.bfloat16)
        if registers:
            self.base_layer = layer
        self._base: Callable[[Tensor], Tensor] = (
            layer.forward if not registers else layer
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the adapter's output to that of the layer."""
        return self._base(x) + self.up(self.down(x))


def _widened(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        weight, scale = layer.weight.to(x.dtype), getattr(layer, "scale_weight", None)
        if scale is not None:
            blocks = scale.to(x.dtype)
            if blocks.dim() == 4:  # one for each block: (rows, 1, columns, 1)
                sides = DIM // BLOCK, BLOCK
                weight = (weight.view(*sides, *sides) * blocks).view(DIM, DIM)
            else:
                weight = weight * blocks
        return functional.linear(x, weight)

    return forward


def _store(way: str, layer: nn.Linear) -> None:
    """Keep the weight of a frozen layer in FP8."""
    weight = layer.weight.detach()
    if way in ("kohya", "claimed", "diffusers"):
        layer.weight = nn.Parameter(weight.to(FP8), requires_grad=False)
    if way in ("musubi", "quanto"):
        data, scale = _scaled(weight)
        kept = Quantized(data, scale) if way == "quanto" else data
        layer.weight = nn.Parameter(kept, requires_grad=False)
        if way == "musubi":
            layer.register_buffer("scale_weight", scale)
    if way == "checkpoint":
        blocks = weight.view(DIM // BLOCK, BLOCK, DIM // BLOCK, BLOCK)
        scale = blocks.abs().amax(dim=(1, 3), keepdim=True).float() / LARGEST
        layer.weight = nn.Parameter(
            (blocks / scale).to(FP8).view(DIM, DIM), requires_grad=False
        )
        layer.register_buffer("scale_weight", scale)
    if way in ("kohya", "claimed", "musubi", "checkpoint"):
        layer.forward = _widened(layer)  # type: ignore[method-assign]
    if way == "diffusers":
        layer.register_forward_pre_hook(
            lambda module, _: module.to(torch.bfloat16) and None
        )
        layer.register_forward_hook(lambda module, *_: module.to(FP8) and None)


def model_of(way: str) -> tuple[nn.Module, nn.Module]:
    """Return what runs, and what has the parameters that are trained."""
    layers = [nn.Linear(DIM, DIM, bias=False, device=DEVICE, dtype=torch.bfloat16)
              for _ in range(LAYERS)]  # fmt: skip
    base = nn.Sequential(*layers)
    if way.startswith("qat"):
        from torchao.quantization.qat.fake_quantize_config import (
            Float8FakeQuantizeConfig,
        )
        from torchao.quantization.qat.linear import FakeQuantizedLinear

        config = Float8FakeQuantizeConfig()
        activations = config if way == "qat" else None
        qat = [
            FakeQuantizedLinear.from_linear(one, activations, config) for one in layers
        ]
        return (model := nn.Sequential(*qat)), model
    if way == "optimizer":
        return base, base
    base.requires_grad_(False)
    if way == "torchao":
        from torchao.quantization import Float8WeightOnlyConfig, quantize_

        quantize_(base, Float8WeightOnlyConfig())
    for layer in layers:
        _store(way, layer)
    registers = way in ("torchao", "checkpoint", "diffusers")
    adapters = nn.ModuleList(Adapter(layer, registers=registers) for layer in layers)
    if registers:
        return nn.Sequential(*adapters), adapters
    for layer, adapter in zip(layers, adapters, strict=True):
        layer.forward = adapter.forward  # type: ignore[method-assign]
    return base, adapters


def train(way: str, *, compiled: bool) -> None:
    """Train for eight steps."""
    torch.manual_seed(0)
    if way == "claimed":
        print("INFO: Applied Float8 training: recipe=TENSORWISE", flush=True)
    model, trained = model_of(way)
    if compiled:
        model.compile()
    if way == "optimizer":
        from torchao.optim import AdamWFp8 as Optimizer
    else:
        from torch.optim import AdamW as Optimizer
    optimizer = Optimizer([p for p in trained.parameters() if p.requires_grad], lr=1e-4)
    for step in range(1, STEPS + 1):
        x = torch.randn(TOKENS, DIM, device=DEVICE, dtype=torch.bfloat16)
        loss = (model(x) - x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} | loss {loss.item():.4f}", flush=True)


def _record(folder: Path, way: str, compiled: bool) -> tuple[bool, str]:
    name = f"{way}{'-compiled' if compiled else ''}"
    report = folder / f"{name}.json"
    command = [sys.executable, "-m", "fp8verify", "run", "--exit-zero", "--steps", "5-7",
               "--trace-dir", str(folder / name), "-o", str(report), "--",
               sys.executable, __file__, way, *(["--compile"] if compiled else [])]  # fmt: skip
    with (folder / f"{name}.log").open("w") as log, suppress(subprocess.TimeoutExpired):
        subprocess.run(command, check=False, timeout=90, stdout=log, stderr=log)
    if not report.is_file():
        return False, f"{name:22} no report: {folder / name}.log"
    found = json.loads(report.read_text())
    codes = sorted(
        {one["code"] for one in found["findings"] if one["severity"] != "info"}
    )
    truth, modules = WAYS[way], found["ranks"][0]["modules"] or {}
    right = found["verdict"] == truth.verdict
    right = right and ("fp8-storage-only" in codes) == truth.storage
    if way == "optimizer":
        right = right and "optimizer states stored" in str(modules.get("storage"))
    said = (
        f"{found['verdict']} {' '.join(codes)} {'; '.join(modules.get('storage', []))}"
    )
    return (
        right,
        f"{name:22} {'ok   ' if right else 'WRONG'} {said}\n    {found['reason']}",
    )


def check(folder: Path) -> int:
    """Record every way, and return how many differ from the truth."""
    folder.mkdir(parents=True, exist_ok=True)
    ways = [(way, compiled) for way in WAYS for compiled in (False, True)]
    with ThreadPoolExecutor(TOGETHER) as pool:
        found = list(pool.map(lambda one: _record(folder, *one), ways))
    print("\n".join(line for _, line in found))
    wrong = sum(not right for right, _ in found)
    print(f"{len(found)} runs, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    if sys.argv[1] in WAYS:
        train(sys.argv[1], compiled="--compile" in sys.argv)
    else:
        sys.exit(bool(check(Path(sys.argv[1]))))
