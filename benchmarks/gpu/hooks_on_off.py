"""Train with our hooks on and off by turns, in one process: what an idle agent costs a step.

    fp8verify run --steps 30-32 --exit-zero benchmarks/gpu/hooks_on_off.py

Two processes differ by more than the hooks cost, and the GPU's clocks drift. Here neighboring
blocks of steps share both; the order flips, so a steady drift cancels. The window comes first:
what follows is a process that has been profiled. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, stdev

import torch
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import train_gpt

SETTLED = 60
BLOCK = 20


@contextmanager
def without_hooks() -> Iterator[None]:
    """Take every hook off optimizers, and put them back."""
    tables = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    kept = [dict(table) for table in tables]
    if not all(kept):
        raise SystemExit("no hooks are installed: run this under `fp8verify run`")
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, kept, strict=True):
            table.update(hooks)


def main() -> None:
    """Measure pairs of blocks and print what the hooks add to a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=50)
    pairs = parser.parse_known_args()[0].pairs
    sys.argv[1:] = ["--precision", "fp8", "--compile", "--batch", "8"]
    args = train_gpt.parse_args()
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    model = train_gpt.Gpt(args.vocab, args.dim, args.hidden, args.layers, args.seq)
    model.to(args.device, torch.bfloat16)
    train_gpt.convert(model, args)
    model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    def steps(count: int) -> float:
        """Return the median milliseconds of some steps."""
        taken = []
        for _ in range(count):
            begin = time.perf_counter()
            loss = model(*train_gpt.batch_of(text, args))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            taken.append(1000 * (time.perf_counter() - begin))
        return median(taken)

    steps(SETTLED)
    on, off = [], []
    for pair in range(pairs):
        for hooked in (pair % 2 == 0, pair % 2 == 1):
            if hooked:
                on.append(steps(BLOCK))
            else:
                with without_hooks():
                    off.append(steps(BLOCK))
    changes = [with_ / without - 1 for with_, without in zip(on, off, strict=True)]
    print(
        json.dumps(
            {
                "on_ms": round(median(on), 3),
                "off_ms": round(median(off), 3),
                "change": round(mean(changes), 5),
                "standard_error": round(stdev(changes) / len(changes) ** 0.5, 5),
            }
        )
    )


if __name__ == "__main__":
    main()
