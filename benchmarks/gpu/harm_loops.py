"""Runs on a GPU that look at themselves: `harm_loops.py CASE`; see `harm.py`."""

import copy
import hashlib
import io
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

CASE = sys.argv[1]
torch.manual_seed(0)
torch.cuda.manual_seed(0)
torch.use_deterministic_algorithms(True)
rank = int(os.environ.get("LOCAL_RANK", 0))
device = torch.device("cuda", rank)
torch.cuda.set_device(device)


class ScaledProduct(torch.autograd.Function):
    """A linear layer of the script's own, with tensorwise FP8 in its forward pass."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


def product(x, weight):
    scales = [one.abs().max().float().clamp(min=1e-12) / 448 for one in (x, weight)]
    low = [
        (one / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        for one, scale in zip((x, weight), scales, strict=True)
    ]
    return torch._scaled_mm(
        low[0],
        low[1].t(),
        scale_a=scales[0],
        scale_b=scales[1],
        out_dtype=torch.bfloat16,
    )


class Fp8Linear(nn.Linear):
    def forward(self, x):
        return ScaledProduct.apply(x, self.weight)


class Fake(nn.Module):
    """Counts its calls, draws random numbers and keeps a running maximum."""

    def __init__(self):
        super().__init__()
        self.register_buffer("amax", torch.zeros(1))
        self.calls = 0

    def forward(self, weight):
        self.calls += 1
        self.amax.mul_(0.9).add_(0.1 * weight.detach().abs().max().float())
        return weight * (torch.rand_like(weight) > 0.1)


def build():
    layers = [Fp8Linear(512, 512, bias=False) for _ in range(4)]
    model = nn.Sequential(*layers).to(device, torch.bfloat16)
    if CASE == "spectral":
        for layer in model:
            spectral_norm(layer)
    if CASE == "parametrized":
        for layer in model:
            parametrize.register_parametrization(layer, "weight", Fake().to(device))
    return model


model = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(256, 512, device=device, dtype=torch.bfloat16)


def step():
    optimizer.zero_grad()
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def digest(what):
    file = io.BytesIO()
    torch.save(what, file)
    return hashlib.sha256(file.getvalue()).hexdigest()[:16]


def saves(_):
    print(digest(model), digest(copy.deepcopy(model)), digest(optimizer))


def forks(number):
    if number in (3, 4, 5, 8):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            print("child", sum(range(10)), torch.ones(3).sum().item(), flush=True)
            sys.exit(5)
        until = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG))[
            0
        ] == 0 and time.monotonic() < until:
            time.sleep(0.02)
        if not ended[0]:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
        print("child ended", os.waitstatus_to_exitcode(ended[1]))


def timed():
    """Return the median time of 200 steps in milliseconds."""
    found = []
    for _ in range(200):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) * 1e3)
    return sorted(found)[len(found) // 2]


def times():
    """Step times before and after steps 261-262, which torch's profiler may record; to a file."""
    for _ in range(60):
        step()
    before = timed()
    with torch.profiler.profile() if "HARM_PROFILE" in os.environ else nullcontext():
        step()
        step()
    for _ in range(40):
        step()
    Path("times.log").write_text(f"{before} {timed()}")


def group():
    """Two ranks; rank 0 asks for a SIGTERM to the whole group, and each counts what it hears."""
    torch.distributed.init_process_group("nccl", device_id=device)
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    for number in range(1, 13):
        optimizer.zero_grad()
        wrapped(x).float().square().mean().backward()
        optimizer.step()
        torch.distributed.barrier()
        if number == 8 and rank == 0:
            os.kill(int(os.environ["HARM_TARGET"]), signal.SIGUSR2)  # harm.py sends it
        if number == 8:
            until = time.monotonic() + 10
            while not heard and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.5)
    Path(f"heard{rank}.txt").write_text(f"{len(heard)} {digest(model)}")
    torch.distributed.destroy_process_group()


def train():
    for number in range(1, 13):
        if CASE == "nvtx" and number in (3, 4, 8):
            with torch.autograd.profiler.emit_nvtx():
                loss = step()
        else:
            loss = step()
        print(number, loss.hex())
        if CASE in ("saves", "forks"):
            globals()[CASE](number)
    print(digest(model.state_dict()))
    if CASE == "parametrized":
        print([layer.parametrizations.weight[0].calls for layer in model])


globals().get({"times": "times", "group": "group"}.get(CASE, "train"))()
