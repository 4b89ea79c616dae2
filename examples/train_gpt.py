"""Train a small GPT on the bytes of a text file, in BF16 or in FP8 with torchao.

    python examples/train_gpt.py --precision fp8 --compile
    fp8verify run --steps 10-12 examples/train_gpt.py --precision fp8 --compile

What fp8verify should say: ACTIVE with --precision fp8 --compile on a GPU of compute capability
8.9 or above, INACTIVE with --precision bf16, CONTRADICTED with --skip-layers '.*' (the filter
rejects every layer and the log line is printed all the same), EMULATED with --emulate, and
INCONCLUSIVE on a CPU, where no GPU kernel runs. Without arguments the sizes suit the device.
"""

from __future__ import annotations

import argparse
import logging
import re
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

log = logging.getLogger("train_gpt")
TEXT = Path(__file__).parent / "data" / "public_domain.txt"
HEAD_DIM = 64


class Attention(nn.Module):
    """Causal self-attention with separate projections."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.heads = dim // HEAD_DIM
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, dim) to the same shape."""
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, HEAD_DIM)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, dim) to the same shape."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attn, self.mlp = Attention(dim), Mlp(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, dim) to the same shape."""
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """Token and position embeddings, blocks, and an output head of its own."""

    def __init__(
        self, vocab: int, dim: int, hidden: int, layers: int, seq: int
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(seq, dim)
        self.layers = nn.ModuleList(Block(dim, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Map token ids and the ids that follow them, both (batch, seq), to the mean loss."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def parse_args() -> argparse.Namespace:
    """Read the command line; sizes left out suit the device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=["bf16", "fp8"], default="bf16")
    parser.add_argument(
        "--recipe",
        choices=["tensorwise", "rowwise", "rowwise_with_gw_hp"],
        default="tensorwise",
    )
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument(
        "--skip-layers", metavar="REGEX", help="linears left in BF16, by name"
    )
    parser.add_argument(
        "--emulate", action="store_true", help="torchao's FP8 emulation"
    )
    parser.add_argument("--steps", type=int, default=15)
    for size in ("dim", "hidden", "layers", "batch", "seq", "vocab"):
        parser.add_argument(f"--{size}", type=int)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    args = parser.parse_args()
    large = {
        "dim": 2048,
        "hidden": 8192,
        "layers": 2,
        "batch": 4,
        "seq": 2048,
        "vocab": 32000,
    }
    small = {
        "dim": 128,
        "hidden": 512,
        "layers": 2,
        "batch": 2,
        "seq": 64,
        "vocab": 256,
    }
    for size, default in (large if args.device == "cuda" else small).items():
        if getattr(args, size) is None:
            setattr(args, size, default)
    return args


def convert(model: nn.Module, args: argparse.Namespace) -> None:
    """Swap linears for Float8Linear and log that, as frameworks do even if none was swapped."""
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(args.recipe)
    if args.emulate:
        config = replace(config, emulate=True)
    skip = re.compile(args.skip_layers) if args.skip_layers else None
    convert_to_float8_training(
        model,
        config=config,
        module_filter_fn=lambda _module, fqn: not (skip and skip.fullmatch(fqn)),
    )
    log.info(
        "Applied Float8 training: recipe=%s, fsdp_float8_all_gather=%s",
        args.recipe.upper(),
        config.enable_fsdp_float8_all_gather,
    )


def batch_of(text: Tensor, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Cut windows out of the text, which goes on at its start; inputs and targets (batch, seq)."""
    starts = torch.randint(len(text), (args.batch, 1))
    windows = text[(starts + torch.arange(args.seq + 1)) % len(text)].to(args.device)
    return windows[:, :-1], windows[:, 1:]


def main() -> None:
    """Train, printing the loss and the time of each step."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
    args = parse_args()
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    model = Gpt(args.vocab, args.dim, args.hidden, args.layers, args.seq).to(
        args.device, torch.bfloat16
    )
    if args.precision == "fp8":
        convert(model, args)
    if args.compile:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        loss = model(*batch_of(text, args))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.item()  # waits for the GPU, so the time is the step's
        milliseconds = 1000 * (time.perf_counter() - start)
        print(f"step {step:3d} | loss {shown:.4f} | {milliseconds:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
