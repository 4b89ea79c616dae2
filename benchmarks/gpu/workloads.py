"""Runs whose GEMM kernels are known by construction: what the GPU tests record and verify.

    python benchmarks/gpu/workloads.py blockwise-cublas

Each runs ten optimizer steps of two bias-free layers, so a step has six GEMMs: two layers,
three legs. `PRECISION` says what they run in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

TEMPLATES_ONLY = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
TOKENS, DIM, LAYERS, EXPERTS, STEPS = 8192, 2048, 2, 8, 10


def stack() -> nn.Sequential:
    """Two square linear layers in BF16."""
    layers = [nn.Linear(DIM, DIM, bias=False) for _ in range(LAYERS)]
    return nn.Sequential(*layers).to("cuda", torch.bfloat16)


def triton_template() -> nn.Module:
    """FP8 through Inductor's own GEMM templates, kernels called `triton_tem_fused_…`."""
    from torchao.float8 import convert_to_float8_training

    model = convert_to_float8_training(stack())
    model.compile(options=TEMPLATES_ONLY)
    return model


def blockwise(*, use_triton: bool) -> nn.Module:
    """1x128 by 128x128 scales, in cuBLAS or in torchao's Triton kernels."""
    from torchao.prototype.blockwise_fp8_training.linear import Float8BlockwiseLinear

    model = stack()
    for index, linear in enumerate(model):
        model[index] = Float8BlockwiseLinear.from_float(linear)
        model[index].use_triton = use_triton
    return model


class Experts(nn.Module):
    """One weight for each expert; tokens are dealt to them evenly."""

    def __init__(self, *, fp8: bool) -> None:
        super().__init__()
        weight = (
            torch.randn(EXPERTS, DIM, DIM, device="cuda", dtype=torch.bfloat16)
            / DIM**0.5
        )
        self.weight = nn.Parameter(weight)
        self.fp8 = fp8
        ends = torch.arange(1, EXPERTS + 1, device="cuda") * (TOKENS // EXPERTS)
        self.register_buffer("ends", ends.to(torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, dim) to the same shape."""
        if not self.fp8:
            return torch._grouped_mm(x, self.weight.transpose(-2, -1), offs=self.ends)
        from torchao.prototype.moe_training.fp8_grouped_mm import (
            _to_fp8_rowwise_then_scaled_grouped_mm,
        )

        return _to_fp8_rowwise_then_scaled_grouped_mm(
            x,
            self.weight.transpose(-2, -1),
            self.ends,
            pad_token_groups_for_grouped_mm=False,
        )


def experts(*, fp8: bool) -> nn.Module:
    """Two layers of experts in `_scaled_grouped_mm` or `_grouped_mm`."""
    return nn.Sequential(*(Experts(fp8=fp8) for _ in range(LAYERS)))


WORKLOADS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "triton-template": (triton_template, "fp8"),
    "blockwise-cublas": (lambda: blockwise(use_triton=False), "fp8"),
    "blockwise-triton": (lambda: blockwise(use_triton=True), "fp8"),
    "experts-fp8": (lambda: experts(fp8=True), "fp8"),
    "experts-bf16": (lambda: experts(fp8=False), "bf16"),
}
PRECISION = {name: precision for name, (_, precision) in WORKLOADS.items()}
GEMMS_A_STEP = 3 * LAYERS


def main() -> None:
    """Train the workload named on the command line."""
    torch.manual_seed(0)
    model = WORKLOADS[sys.argv[1]][0]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(
        TOKENS, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True
    )
    for step in range(1, STEPS + 1):
        loss = (model(x) - x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} | loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
