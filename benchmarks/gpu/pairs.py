"""Train one model in BF16 and in FP8, in pairs: the times of steps, and a trace of each run.

    python benchmarks/gpu/pairs.py FOLDER [SECONDS]

All runs are in one process, one after the other, on a GPU that nothing else uses. FOLDER gets
`times.json`, with the milliseconds of steps that no profiler watched, and a trace of one step
of each run; `benchmarks/payoff_table.py` holds the estimates for the traces against the times.
Runs that would begin after SECONDS are left out, those that compile first.
"""

# ruff: noqa: N803 - Triton's names
from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

BLOCK = 128
RANK = 16
E4M3_MAX = 448.0
WARM_UP, TIMED, PROFILED = 4, 16, 1
# Seconds that a run takes at the most, by whether it compiles.
EAGER_S, COMPILED_S = 4.0, 16.0


class Size(NamedTuple):
    """A model, and the tokens of its steps."""

    dim: int
    hidden: int
    layers: int
    vocabulary: int
    batch: int
    length: int


SIZES = {
    "768": Size(768, 2048, 6, 50304, 16, 1024),
    "1024": Size(1024, 4096, 6, 32000, 8, 1024),
    "2048": Size(2048, 8192, 4, 32000, 8, 1024),
    "2048 few tokens": Size(2048, 8192, 4, 32000, 1, 512),
    "2048 long": Size(2048, 8192, 2, 32000, 4, 4096),
    "4096": Size(4096, 14336, 2, 32000, 8, 1024),
}
EAGER, COMPILED, GRAPHS = "eager", "compiled", "graphs"
# Size, mode, and recipes after that of the BF16 run.
RUNS: list[tuple[str, str, list[str]]] = [
    ("2048", EAGER, ["bf16", "tensorwise", "rowwise", "rowwise_with_gw_hp"]),
    ("2048", EAGER, ["lora-bf16", "lora-block-slow", "lora-block-fast", "lora-tensorwise"]),
    ("4096", EAGER, ["bf16", "tensorwise", "rowwise", "rowwise_with_gw_hp"]),
    ("4096", EAGER, ["lora-bf16", "lora-block-slow", "lora-tensorwise"]),
    ("1024", EAGER, ["bf16", "tensorwise", "rowwise"]),
    ("768", EAGER, ["bf16", "tensorwise"]),
    ("2048 few tokens", EAGER, ["bf16", "tensorwise"]),
    ("2048 long", EAGER, ["bf16", "tensorwise", "rowwise_with_gw_hp"]),
    ("2048", COMPILED, ["bf16", "tensorwise", "rowwise", "rowwise_with_gw_hp"]),
    ("4096", COMPILED, ["bf16", "tensorwise", "rowwise"]),
    ("1024", COMPILED, ["bf16", "tensorwise"]),
    ("2048 few tokens", GRAPHS, ["bf16", "tensorwise"]),
    ("4096", COMPILED, ["rowwise_with_gw_hp"]),
    ("768", COMPILED, ["bf16", "tensorwise"]),
]  # fmt: skip


# ---- block scales in Triton kernels, as libraries for LoRA over FP8 weights have them


@triton.jit
def _cast_blocks(x_ptr, y_ptr, s_ptr, SIDE: tl.constexpr):
    place = tl.program_id(axis=0)
    offsets = place * SIDE + tl.arange(0, SIDE)
    x = tl.load(x_ptr + offsets).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x)), 1e-12) / 448.0
    tl.store(y_ptr + offsets, (x / scale).to(y_ptr.dtype.element_ty))
    tl.store(s_ptr + place, scale)


