"""A small language model in the shapes that fooled verifiers, each true by construction.

    python benchmarks/gpu/whole_models.py own-float8

`TRUTH` says for each what ran in FP8 and what did not. Two blocks of attention and MLP and a head;
every linear layer of the blocks has three GEMMs a step, one for each leg.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

VOCABULARY, DIM, HEADS, LAYERS, BATCH, LENGTH, STEPS = 8192, 2048, 16, 2, 4, 2048, 8
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

# What ran, by construction: the linear layers of the blocks, the head, and everything else.
TRUTH = {
    "own-float8": "every leg of 12 layers of a class of the script's own in FP8; head in BF16",
    "muon": "every leg of 12 layers in FP8; the optimizer's Newton-Schulz GEMMs in BF16",
    "unfused-attention": "every leg of 12 layers in FP8; attention's products in FP32 bmm",
    "forward-only": "fprop of 12 layers in FP8; no backward pass, no optimizer",
    "te-delayed": "te.Linear, LayerNormLinear and LayerNormMLP in FP8, delayed scaling; BF16 head",
    "te-current": "the same with current scaling",
    "te-block": "the same with block scaling",
    "te-backward-bf16": "the same with current scaling, backward in high precision by its recipe",
}


def _cast(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    limit = torch.finfo(dtype).max
    scale = limit / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-limit, limit).to(dtype), scale.reciprocal()


def _product(a: Tensor, b: Tensor, a_type: torch.dtype, b_type: torch.dtype) -> Tensor:
    """Multiply (m, k) by (k, n) in FP8; `_scaled_mm` wants B in columns."""
    a8, a_scale = _cast(a.contiguous(), a_type)
    b8, b_scale = _cast(b.t().contiguous(), b_type)
    return torch._scaled_mm(a8, b8.t(), a_scale, b_scale, out_dtype=torch.bfloat16)


class _Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return _product(x, weight.t(), E4M3, E4M3)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return _product(gradient, weight, E5M2, E4M3), _product(
            gradient.t(), x, E5M2, E4M3
        )


class Float8Linear(nn.Linear):
    """A linear class of a script's own, as nanochat has one, that no module list can know."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        flat = _Float8Product.apply(x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class Attention(nn.Module):
    """Causal attention over four linear layers."""

    def __init__(
        self, linear: Callable[[int, int], nn.Module], *, unfused: bool
    ) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(DIM, DIM) for _ in range(4))
        self.unfused = unfused

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, dim) to the same shape."""
        q, k, v = (
            layer(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        with sdpa_kernel(SDPBackend.MATH) if self.unfused else contextlib.nullcontext():
            if self.unfused:
                q, k, v = q.float(), k.float(), v.float()
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.to(x.dtype).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Attention and MLP with their norms."""

    def __init__(
        self, linear: Callable[[int, int], nn.Module], *, unfused: bool = False
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = Attention(linear, unfused=unfused)
        self.up, self.down = linear(DIM, 4 * DIM), linear(4 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, dim) to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class TransformerEngineBlock(nn.Module):
    """The same block of Transformer Engine's modules.

    LayerNormMLP cannot leave its backward pass in high precision: then two layers stand for it.
    """

    def __init__(self, *, fused_mlp: bool) -> None:
        super().__init__()
        import transformer_engine.pytorch as te

        options = {"bias": False, "params_dtype": torch.bfloat16, "device": "cuda"}
        self.qkv = te.LayerNormLinear(DIM, 3 * DIM, **options)
        self.o = te.Linear(DIM, DIM, **options)
        self.mlp = (
            te.LayerNormMLP(DIM, 4 * DIM, **options)
            if fused_mlp
            else nn.Sequential(
                te.LayerNormLinear(DIM, 4 * DIM, **options),
                nn.GELU(),
                te.Linear(4 * DIM, DIM, **options),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, dim) to the same shape."""
        q, k, v = (
            part.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)


class Model(nn.Module):
    """Embedding, blocks, and a head that stays in BF16."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList(blocks)
        self.lm_head = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) of tokens to the loss of predicting the next."""
        x = self.embedding(tokens)
        for block in self.layers:
            x = block(x)
        logits = self.lm_head(x[:, :-1])
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten()
        )


def _plain(width: int, out: int) -> nn.Module:
    return nn.Linear(width, out, bias=False)


def build(name: str) -> nn.Module:
    """Make the model of a case on the GPU."""
    if name.startswith("te-"):
        fused = name != "te-backward-bf16"
        blocks: list[nn.Module] = [
            TransformerEngineBlock(fused_mlp=fused) for _ in range(LAYERS)
        ]
    elif name == "own-float8":
        blocks = [
            Block(lambda i, o: Float8Linear(i, o, bias=False)) for _ in range(LAYERS)
        ]
    else:
        blocks = [
            Block(_plain, unfused=name == "unfused-attention") for _ in range(LAYERS)
        ]
    model = Model(blocks).to("cuda", torch.bfloat16)
    if name in ("muon", "unfused-attention", "forward-only"):
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(
            model, module_filter_fn=lambda _, fqn: fqn != "lm_head"
        )
        print(
            "Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=False"
        )
    return (
        model
        if name.startswith("te-") or name == "unfused-attention"
        else torch.compile(model)
    )


def optimizers(name: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    """AdamW; for the case `muon` torch's Muon for the matrices of the blocks."""
    if name != "muon":
        return [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)]
    matrices = {id(p): p for p in model.layers.parameters() if p.ndim == 2}
    rest = [p for p in model.parameters() if id(p) not in matrices]
    return [
        torch.optim.Muon(list(matrices.values()), lr=1e-3),
        torch.optim.AdamW(rest, lr=1e-4, fused=True),
    ]


@contextlib.contextmanager
def recipe(name: str) -> Iterator[None]:
    """Transformer Engine's autocast for its cases, nothing for the others."""
    if not name.startswith("te-"):
        yield
        return
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as recipes

    made = {
        "te-delayed": lambda: recipes.DelayedScaling(margin=1, amax_history_len=16),
        "te-current": recipes.Float8CurrentScaling,
        "te-block": recipes.Float8BlockScaling,
        "te-backward-bf16": lambda: recipes.Float8CurrentScaling(
            backward_override="high_precision"
        ),
    }[name]()
    with te.fp8_autocast(enabled=True, fp8_recipe=made):
        yield


def main() -> None:
    """Train the case named on the command line, or only evaluate it."""
    name = sys.argv[1]
    torch.manual_seed(0)
    model = build(name)
    found = optimizers(name, model)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")
    for step in range(1, STEPS + 1):
        if name == "forward-only":
            import fp8verify

            with torch.no_grad():
                loss = model(tokens)
            fp8verify.step()
        else:
            with recipe(name):
                loss = model(tokens)
            loss.backward()
            for optimizer in found:
                optimizer.step()
                optimizer.zero_grad()
        print(f"step {step} | loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
