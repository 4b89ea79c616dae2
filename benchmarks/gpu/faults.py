"""Runs with one fault each, which run as they are: the live counterparts of `truth.py`.

    fp8verify run --steps 5-7 benchmarks/gpu/faults.py one-step

Four bias-free linear layers of Transformer Engine or torchao, ten optimizer steps of two
micro-batches. `FAULTS` says what is wrong in each; `record.sh` records them all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

TOKENS, DIM, LAYERS, STEPS, MICRO_BATCHES = 4096, 2048, 4, 10, 2
BLOCK = 128
FAULTS = {
    "one-step": "step 6 runs outside the autocast",
    "one-micro-batch": "the second micro-batch of each step runs outside the autocast",
    "pinned-layer": "the log says that the first layer stays in BF16, and it was converted",
    "nvfp4-fallback": "the log promises NVFP4, and the GPU gets FP8",
    "own-kernel": "a Triton kernel of the script multiplies half of the layers in BF16",
    "own-op": "the same kernel in a custom operator",
    "own-kernel-compiled": "the same kernel in layers that Inductor compiles",
    "graphed": "half of the layers are replayed as CUDA graphs, in BF16",
    "rollout": "the model generates in FP8 and trains in BF16",
    "recompute": "checkpointed layers are computed again outside the autocast, in BF16",
}


@triton.jit
def acme_kernel_v3(
    a, b, c, inner, a0, a1, b0, b1, c0, block: tl.constexpr, step: tl.constexpr
):  # type: ignore[no-untyped-def]
    """Multiply one tile; sizes are multiples of `block`."""
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros((block, block), dtype=tl.float32)
    for first in range(0, inner, step):
        depth = first + tl.arange(0, step)
        left = tl.load(a + rows[:, None] * a0 + depth[None, :] * a1)
        right = tl.load(b + depth[:, None] * b0 + columns[None, :] * b1)
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * c0 + columns[None, :], total.to(tl.bfloat16))


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` for BF16 matrices of any strides."""
    c = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)
    grid = (a.shape[0] // BLOCK, b.shape[1] // BLOCK)
    strides = (*a.stride(), *b.stride(), c.stride(0))
    acme_kernel_v3[grid](
        a, b, c, a.shape[1], *strides, block=BLOCK, step=64, num_warps=8
    )
    return c


class Multiply(torch.autograd.Function):
    """A linear layer, all three of whose GEMMs run in the kernel above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Map (tokens, in) by a weight of (out, in)."""
        ctx.save_for_backward(x, weight)
        return multiply(x, weight.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of input and weight."""
        x, weight = ctx.saved_tensors
        return multiply(gradient, weight), multiply(gradient.t(), x)


@torch.library.custom_op("acme::project", mutates_args=())
def project(x: Tensor, weight: Tensor) -> Tensor:
    """Run the kernel as an operator."""
    return multiply(x, weight.t())


def _project_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    return project(gradient, weight.t()), project(gradient.t(), x.t())


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


project.register_autograd(_project_backward, setup_context=_keep)


class OwnLinear(nn.Module):
    """A layer of the script's own."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        weight = torch.randn(DIM, DIM, device="cuda", dtype=torch.bfloat16) / DIM**0.5
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, DIM) to the same shape."""
        return self.function(x, self.weight)


def by_torchao() -> nn.Module:
    """All layers converted, although the log says otherwise of one."""
    from torchao.float8 import convert_to_float8_training

    print(
        "[Override] float8_linear: 0 Float8Linear.Config -> Linear.Config", flush=True
    )
    layers = [nn.Linear(DIM, DIM, bias=False) for _ in range(LAYERS)]
    model = convert_to_float8_training(
        nn.Sequential(*layers).to("cuda", torch.bfloat16)
    )
    model.compile()
    return model


def by_transformer_engine(fault: str) -> tuple[nn.Module, Callable[[bool], Any]]:
    """Return the model, and the context in which its layers run in FP8."""
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as recipes

    recipe = recipes.Float8CurrentScaling()
    if fault == "nvfp4-fallback":
        print("NVFP4 training enabled with recipe nvfp4", flush=True)
        if te.is_nvfp4_available():
            recipe = recipes.NVFP4BlockScaling()
    options = {"bias": False, "params_dtype": torch.bfloat16, "device": "cuda"}
    own = {
        "own-op": project,
        "own-kernel": Multiply.apply,
        "own-kernel-compiled": Multiply.apply,
    }
    half, others = LAYERS // 2, []
    if fault in own:
        others = [OwnLinear(own[fault]) for _ in range(half)]
    elif fault == "graphed":
        others = [
            nn.Linear(DIM, DIM, bias=False).to("cuda", torch.bfloat16)
            for _ in range(half)
        ]
        sample = torch.randn(
            TOKENS, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True
        )
        others = [torch.cuda.make_graphed_callables(nn.Sequential(*others), (sample,))]
    if fault == "own-kernel-compiled":
        others = [torch.compile(nn.Sequential(*others))]
    layers = [te.Linear(DIM, DIM, **options) for _ in range(half if others else LAYERS)]
    model = nn.Sequential(*layers, *others)
    return model, lambda enabled: te.autocast(enabled=enabled, recipe=recipe)


def main() -> None:
    """Train with the fault named on the command line."""
    from contextlib import nullcontext

    fault = sys.argv[1]
    torch.manual_seed(0)
    context: Callable[[bool], Any] = lambda _: nullcontext()  # noqa: E731
    if fault == "pinned-layer":
        model = by_torchao()
    else:
        model, context = by_transformer_engine(fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1, STEPS + 1):
        loss = torch.zeros((), device="cuda")
        for number in range(MICRO_BATCHES):
            x = torch.randn(
                TOKENS, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True
            )
            outside = (fault, step) == ("one-step", 6) or (fault, number) == (
                "one-micro-batch",
                1,
            )
            if fault == "rollout":
                with torch.no_grad(), context(True):
                    model(x)
                outside = True
            with context(not outside):
                again = fault == "recompute"
                y = checkpoint(model, x, use_reentrant=True) if again else model(x)
            part = (y - x).float().square().mean() / MICRO_BATCHES
            part.backward()
            loss += part.detach()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} | loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
