"""deepspeed.initialize on a tiny model: six updates of two batches each."""

import argparse

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=0)
parser.add_argument("--overflow-at", type=int, help="the update to skip")
parser.add_argument("--save", action="store_true", help="a checkpoint, at the end")
parser.add_argument("--load", action="store_true", help="that checkpoint, and go on")
parser.add_argument("--local_rank", type=int, default=0, help="deepspeed's launcher passes it")
args = parser.parse_args()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": args.stage},
        "bf16": {"enabled": True, "check_grad_overflow": True},
    },
)
if args.load:
    engine.load_checkpoint("checkpoints")
for update in range(1, 7):
    for _ in range(2):
        loss = engine(torch.randn(4, 32, dtype=torch.bfloat16)).square().mean()
        engine.backward(loss * float("inf") if update == args.overflow_at else loss)
        engine.step()
    if engine.global_rank == 0:
        print(f"update {engine.global_steps} loss {loss.item():.8f}", flush=True)
if args.save:
    engine.save_checkpoint("checkpoints")
