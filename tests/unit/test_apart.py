"""One block between others that ran in high precision: a warning, as nothing states what it should."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from fp8verify import Report
from tests.hand_built import TraceBuilder, found, module

M, WIDE, NARROW = 64, 64, 32
TOLD = "and the same layer of"
KEPT = "[Override] mxfp8_linear: head MXFP8Linear.Config -> Linear.Config"


def train(build: TraceBuilder, layers: list[tuple[int, int, bool]]) -> None:
    """Run layers of (outputs, inputs, whether in FP8) forward, and back in the opposite order."""
    for outputs, inputs, fp8 in layers:
        build.gemm("fprop", M, outputs, inputs, fp8=fp8)
    for outputs, inputs, fp8 in reversed(layers):
        for leg in ("dgrad", "wgrad"):
            build.gemm(leg, M, outputs, inputs, fp8=fp8)


def run(
    folder: Path,
    high: Collection[tuple[int, str]],
    *,
    blocks: int = 5,
    state: str = "",
    log: str = "",
) -> Report:
    """Run blocks of two layers in two steps, those of `high` in BF16, and list them if in a state."""
    build = TraceBuilder(folder, rank=0)
    for step in (1, 2):
        layers = []
        for block in range(blocks):
            layers.append((WIDE, NARROW, (block, "up") not in high))
            layers.append((NARROW, WIDE, (block, "down") not in high))
        train(build.step(step), layers)
    modules = []
    for block in range(blocks if state else 0):
        modules.append(module(f"layers.{block}.up", WIDE, NARROW, state))
        modules.append(module(f"layers.{block}.down", NARROW, WIDE, state))
    return build.capture(*modules, log=log)


def told(report: Report) -> list[str]:
    messages = [one.message for one in found(report, "layer-not-fp8")]
    return [message for message in messages if TOLD in message]


def test_a_layer_of_an_inner_block_is_told_by_the_order_of_the_calls(
    tmp_path: Path,
) -> None:
    report = run(tmp_path, {(2, "down")})
    (message,) = told(report)
    assert message.startswith("a 32x64 layer of block 2 (counted from 0) ran in BF16 ")
    assert message.endswith("of 4 other blocks in FP8; nothing read says why")
    assert report.verdict == "ACTIVE"


def test_a_layer_of_a_class_that_nobody_knows_is_told_by_its_name(
    tmp_path: Path,
) -> None:
    report = run(tmp_path, {(1, "up")}, blocks=3, state="unknown")
    (message,) = told(report)
    assert message.startswith("layers.1.up ran in BF16 and the same layer of 2 other")
    assert found(report, "layer-not-fp8")[0].layers == ("layers.1.up",)
    assert report.verdict == "ACTIVE"


@pytest.mark.parametrize(
    "high",
    [
        {(0, "down")},
        {(4, "down")},
        {(3, "down"), (4, "down")},
        {(1, "down"), (3, "down")},
        {(1, "down"), (2, "down")},
    ],
    ids=["first", "last", "last two", "every second", "too many to be odd"],
)
def test_what_may_be_meant_is_not_told(
    high: Collection[tuple[int, str]], tmp_path: Path
) -> None:
    assert told(run(tmp_path, high)) == []


def test_three_blocks_are_too_few_without_names(tmp_path: Path) -> None:
    assert told(run(tmp_path, {(1, "up")}, blocks=3)) == []


def test_four_blocks_are_enough_without_names(tmp_path: Path) -> None:
    assert len(told(run(tmp_path, {(1, "up")}, blocks=4))) == 1


@pytest.mark.parametrize(("blocks", "is_told"), [(10, False), (11, True)])
def test_less_than_three_of_ten_blocks_are_odd_without_names(
    blocks: int, is_told: bool, tmp_path: Path
) -> None:
    high = {(2, "down"), (3, "down"), (5, "down")}
    assert bool(told(run(tmp_path, high, blocks=blocks))) is is_told


def test_a_log_that_keeps_layers_may_mean_them(tmp_path: Path) -> None:
    assert told(run(tmp_path, {(2, "down")}, log=KEPT)) == []


def test_a_converted_layer_is_short_and_not_only_apart(tmp_path: Path) -> None:
    report = run(tmp_path, {(2, "down")}, state="fp8")
    assert report.verdict == "PARTIAL"
    assert told(report) == []


def test_a_layer_that_the_list_keeps_high_is_not_told(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path, rank=0)
    train(build, [(WIDE, NARROW, block != 2) for block in range(5)])
    modules = []
    for block in range(5):
        state = "high_precision" if block == 2 else "fp8"
        modules.append(module(f"layers.{block}.up", WIDE, NARROW, state))
    assert told(build.capture(*modules)) == []


def test_a_block_that_ran_both_ways_is_left_to_what_compares_executions(
    tmp_path: Path,
) -> None:
    build = TraceBuilder(tmp_path, rank=0)
    for step in (1, 2):
        layers = [(WIDE, NARROW, (step, block) != (2, 2)) for block in range(5)]
        train(build.step(step), layers)
    report = build.capture()
    assert report.verdict == "PARTIAL"
    assert told(report) == []
