"""Train a stack of linear layers with Lightning's Trainer, in BF16 or, by torchao, in FP8.

    fp8verify run --steps 5-7 examples/lightning/train.py --precision fp8

What fp8verify should say: ACTIVE with --precision fp8 on a GPU of compute capability 8.9 or above,
INACTIVE with --precision bf16, INCONCLUSIVE on a CPU, where no GPU kernel runs. The report names
the steps as Lightning does: `lightning global_step 5-7`.
"""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Stack(lightning.LightningModule):
    """Linear layers of one width that learn to give back their input."""

    def __init__(self, dim: int, layers: int, *, fp8: bool) -> None:
        super().__init__()
        blocks = (
            nn.Sequential(nn.Linear(dim, dim, bias=False), nn.GELU())
            for _ in range(layers)
        )
        self.layers = nn.Sequential(*blocks).to(torch.bfloat16)
        self.fp8 = fp8

    def configure_model(self) -> None:
        """Convert on the device, before the optimizer is made."""
        if self.fp8:
            from torchao.float8 import convert_to_float8_training

            convert_to_float8_training(self.layers)
            self.fp8 = False
        if self.device.type == "cuda":
            self.layers.compile()

    def training_step(self, batch: Tensor, _index: int) -> Tensor:
        """Return the loss of a batch."""
        x = batch.to(torch.bfloat16)
        return (self.layers(x) - x).float().square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW over all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def main() -> None:
    """Train on random features."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=["bf16", "fp8"], default="bf16")
    parser.add_argument("--max-steps", type=int, default=10)
    parser.add_argument(
        "--dim", type=int, default=4096 if torch.cuda.is_available() else 64
    )
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    trainer = lightning.Trainer(
        max_steps=args.max_steps,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    rows = DataLoader(torch.randn(64 * args.max_steps, args.dim), batch_size=64)
    trainer.fit(Stack(args.dim, args.layers, fp8=args.precision == "fp8"), rows)


if __name__ == "__main__":
    main()
