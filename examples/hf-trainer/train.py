"""Train a stack of linear layers with transformers.Trainer, in BF16 or, by torchao, in FP8.

    fp8verify run --steps 5-7 examples/hf-trainer/train.py --precision fp8

What fp8verify should say: ACTIVE with --precision fp8 on a GPU of compute capability 8.9 or above,
INACTIVE with --precision bf16, INCONCLUSIVE on a CPU, where no GPU kernel runs. The report names
the steps as the Trainer does: `transformers global_step 5-7`.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments


class Stack(nn.Module):
    """Linear layers of one width that learn to give back their input."""

    def __init__(self, dim: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(dim, dim, bias=False), nn.GELU())
                for _ in range(layers)
            )
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return the loss of a batch, as the Trainer wants it."""
        x = x.to(next(self.parameters()).dtype)
        return {"loss": (self.layers(x) - x).float().square().mean()}


def main() -> None:
    """Convert the model before the Trainer gets it, and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=["bf16", "fp8"], default="bf16")
    parser.add_argument("--max-steps", type=int, default=10)
    parser.add_argument(
        "--dim", type=int, default=4096 if torch.cuda.is_available() else 64
    )
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    model = Stack(args.dim, args.layers).to(torch.bfloat16)
    if args.precision == "fp8":
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(model)
    arguments = TrainingArguments(
        output_dir="checkpoints",
        max_steps=args.max_steps,
        per_device_train_batch_size=64,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        torch_compile=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
    )
    rows = [{"x": torch.randn(args.dim)} for _ in range(64 * args.max_steps)]
    Trainer(model=model, args=arguments, train_dataset=rows).train()


if __name__ == "__main__":
    main()
