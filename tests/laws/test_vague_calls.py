"""A module list is held to its statement where nobody knows which module a launch is of."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Verdict, inspect
from fp8verify.terms import Severity
from tests.laws.laws import of_run
from tests.laws.runs import (
    ALL_LEGS,
    DGRAD,
    FPROP,
    WGRAD,
    Layer,
    Run,
    launches,
    random_run,
    write,
)

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


@pytest.mark.parametrize("leg", [FPROP, DGRAD, WGRAD])
def test_a_replay_is_passes_through_the_list(leg: str, tmp_path: Path) -> None:
    """The first layer has no dgrad, so fewer GEMMs ran in FP8 than three for each layer."""
    head = Layer("lm_head", 32768, _WIDE, frozenset())
    run = Run((*_layers()[:-1], head), form="own graph", batches=2)
    assert _verdict(run, tmp_path / "sound") is Verdict.ACTIVE
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


# ---- gradients whose call only the order of the launches tells


def _unsized(form: str, **more: Any) -> Run:
    hidden = frozenset({"shapes"})
    extras = frozenset({"recompute"})
    return Run(_layers(), form=form, hidden=hidden, extras=extras, **more)


@pytest.mark.parametrize("form", ["compiled", "reduce-overhead"])
def test_a_known_gradient_counts_beside_vague_ones(form: str, tmp_path: Path) -> None:
    """The recipe keeps wgrad in BF16, so only dgrad can lack; in FP8 its names say no leg."""
    low = frozenset({FPROP, DGRAD})
    layers = [replace(one, low=one.low & low) for one in _layers()]
    run = replace(_unsized(form, recipe="wgrad in BF16"), layers=tuple(layers))
    assert _verdict(run, tmp_path / "sound") is Verdict.ACTIVE
    flipped = _with_one_in_bf16(run, DGRAD)
    assert _verdict(flipped, tmp_path / "flipped") is Verdict.PARTIAL


@pytest.mark.parametrize("form", ["compiled", "reduce-overhead"])
def test_a_known_gradient_agrees_with_the_forward_pass(
    form: str, tmp_path: Path
) -> None:
    run = _unsized(form, log="pins", lists=False)
    assert _verdict(run, tmp_path / "sound") is Verdict.ACTIVE
    flipped = _with_one_in_bf16(run, DGRAD)
    assert _verdict(flipped, tmp_path / "flipped") is Verdict.INCONCLUSIVE


def test_a_product_that_ran_again_in_fp8_is_not_left_to_bf16(tmp_path: Path) -> None:
    """The first layer has no dgrad, the recipe keeps wgrad in BF16, and the head never runs again."""
    low = frozenset({FPROP, DGRAD})
    layers = [replace(one, low=one.low & low) for one in _layers()]
    plain = _unsized("eager", recipe="wgrad in BF16", log="claim", lists=False)
    run = replace(plain, layers=tuple(layers))
    assert _verdict(run, tmp_path / "sound") is Verdict.ACTIVE
    flips = frozenset((at, 0, FPROP) for at in run.executions())
    flipped = replace(run, flips=flips)
    assert _verdict(flipped, tmp_path / "flipped") is Verdict.INCONCLUSIVE


def test_half_of_the_launches_are_enough_without_sizes(tmp_path: Path) -> None:
    """A large head in BF16: by the sizes of the list it is more than half of the work."""
    head = Layer("lm_head", 32768, _WIDE, frozenset())
    run = Run((*_layers()[:-1], head), hidden=frozenset({"shapes"}))
    low, every = launches(run)
    assert low > every / 2
    assert _verdict(run, tmp_path) is Verdict.ACTIVE


@pytest.mark.parametrize(
    ("seed", "law"),
    [
        pytest.param(501229, "sound", id="a count beside gradients paired by order"),
        pytest.param(500446, "sound", id="as many experts in each step, but others"),
        pytest.param(501842, "flip", id="wgrad in one step of compiled code"),
        pytest.param(501018, "flip", id="dgrad in one step of a replay"),
        pytest.param(950745, "flip", id="launches that order alone gives to a call"),
        pytest.param(
            951462, "flip", id="one GEMM of a step, that a list perhaps states"
        ),
        pytest.param(950097, "flip", id="dgrad in one step, and no wgrad in FP8"),
        pytest.param(401898, "flip", id="dgrad, where the first layer is left out"),
        pytest.param(401520, "flip", id="dgrad of a size that is told by its layout"),
        pytest.param(990118, "sources", id="wgrad that no size and no number tells"),
        pytest.param(990768, "sound", id="as many experts in most steps, but others"),
        pytest.param(401946, "sources", id="as many experts again, but others"),
        pytest.param(70389, "flip", id="wgrad everywhere, and experts without tokens"),
        pytest.param(520546, "outside", id="a fused loss and experts, beside a count"),
        pytest.param(540403, "flip", id="fprop, where the first layer has no dgrad"),
    ],
)
def test_random_runs_that_once_broke_a_law(seed: int, law: str, tmp_path: Path) -> None:
    run = random_run(random.Random(seed).choice)
    choose = random.Random(f"{law} {seed}").choice
    found = list(of_run(run, law, f"random {seed}", choose, tmp_path))
    assert found
    assert [one.broken for one in found] == [None] * len(found)


def _small(*layers: tuple[int, int, frozenset[str], bool], **more: Any) -> Run:
    """Return a run of few layers: outputs, inputs, legs in FP8, and whether it is frozen."""
    found = []
    for block, (n, k, low, frozen) in enumerate(layers):
        found.append(Layer(f"blocks.{block}.up", n, k, low, block, frozen=frozen))
    extras = frozenset({"embedding"}) | more.pop("extras", frozenset())
    return Run(tuple(found), extras=extras, **more)


_NONE: frozenset[str] = frozenset()
_BUT_WGRAD = ALL_LEGS - {WGRAD}
_WITHOUT_SIZES = frozenset({"shapes"})
_SMALL = {
    "one layer in FP8, one not": _small(
        (1024, 2048, ALL_LEGS, False),
        (2048, 1024, _NONE, False),
        form="compiled",
        hidden=_WITHOUT_SIZES,
    ),
    "wgrad in BF16, a frozen layer": _small(
        (1024, 2048, _BUT_WGRAD, False),
        (1024, 2048, _NONE, False),
        (2048, 2048, _BUT_WGRAD, True),
        form="reduce-overhead",
        recipe="wgrad in BF16",
        batches=2,
    ),
    "frozen layers without numbers": _small(
        (1024, 1024, _NONE, True),
        (1024, 2048, _BUT_WGRAD, True),
        recipe="wgrad in BF16",
        hidden=frozenset({"numbers", "shapes"}),
        batches=2,
    ),
    "an optimizer's products of a frozen layer's size": _small(
        (2048, 2048, ALL_LEGS, False),
        (1024, 1024, ALL_LEGS, True),
        extras=frozenset({"optimizer"}),
        tokens=1024,
    ),
    "as many of an optimizer's products as a layer lacks gradients": replace(
        _small((1024, 2048, ALL_LEGS, False), hidden=_WITHOUT_SIZES, steps=1),
        extras=frozenset({"optimizer"}),
    ),
    "as many of a teacher's products as a layer lacks gradients": replace(
        _small((1024, 2048, ALL_LEGS, False), hidden=_WITHOUT_SIZES, batches=2),
        form="reduce-overhead",
        extras=frozenset({"teacher"}),
    ),
    "one gradient of each of two frozen layers": _small(
        (6144, 2048, _NONE, True),
        (6144, 2048, ALL_LEGS, True),
        (8192, 2048, _NONE, False),
        form="reduce-overhead",
        hidden=frozenset({"numbers", "shapes"}),
        lists=False,
        batches=4,
    ),
    "an optimizer's product of the size that the wgrad of a square layer has": replace(
        _small((2048, 2048, ALL_LEGS, False)), extras=frozenset({"optimizer"})
    ),
    "as many tokens as a layer is wide, and its sizes exchanged in another": replace(
        _small(
            (1024, 2048, ALL_LEGS, False),
            (2048, 1024, _NONE, False),
            (2048, 2048, ALL_LEGS, False),
            form="compiled",
            tokens=1024,
            batches=2,
        ),
        extras=frozenset({"recompute"}),
    ),
}


@pytest.mark.parametrize("name", _SMALL)
def test_few_layers_accuse_nothing_by_gradients_that_may_be_others(
    name: str, tmp_path: Path
) -> None:
    report = inspect(write(_SMALL[name], tmp_path))
    codes = [one.code for one in report.findings if one.severity is not Severity.INFO]
    assert not {"leg-not-fp8", "layer-not-fp8"}.intersection(codes)


def test_a_replay_is_told_from_what_runs_beside_it_by_the_layout_of_its_gradients(
    tmp_path: Path,
) -> None:
    """Few layers are replayed, and as many products run eagerly: a teacher and an evaluation."""
    head = Layer("lm_head", 8192, 2048, _NONE)
    run = Run(
        (Layer("blocks.0.q", 6144, 2048, _BUT_WGRAD, 0), head),
        form="own graph",
        recipe="wgrad in BF16",
        steps=1,
        extras=frozenset({"teacher", "evaluation", "recompute"}),
        log="pins",
    )
    assert _verdict(run, tmp_path) is Verdict.ACTIVE
