"""Losses in logs: each framework's line, and what damaged or foreign lines do."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.frameworks.known import OWN, frameworks
from fp8verify.logs.losses import PLAIN, LossSeries, scan_losses

TITAN = (
    "[titan] 2025-06-01 10:00:00,000 - root - INFO - \x1b[31mstep: 20  \x1b[32mloss:  2.3456  "
    "\x1b[38;2;180;60;0mgrad_norm:  0.5  \x1b[33mmemory: 47.50GiB(50.00%)  tps: 5,000"
)
MEGATRON = (
    " [2025-06-01 10:00:00] iteration       20/     100 | consumed samples: 320 | elapsed "
    "time per iteration (ms): 123.4 | lm loss: 2.3456E+00 | loss scale: 1.0 |"
)
LIGHTNING = (
    "Epoch 2:  40%|████      | 4/8 [00:01<00:02,  1.9it/s, v_num=0, train_loss=2.3456]"
)
TRAINER = "{'loss': 2.3456, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}"
NEMO = (
    "Training epoch 1, iteration 0/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 20 | "
    "reduced_train_loss: 2.3456 | train_step_timing in s: 0.189 | val_loss: 2.861"
)
NANOTRON = (
    "iteration: 20 / 100 | consumed_tokens: 93.2K | grad_norm: 1.4 | lr: 3.3e-05 | lm_loss: 2.3456 "
    "| model_tflops_per_gpu: 0.784"
)
LINES = {
    "NeMo": (NEMO, 20), "Nanotron": (NANOTRON, 20),
    "KempnerForge": ("[rank 0] INFO     [step 20] loss=2.3456 | lr=3.00e-04 | mfu=52.3%", 20),
    "torchtitan": (TITAN, 20), "Megatron-LM": (MEGATRON, 20), "Lightning": (LIGHTNING, 20),
    "nanoGPT": ("iter 20: loss 2.3456, time 123.45ms, mfu 12.30%", 20),
    "Hugging Face Trainer": (TRAINER, 1), "a plain loop": ("step  20 | loss 2.3456 | 11.4 ms", 20),
}  # fmt: skip


def read(lines: Iterable[str]) -> LossSeries:
    found = scan_losses(lines)
    assert found is not None
    return found


def test_losses_of_dicts_that_call_the_learning_rate_lr_are_read() -> None:
    lines = [
        "{'loss': 5.6, 'lr': 0.0002, 'epoch': 0.09}",
        "{'loss': 153318.95, 'grad_norm': nan, 'learning_rate': 0.0002, 'epoch': 0.09}",
        "{'loss': nan, 'lr': 0.0002, 'epoch': 0.09}",
        "{'loss': 0.3, 'accuracy': 0.5}",
    ]
    found = scan_losses(lines)
    assert found is not None
    assert list(found.points) == [1, 2, 3]


def test_every_pattern_has_a_line_here() -> None:
    named = {one.name for one in frameworks() if one.loss}
    assert named - {OWN} | {PLAIN} == set(LINES), "add its line to LINES above"


@pytest.mark.parametrize("framework", LINES)
def test_the_line_of_each_framework_gives_step_and_loss(framework: str) -> None:
    line, step = LINES[framework]
    found = read(["unrelated", line, "also unrelated, loss of packets"])
    assert found.framework == framework
    assert found.points == {step: 2.3456}
    assert found.counted is (framework == "Hugging Face Trainer")


@pytest.mark.parametrize(
    "line",
    [
        "step 10, loss: 9.31", "step 10: loss 9.31", "step 10/100 | loss 9.31 (+1.2z) | norm 3.0",
        "step=10 loss=9.31", "step:10 train_loss:9.31",
    ],
)  # fmt: skip
def test_plain_loops_write_it_in_many_ways(line: str) -> None:
    found = read([line])
    assert found.points == {10: 9.31}


@pytest.mark.parametrize(
    "line",
    [
        "step 250: val loss 2.1", "loss scale: 65536", "{'eval_loss': 2.1, 'eval_runtime': 3.2}",
        "step 10 | val_loss 2.0", "no step here: loss", "",
    ],
)  # fmt: skip
def test_other_losses_are_none(line: str) -> None:
    assert scan_losses([line]) is None


def test_a_hostile_line_takes_no_longer_than_another() -> None:
    line = "Epoch 1: 1/2 [" * 300 + "loss"
    assert scan_losses([line] * 10) is None


@given(st.lists(st.text(max_size=60), max_size=20))
def test_any_text_is_read_without_an_error(lines: list[str]) -> None:
    scan_losses(lines)
