"""A module list is held to its statement where nobody knows which module a launch is of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fp8verify import Verdict, inspect
from tests.laws.runs import ALL_LEGS, DGRAD, FPROP, WGRAD, Layer, Run, write

_WIDE = 1024


def _layers(*, experts: int = 0) -> tuple[Layer, ...]:
    """Return two blocks in FP8 and a head in BF16."""
    layers = []
    for block in range(2):
        for name, n, k in (("up", 4 * _WIDE, _WIDE), ("down", _WIDE, 4 * _WIDE)):
            layers.append(Layer(f"blocks.{block}.{name}", n, k, ALL_LEGS, block))
        for expert in range(experts):
            name = f"blocks.{block}.experts.{expert}.up"
            layers.append(Layer(name, 2 * _WIDE, _WIDE, ALL_LEGS, block, expert=True))
    head = Layer("lm_head", 8192, _WIDE, frozenset())
    return (*layers, head)


def _verdict(run: Run, folder: Path) -> Verdict:
    return inspect(write(run, folder)).verdict


def _with_one_in_bf16(run: Run, leg: str) -> Run:
    """Let the third layer run a leg in BF16 in every execution."""
    flips = frozenset((at, 2, leg) for at in run.executions())
    return replace(run, flips=flips)


@pytest.mark.parametrize("leg", [FPROP, DGRAD, WGRAD])
@pytest.mark.parametrize("form", ["reduce-overhead", "own graph"])
def test_replays_that_recompute_are_counted(
    form: str, leg: str, tmp_path: Path
) -> None:
    run = Run(_layers(), form=form, extras=frozenset({"recompute", "embedding"}))
    assert _verdict(run, tmp_path / "sound") is not Verdict.PARTIAL
    flipped = _with_one_in_bf16(run, leg)
    assert _verdict(flipped, tmp_path / "flipped") is not Verdict.ACTIVE


def test_layers_beside_experts_are_counted_without_sizes(tmp_path: Path) -> None:
    run = Run(_layers(experts=3), hidden=frozenset({"shapes"}))
    assert _verdict(run, tmp_path / "sound") is Verdict.ACTIVE
    flipped = _with_one_in_bf16(run, FPROP)
    assert _verdict(flipped, tmp_path / "flipped") is not Verdict.ACTIVE


@pytest.mark.parametrize("leg", [FPROP, DGRAD])
def test_experts_are_named_by_the_layers_around_them(leg: str, tmp_path: Path) -> None:
    """Of a model whose first block stays in BF16, an expert in FP8 is told from those that do not."""
    layers = []
    for layer in _layers(experts=3):
        is_first = layer.block == 0
        layers.append(replace(layer, low=frozenset()) if is_first else layer)
    run = Run((*layers,), extras=frozenset({"embedding"}))
    before = inspect(write(run, tmp_path / "sound"))
    assert "leg-unknown" not in [finding.code for finding in before.findings]
    expert = next(n for n, one in enumerate(layers) if one.expert and one.block == 1)
    flips = frozenset((at, expert, leg) for at in run.executions())
    after = inspect(write(replace(run, flips=flips), tmp_path / "flipped"))
    told = [one.message for one in after.findings if one not in before.findings]
    assert any("ran in BF16" in one and f"{leg} of 2048x1024" in one for one in told)


def _with_adapters() -> tuple[Layer, ...]:
    """Return frozen layers in FP8, each beside an adapter in BF16."""
    layers = []
    for layer in _layers()[:-1]:
        layers.append(replace(layer, frozen=True))
        for name, n, k in (("a", 64, layer.k), ("b", layer.n, 64)):
            name = f"{layer.name}.lora_{name}"
            layers.append(Layer(name, n, k, frozenset(), layer.block))
    return tuple(layers)


@pytest.mark.parametrize("form", ["compiled", "reduce-overhead"])
def test_gradients_beside_frozen_weights_accuse_nothing(
    form: str, tmp_path: Path
) -> None:
    extras = frozenset({"embedding"})
    hidden = frozenset({"shapes", "types"})
    run = Run(_with_adapters(), form=form, hidden=hidden, extras=extras)
    assert _verdict(run, tmp_path) is not Verdict.PARTIAL


def test_an_evaluation_behind_the_update_is_no_gradient(tmp_path: Path) -> None:
    """Of frozen layers with as many tokens as inputs, a forward product has the size of wgrad."""
    layers = [replace(layer, frozen=True) for layer in _layers()[:-1]]
    extras = frozenset({"embedding", "evaluation"})
    run = Run(tuple(layers), tokens=_WIDE, extras=extras)
    report = inspect(write(run, tmp_path))
    assert report.ledger is not None
    assert "wgrad" not in {entry.leg.value for entry in report.ledger.entries}


def test_equal_graphs_of_square_layers_are_placed_alike(tmp_path: Path) -> None:
    """As many tokens as inputs and outputs: dgrad, wgrad and a recomputed product look alike."""
    wide = 2048
    layers = []
    for block in range(3):
        low = ALL_LEGS if block == 1 else frozenset[str]()
        for name in ("q", "k", "v", "o"):
            layers.append(Layer(f"blocks.{block}.{name}", wide, wide, low, block))
        layers.append(Layer(f"blocks.{block}.up", 4 * wide, wide, low, block))
        layers.append(Layer(f"blocks.{block}.down", wide, 4 * wide, low, block))
    run = Run(
        tuple(layers),
        tokens=wide,
        steps=1,
        batches=2,
        form="compiled",
        extras=frozenset({"recompute"}),
    )
    codes = [finding.code for finding in inspect(write(run, tmp_path)).findings]
    assert "leg-not-fp8" not in codes
