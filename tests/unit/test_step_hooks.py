"""Hooks on layers that no library here has: Transformer Engine's, a script's own, experts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, from the train extra")
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from fp8verify.agent.numerics.figures import Measurements
from fp8verify.agent.numerics.scales import (
    KeptScales,
    _fit,
    _magnitude,
    gradient_norm,
    scale_records,
)
from fp8verify.agent.numerics.step_hooks import CLIPPING, NumericsHooks

pytestmark = pytest.mark.train


def named(name: str, **fields: Any) -> Any:
    """Return an object of a class of that name, as recipes and their formats are told by name."""
    return type(name, (SimpleNamespace,), {})(**fields)


HYBRID = SimpleNamespace(name="HYBRID")


def delayed(**fields: Any) -> Any:
    usual = {
        "fp8_format": HYBRID,
        "margin": 0,
        "amax_history_len": 16,
        "reduce_amax": True,
    }
    return named("DelayedScaling", **{**usual, "amax_compute_algo": "max", **fields})


class Base(nn.Module):
    """Looks like a module of Transformer Engine: fp8, fp8_meta, weight."""

    def __init__(self, recipe: Any, width: int = 64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))
        self.fp8 = True
        self.fp8_meta: dict[str, Any] = {"recipe": recipe}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


Base.__module__, Base.__name__ = "transformer_engine.pytorch.module.base", (
    "TransformerEngineBaseModule"
)  # fmt: skip


class Linear(Base):
    pass


class SavesBytes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(data)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        assert ctx.saved_tensors[0].dtype == torch.uint8
        return gradient, None


class LayerNormLinear(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        data = torch.zeros(x.numel(), dtype=torch.uint8)
        data[: x.numel() // 2] = 0x38  # 1.0 in E4M3
        data[0] = 0x7F
        return SavesBytes.apply(x, data) @ self.weight.t()  # type: ignore[no-any-return]


def state(scale: list[float], rows: list[list[float]]) -> Any:
    return SimpleNamespace(scale=torch.tensor(scale), amax_history=torch.tensor(rows))


def train(
    module: nn.Module, *, steps: int = 1, width: int = 64
) -> list[dict[str, Any]]:
    hooks = NumericsHooks([("layer", module)])
    try:
        for _ in range(steps):
            x = torch.randn(32, width, requires_grad=True)
            module(x).square().mean().backward()
    finally:
        hooks.remove()
    assert hooks.unseen == []
    return hooks.measured.records()


@pytest.mark.parametrize(
    ("recipe", "scaling", "backward"),
    [
        (named("Float8CurrentScaling", fp8_format=HYBRID), "tensorwise", "e5m2"),
        (
            named("Float8BlockScaling", fp8_format=SimpleNamespace(name="E4M3")),
            "block_1x128",
            "e4m3",
        ),
        (named("MXFP8BlockScaling", fp8_format=HYBRID), "mxfp8", "e5m2"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_linear_of_transformer_engine_is_measured_by_its_recipe(
    recipe: Any, scaling: str, backward: str
) -> None:
    rows = {row["tensor"]: row for row in train(Linear(recipe, 128), width=128)}
    assert rows["input"]["scaling"] == scaling
    assert rows["grad_output"]["format"] == backward
    assert all(row["sqnr_db"] > 24 for row in rows.values())


def test_delayed_scaling_is_replayed_with_the_scale_that_it_keeps() -> None:
    module = Linear(delayed())
    module.fp8_meta["scaling_fwd"] = state([1000.0, 1.0, 1.0], [[0.0, 0.0, 0.0]])
    module.fp8_meta["scaling_bwd"] = state([1e-9, 1.0], [[0.0, 0.0]])

    rows = {row["tensor"]: row for row in train(module)}

    assert (
        rows["input"]["saturated"] > 0.5
    )  # 448 / 1000 is below most of a normal's values
    assert rows["grad_output"]["flushed"] == 1
    assert rows["weight"]["sqnr_db"] > 30


def test_a_normalised_input_is_seen_by_its_bytes() -> None:
    rows = {
        row["tensor"]: row
        for row in train(LayerNormLinear(named("Float8CurrentScaling")))
    }
    assert rows["input"]["source"] == "bytes"
    assert rows["input"]["amax"] is None
    assert rows["input"]["nan"] > 0
    assert rows["weight"]["source"] == "replay"


class TELayerNormColumnParallelLinear(LayerNormLinear):
    """As megatron/core/extensions/transformer_engine.py derives it."""


class TERowParallelLinear(Linear):
    pass


TELayerNormColumnParallelLinear.__module__ = TERowParallelLinear.__module__ = (
    "megatron.core"
)


def derived(module: nn.Module) -> nn.Module:
    """Train a subclass that is made on the spot, as FSDP2 does."""
    kind = type(module)
    module.__class__ = type(
        f"FSDP{kind.__name__}", (type("FSDPModule", (), {}), kind), {}
    )
    return module


@pytest.mark.parametrize(
    "wrap", [lambda module: module, derived], ids=["Megatron-LM", "FSDP2"]
)
def test_subclasses_of_modules_and_recipes_are_measured(wrap: Any) -> None:
    recipe = type("TEDelayedScaling", (type(delayed()),), {})(**vars(delayed()))
    rows: dict[str, Any] = {}
    for kind in (TERowParallelLinear, TELayerNormColumnParallelLinear):
        module = kind(recipe)
        module.fp8_meta["scaling_fwd"] = state([50.0, 50.0, 1.0], [[0.0, 0.0, 0.0]])
        module.fp8_meta["scaling_bwd"] = state([1e4, 1.0], [[0.0, 0.0]])
        rows[kind.__name__] = {row["tensor"]: row for row in train(wrap(module))}
        assert KeptScales([("layer", module)]).recipes[0]["name"] == "DelayedScaling"
    plain, normalizes = (
        rows["TERowParallelLinear"],
        rows["TELayerNormColumnParallelLinear"],
    )
    assert {row["scaling"] for row in (*plain.values(), *normalizes.values())} == {
        "delayed"
    }
    # The module's own input is not what it casts.
    assert (plain["input"]["source"], normalizes["input"]["source"]) == (
        "replay",
        "bytes",
    )
    assert set(plain) == set(normalizes) == {"input", "weight", "grad_output"}


@pytest.mark.parametrize(
    ("module", "x", "words"),
    [
        (
            lambda: Linear(named("NVFP4BlockScaling")),
            32,
            "casts of NVFP4BlockScaling are not",
        ),
        (
            lambda: Linear(named("Float8CurrentScaling")),
            0,
            "input without values (experts without",
        ),
        (lambda: nn.Linear(64, 64), 32, "no FP8 cast was seen"),
        (
            lambda: Linear(named("Float8CurrentScaling")),
            None,
            "ran no hook in the step",
        ),
    ],
)
def test_layers_without_figures_get_a_reason(
    module: Any, x: int | None, words: str
) -> None:
    layer = module()
    hooks = NumericsHooks([("layer", layer)])
    if x is not None:
        layer(torch.randn(x, 64)).sum().backward()
    hooks.remove()
    (note,) = hooks.notes(hooks.measured.records())
    assert words in note


def test_bytes_are_left_alone_inside_of_checkpointing() -> None:
    module = LayerNormLinear(named("Float8CurrentScaling"))
    hooks = NumericsHooks([("layer", module)])
    x = torch.randn(32, 64, requires_grad=True)
    torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).sum().backward()
    hooks.remove()
    assert x.grad is not None
    assert [note for note in hooks.notes([1]) if "checkpointing" in note]


def test_a_recomputation_outside_of_the_autocast_is_found() -> None:
    module = Linear(named("Float8CurrentScaling"))

    def forward(x: torch.Tensor) -> torch.Tensor:
        module.fp8 = torch._C._current_graph_task_id() == -1
        return module(x)  # type: ignore[no-any-return]

    hooks = NumericsHooks([("layer", module)])
    x = torch.randn(32, 64, requires_grad=True)
    torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=True).sum().backward()
    hooks.remove()
    assert list(hooks.recomputed_high) == ["layer"]


def test_an_error_of_ours_ends_the_measuring_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Measurements, "add", broken)
    module = Linear(named("Float8CurrentScaling"))
    hooks = NumericsHooks([("layer", module)])
    module(torch.randn(32, 64)).sum().backward()
    hooks.remove()
    assert hooks.unseen == ["measuring ended early: RuntimeError: out of memory"]


def test_what_transformer_engine_keeps_is_read_at_both_ends() -> None:
    module = Linear(delayed(margin=1))
    rows = [[0.0, 0.0, 0.0], [2.0, 1.0, 0.0], [4.0, 1.0, 0.0]]
    module.fp8_meta["scaling_fwd"] = state([56.0, 224.0, 1.0], rows)
    module.fp8_meta["scaling_bwd"] = state([float("inf"), 1.0], [[0.0, 0.0]])
    before = KeptScales([("layer", module)])
    module.fp8_meta["scaling_fwd"].scale[0] = 28.0

    others = [("a", nn.Linear(2, 2)), ("b", Linear(None))]
    found = scale_records(before, KeptScales([("layer", module), *others]))

    assert {slot["layer"] for slot in found["slots"]} == {"layer"}
    assert found["recipes"][0]["margin"] == 1
    slots = {slot["tensor"]: slot for slot in found["slots"]}
    assert slots["input"]["amax"] == [2.0, 4.0]
    assert (slots["input"]["scale_before"], slots["input"]["scale"]) == ("56.0", "28.0")
    assert slots["input"]["largest_amax"] == 4.0
    assert (slots["grad_output"]["scale"], slots["grad_output"]["amax"]) == ("inf", [])


def test_clipping_is_seen_once_from_wherever_it_was_imported() -> None:
    module = Linear(named("Float8CurrentScaling"))
    originals = [getattr(module, name) for module, name in CLIPPING]
    ratios = {}
    for limits in [(1.0,), (100.0,), (100.0, 100.0), ()]:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        module.weight.grad = torch.zeros(64, 64)
        module.weight.grad[0, :2] = torch.tensor([3.0, 4.0])
        hooks = NumericsHooks([("layer", module)])
        for limit in limits:
            clip_grad_norm_([module.weight], limit)
        hooks.remove()
        clip_grad_norm_([module.weight], 100.0)  # after the step
        ratios[limits] = hooks.result(1, [optimizer])["gradient"]["clip_ratio"]

    assert ratios == {
        (1.0,): pytest.approx(0.2),
        (100.0,): 1.0,
        (100.0, 100.0): None,
        (): None,
    }
    assert [getattr(module, name) for module, name in CLIPPING] == originals


def test_a_history_has_a_column_for_each_scale() -> None:
    scale, history = torch.ones(3), torch.ones(16, 3)
    assert _fit(scale, history)
    wrong = [
        (None, history),
        (scale, None),
        (scale[:0], history[:, :0]),
        (scale[:2], history),
    ]
    assert not any(
        _fit(*one) for one in [*wrong, (scale, history[0]), (history, history)]
    )


def test_a_magnitude_is_a_finite_number_that_is_not_negative() -> None:
    found = [_magnitude(value) for value in (None, -1.0, 0.0, 2.0, math.inf, math.nan)]
    assert found == [None, None, 0.0, 2.0, None, None]


def test_the_norm_of_gradients_is_of_all_parameters_once() -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    optimizer = torch.optim.SGD([weight], lr=1.0)
    assert gradient_norm([optimizer, optimizer]) == {
        "norm": 5.0, "finite": True, "sharded": False, "clip_ratio": None,
    }  # fmt: skip
    weight.grad = None
    assert gradient_norm([optimizer]) is None


@pytest.mark.parametrize(
    ("gradient", "norm"),
    [
        (torch.tensor([3.0, 4.0], dtype=torch.float64), 5.0),
        (torch.tensor([3.0 + 4.0j]), 5.0),
        (torch.full((4,), 1e30), 2e30),  # its squares leave float32
        (torch.full((4,), 1e-30), 2e-30),
        (
            torch.full((100_000,), 600.0, dtype=torch.float16),
            600 * 100_000**0.5,
        ),  # leaves FP16
        (torch.zeros(4), 0.0),
        (torch.zeros(0), 0.0),
        (torch.zeros(4, device="meta"), None),
    ],
    ids=["float64", "complex", "huge", "tiny", "fp16", "zero", "empty", "meta"],
)
def test_the_norm_of_unusual_gradients(
    gradient: torch.Tensor, norm: float | None
) -> None:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    found = gradient_norm([torch.optim.SGD([parameter], lr=1.0)])
    assert (found and found["norm"]) == (
        norm if norm is None else pytest.approx(norm, rel=1e-4)
    )
    assert found is None or found["finite"]


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("value", "norm"), [(4.0, 5.0), (math.nan, None), (math.inf, None)]
)
def test_the_norm_of_gradients_of_two_types_is_of_both(
    kind: torch.dtype, value: float, norm: float | None
) -> None:
    usual, other = (
        nn.Parameter(torch.zeros(1)),
        nn.Parameter(torch.zeros(1, dtype=kind)),
    )
    usual.grad, other.grad = torch.tensor([3.0]), torch.tensor([value], dtype=kind)
    found = gradient_norm([torch.optim.SGD([usual, other], lr=1.0)])
    assert found is not None
    assert (found["norm"], found["finite"]) == (norm, norm is not None)
