"""Two ranks that train a small GPT in FP8 by torchao, sound or with something wrong on rank 1.

    torchrun --nproc-per-node 2 benchmarks/gpu/ranks.py MODE    # e.g. ddp_layer, fsdp, rollout

A mode is a parallelism (`ddp`, `mb`, `fsdp`, `fsdpag`, `rollout`), and perhaps a fault behind `_`
(`layer`, `wgrad`, `rowwise`, `model`, `dies`, `sleeps`). On one GPU both ranks share it, by gloo.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

import fp8verify

WIDTH, WORDS, HEADS = 1024, 4096, 8
BLOCKS = int(os.environ.get("RANKS_BLOCKS", "4"))
MICRO_BATCHES = int(os.environ.get("RANKS_MICRO", "2"))
STEPS = 9
FAULTY_RANK = 1


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Embedding, blocks, and a head that stays in BF16."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map (batch, length) of tokens to (batch, length, words)."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def converted(model: Model, parallel: str, fault: str, rank: int) -> None:
    """Convert all layers but the head, and on the faulty rank but what the fault leaves out."""
    is_faulty = rank == FAULTY_RANK

    def accept(_: nn.Module, name: str) -> bool:
        left_out = fault == "layer" and is_faulty and name == "blocks.2.up"
        whole_model = fault == "model" and is_faulty
        return name != "head" and not left_out and not whole_model

    config = Float8LinearConfig(enable_fsdp_float8_all_gather=parallel == "fsdpag")
    if fault == "wgrad" and is_faulty:
        config = Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp")
    elif fault in ("wgrad", "rowwise"):
        config = Float8LinearConfig.from_recipe_name("rowwise")
    convert_to_float8_training(model, config=config, module_filter_fn=accept)


def generate(model: nn.Module) -> None:
    """Run what a worker does that only generates."""
    with torch.no_grad():
        for _ in range(MICRO_BATCHES):
            model(torch.randint(0, WORDS, (4, 256), device="cuda"))
    fp8verify.step()


def train(model: nn.Module, micro_batches: int, step: int, rank: int) -> Tensor:
    """Run the micro-batches of a step; return the last loss."""
    for micro_batch in range(micro_batches):
        torch.manual_seed(100 * step + 10 * micro_batch + rank)
        ids = torch.randint(0, WORDS, (8, 256), device="cuda")
        is_last = micro_batch == micro_batches - 1
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = is_last
        loss = functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        loss.backward()
    return loss


def main() -> None:
    """Train the rank of this process."""
    parallel, _, fault = sys.argv[1].partition("_")
    rank = int(os.environ["RANK"])
    shares_gpu = torch.cuda.device_count() == 1
    dist.init_process_group("gloo" if shares_gpu else "nccl")
    torch.cuda.set_device(0 if shares_gpu else int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model: nn.Module = Model().to(torch.bfloat16).cuda()
    converted(model, parallel, fault, rank)
    if parallel in ("ddp", "mb"):
        model = DistributedDataParallel(model)
    elif parallel.startswith("fsdp"):
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    micro_batches = MICRO_BATCHES
    if parallel == "mb":
        micro_batches += rank
    losses = []
    for step in range(1, STEPS + 1):
        if fault == "dies" and rank == FAULTY_RANK and step == 6:
            os._exit(7)
        if parallel == "rollout" and rank == 1:
            generate(model)
            continue
        loss = train(model, micro_batches, step, rank)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 6))
    print(f"rank {rank} losses {losses}", flush=True)
    if fault == "sleeps":
        time.sleep(60)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