@triton.jit
def _w8a8_block_fp8_matmul(
    a_ptr, b_ptr, c_ptr, a_scale_ptr, b_scale_ptr, M, N, K,
    stride_am, stride_bn, stride_cm, stride_asm, stride_bsn,
    SIDE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(axis=0)
    columns = tl.cdiv(N, SIDE)
    rows = tl.cdiv(M, SIDE)
    first = (place // (GROUP * columns)) * GROUP
    group = min(rows - first, GROUP)
    m = first + (place % group)
    n = (place % (GROUP * columns)) // group
    of_m = m * SIDE + tl.arange(0, SIDE)
    of_n = n * SIDE + tl.arange(0, SIDE)
    of_k = tl.arange(0, SIDE)
    a_ptrs = a_ptr + of_m[:, None] * stride_am + of_k[None, :]
    b_ptrs = b_ptr + of_n[None, :] * stride_bn + of_k[:, None]
    total = tl.zeros((SIDE, SIDE), dtype=tl.float32)
    for k in range(tl.cdiv(K, SIDE)):
        a = tl.load(a_ptrs)
        b = tl.load(b_ptrs)
        a_scale = tl.load(a_scale_ptr + of_m * stride_asm + k)
        b_scale = tl.load(b_scale_ptr + n * stride_bsn + k)
        total += tl.dot(a, b) * a_scale[:, None] * b_scale
        a_ptrs += SIDE
        b_ptrs += SIDE
    c_ptrs = c_ptr + of_m[:, None] * stride_cm + of_n[None, :]
    tl.store(c_ptrs, total.to(tl.bfloat16))


class _BlockProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale, warps):
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        m, k = flat.shape
        n = len(weight)
        low = torch.empty_like(flat, dtype=torch.float8_e4m3fn)
        scales = torch.empty(m, k // BLOCK, device=x.device)
        _cast_blocks[(scales.numel(),)](flat, low, scales, SIDE=BLOCK)
        out = torch.empty(m, n, device=x.device, dtype=torch.bfloat16)
        _w8a8_block_fp8_matmul[(triton.cdiv(m, BLOCK) * triton.cdiv(n, BLOCK),)](
            low, weight, out, scales, scale, m, n, k,
            low.stride(0), weight.stride(0), out.stride(0), scales.stride(0), scale.stride(0),
            SIDE=BLOCK, GROUP=8, num_warps=warps, num_stages=3 if warps == 8 else 2,
        )  # fmt: skip
        ctx.save_for_backward(weight, scale)
        return out.view(*x.shape[:-1], n)

    @staticmethod
    def backward(ctx, gradient):
        weight, scale = ctx.saved_tensors
        n, k = weight.shape
        tiles = weight.bfloat16().view(n // BLOCK, BLOCK, k // BLOCK, BLOCK)
        wide = (tiles * scale.bfloat16()[:, None, :, None]).view(n, k)
        return gradient @ wide, None, None, None


class BlockLinear(nn.Module):
    """A frozen linear layer whose weight is stored in FP8 with a scale for each 128 x 128 block."""

    def __init__(self, linear: nn.Linear, warps: int) -> None:
        super().__init__()
        n, k = linear.weight.shape
        tiles = (
            linear.weight.detach().float().view(n // BLOCK, BLOCK, k // BLOCK, BLOCK)
        )
        scale = tiles.abs().amax(dim=(1, 3)) / E4M3_MAX
        low = (tiles / scale[:, None, :, None]).view(n, k).to(torch.float8_e4m3fn)
        self.in_features = k
        self.out_features = n
        self.warps = warps
        self.weight = nn.Parameter(low, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        return _BlockProduct.apply(x, self.weight, self.scale, self.warps)


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        options = {"bias": False, "device": "cuda", "dtype": torch.bfloat16}
        self.lora_A = nn.Linear(base.in_features, RANK, **options)
        self.lora_B = nn.Linear(RANK, base.out_features, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        return self.base(x) + 2.0 * self.lora_B(self.lora_A(x))


# ---- the model


class Block(nn.Module):
    """Attention and a gated MLP."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.heads = dim // 64
        self.norm1 = nn.RMSNorm(dim)
        self.norm2 = nn.RMSNorm(dim)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(dim, dim, bias=False))
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, dim) to the same shape."""
        normed = self.norm1(x)
        q, k, v = (
            layer(normed).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(x.shape))
        normed = self.norm2(x)
        return x + self.down_proj(
            functional.silu(self.gate_proj(normed)) * self.up_proj(normed)
        )


class Model(nn.Module):
    """Embedding, blocks, and a head that stays in BF16."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.dim)
        self.layers = nn.ModuleList(
            Block(size.dim, size.hidden) for _ in range(size.layers)
        )
        self.norm = nn.RMSNorm(size.dim)
        self.lm_head = nn.Linear(size.dim, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length + 1) of tokens to the loss of predicting the next."""
        x = self.embedding(tokens[:, :-1])
        for block in self.layers:
            x = block(x)
        logits = self.lm_head(self.norm(x)).flatten(0, 1)
        return functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())


def _replace_linears(model: Model, make: Callable[[nn.Module], nn.Module]) -> None:
    for block in model.layers:
        for name, child in list(block.named_children()):
            if name.endswith("_proj"):
                setattr(block, name, make(child))


def build(size: Size, recipe: str) -> Model:
    """Make the model of a run on the GPU."""
    with torch.device("cuda"):
        model = Model(size).to(torch.bfloat16)
    base = recipe.removeprefix("lora-")
    if base.startswith("block-"):
        warps = 4 if base == "block-slow" else 8
        _replace_linears(model, lambda layer: BlockLinear(layer, warps))
    if recipe.startswith("lora-"):
        model.requires_grad_(False)
        _replace_linears(model, Adapted)
    if base in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(
            model,
            config=Float8LinearConfig.from_recipe_name(base),
            module_filter_fn=lambda _, name: (
                name.startswith("layers.") and "lora_" not in name
            ),
        )
    return model


def run(
    name: str, size: Size, mode: str, recipe: str, folder: Path
) -> dict[str, object]:
    """Train, and return the milliseconds of its steps; the trace is written to the folder."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = build(size, recipe)
    if mode != EAGER:
        for block in model.layers:
            block.compile(mode="reduce-overhead" if mode == GRAPHS else None)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    tokens = torch.randint(
        size.vocabulary, (size.batch, size.length + 1), device="cuda"
    )

    def step() -> Tensor:
        if mode == GRAPHS:
            torch.compiler.cudagraph_mark_step_begin()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    marks = []
    for _ in range(TIMED + 1):
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        marks.append(mark)
        loss = step()
    torch.cuda.synchronize()
    steps = [before.elapsed_time(after) for before, after in pairwise(marks)]
    plan = schedule(wait=0, warmup=1, active=PROFILED, repeat=1)
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    target = folder / f"{name.replace(' ', '_')}.json.gz"

    def export(trace: profile) -> None:
        trace.export_chrome_trace(str(target))

    with profile(
        activities=kinds, schedule=plan, record_shapes=True, on_trace_ready=export
    ) as trace:
        for _ in range(1 + PROFILED):
            step()
            trace.step()
    return {"ms": steps, "median_ms": median(steps), "loss": loss.item()}


def main() -> None:
    """Make all runs for which there is time."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + float(sys.argv[2] if len(sys.argv) > 2 else 600)
    about: dict[str, object] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    for size, mode, recipes in RUNS:
        for recipe in recipes:
            begin = time.monotonic()
            if begin + (EAGER_S if mode == EAGER else COMPILED_S) > end:
                continue
            name = f"{size} {mode} {recipe}"
            try:
                about[name] = run(name, SIZES[size], mode, recipe, folder)
            except Exception as error:  # a recipe that fails leaves the others
                about[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
            torch.cuda.empty_cache()
            took = time.monotonic() - begin
            print(f"{name:34s} {took:5.1f} s  {str(about[name])[-90:]}", flush=True)
            (folder / "times.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()
