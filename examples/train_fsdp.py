"""Train the GPT of train_gpt.py on several GPUs with FSDP2 or DDP, in BF16 or FP8.

    torchrun --nproc-per-node 2 examples/train_fsdp.py --precision fp8 --fp8-all-gather
    fp8verify run --steps 5-7 --ranks all -- torchrun --nproc-per-node 2 examples/train_fsdp.py

What fp8verify should say: ACTIVE with --precision fp8, with the all-gather proved or refuted by
its bytes; PARTIAL with --parallel ddp --bf16-rank 1, a rank that was never converted.
"""

from __future__ import annotations

import argparse
import logging
import os

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from train_gpt import Gpt

log = logging.getLogger("train_fsdp")
VOCAB = 32000


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parallel", choices=["fsdp", "ddp"], default="fsdp")
    parser.add_argument("--precision", choices=["bf16", "fp8"], default="fp8")
    parser.add_argument(
        "--fp8-all-gather", action="store_true", help="gather FP8 weights"
    )
    parser.add_argument("--bf16-rank", type=int, help="a rank that is left in BF16")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=2048)
    return parser.parse_args()


def convert(model: nn.Module, args: argparse.Namespace) -> None:
    """Swap every linear but the head for Float8Linear."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(enable_fsdp_float8_all_gather=args.fp8_all_gather)
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _module, fqn: fqn != "head"
    )
    log.info(
        "Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=%s",
        args.fp8_all_gather,
    )


def parallelise(
    model: Gpt, args: argparse.Namespace, device: torch.device
) -> nn.Module:
    """Wrap the model; FSDP2 shards each block and then the rest."""
    if args.parallel == "ddp":
        return DistributedDataParallel(
            model.to(torch.bfloat16), device_ids=[device.index]
        )
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    for block in model.layers:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def main() -> None:
    """Train on random tokens, printing the loss of each step on rank 0."""
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
    rank, device = (
        int(os.environ["RANK"]),
        torch.device("cuda", int(os.environ["LOCAL_RANK"])),
    )
    torch.cuda.set_device(device)
    init_process_group("nccl")
    torch.manual_seed(0)
    model = Gpt(VOCAB, args.dim, 4 * args.dim, args.layers, args.seq).to(device)
    if args.precision == "fp8" and rank != args.bf16_rank:
        convert(model, args)
    model = parallelise(model, args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(VOCAB, (args.batch, args.seq + 1), device=device)
    for step in range(1, args.steps + 1):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.item()
        if rank == 0:
            print(f"step {step:3d} | loss {shown:.4f}", flush=True)
    destroy_process_group()


if __name__ == "__main__":
    main()
