"""The module list on classes of libraries that are not installed, by name, and on own ones."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
from fp8verify.agent import layers  # noqa: E402 - needs torch
from fp8verify.agent.census import _features, take_census  # noqa: E402
from fp8verify.agent.instruments import (  # noqa: E402
    InstrumentContext,
    ModuleList,
    name_layers,
)

pytestmark = pytest.mark.train
nn = torch.nn
DELAYED = {"margin": 1, "amax_history_len": 16, "amax_compute_algo": "most_recent"}
HIGH, MX = "high_precision", "MX (blocks of 32)"
BLOCKS = {
    "x_block_scaling_dim": 1,
    "w_block_scaling_dim": 2,
    "grad_block_scaling_dim": 1,
}


def library(module: str, name: str, *bases: type, **attributes: Any) -> Any:
    return type(name, bases or (object,), {"__module__": module, **attributes})


BASE = library(
    "transformer_engine.pytorch.module.base", "TransformerEngineBaseModule", nn.Module
)


def te(
    name: str, weights: dict[str, tuple[int, ...]], recipe: Any = None, **more: Any
) -> Any:
    """Return a module of Transformer Engine as its last forward pass has left it."""
    module = library("transformer_engine.pytorch", name, BASE)()
    for key, shape in weights.items():
        setattr(module, key, nn.Parameter(torch.zeros(shape)))
    module.fp8, module.fp8_meta = recipe is not None, {"recipe": recipe}
    for key, value in more.items():
        setattr(module, key, value)
    return module


def recipe(name: str, **fields: Any) -> Any:
    made = library("transformer_engine.common.recipe", name)()
    vars(made).update(fields)
    return made


def census(**modules: Any) -> dict[str, dict[str, Any]]:
    # As in a process of its own: here nobody hears of the modules that are built.
    layers._modules.clear()
    layers._searched.clear()
    model = nn.ModuleDict(modules)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {record["fqn"]: record for record in take_census([optimizer])}


@pytest.mark.parametrize(
    ("shape", "more", "sides"),
    [
        ((24, 16), {}, (24, 16)),
        ((2, 24, 16), {}, (None, None)),  # experts
        ((24, 16), {"fc1_weight": torch.zeros(4)}, (None, None)),  # two layers
        ((2, 24), {"out_features": 8, "in_features": 4}, (8, 4)),  # packed
    ],
)
def test_the_sides_of_a_layer_are_its_own_or_those_of_its_matrix(
    shape: tuple[int, ...], more: dict[str, Any], sides: tuple[int | None, int | None]
) -> None:
    assert _features(SimpleNamespace(**more), torch.zeros(shape)) == sides


def legs(
    fprop: str, dgrad: str | None = None, wgrad: str | None = None
) -> dict[str, str]:
    return {"fprop": fprop, "dgrad": dgrad or fprop, "wgrad": wgrad or dgrad or fprop}


@pytest.mark.parametrize(
    ("name", "fields", "formats", "scaling"),
    [
        ("DelayedScaling", DELAYED, legs("fp8"), "delayed (margin 1, history 16, most_recent)"),
        ("Float8CurrentScaling", {}, legs("fp8"), "current (one scale per tensor)"),
        ("Float8BlockScaling", BLOCKS, legs("fp8_block"),
         "blocks (input 1x128, weight 128x128, gradient 1x128)"),
        ("MXFP8BlockScaling", {}, legs("mxfp8"), MX),
        ("NVFP4BlockScaling", {"disable_rht": True}, legs("nvfp4"), "NVFP4 (blocks of 16)"),
        # A backward pass in high precision by the recipe; Megatron's no_fp8_wgrad.
        ("MXFP8BlockScaling", {"backward_override": HIGH}, legs("mxfp8", HIGH), MX),
        ("MXFP8BlockScaling", {"backward_override": "dequantized"}, legs("mxfp8", HIGH),
         f"{MX}, backward from dequantized operands"),
        ("DelayedScaling", {**DELAYED, "override_linear_precision": (False, False, True)},
         legs("fp8", "fp8", HIGH), "delayed (margin 1, history 16, most_recent)"),
    ],
)  # fmt: skip
def test_recipes_of_transformer_engine(
    name: str, fields: dict[str, Any], formats: dict[str, str], scaling: str
) -> None:
    record = census(up=te("Linear", {"weight": (32, 16)}, recipe(name, **fields)))["up"]

    state = "fp4" if formats["fprop"] == "nvfp4" else "fp8"
    assert (record["formats"], record["state"], record["scaling"]) == (
        formats,
        state,
        scaling,
    )


def test_what_a_custom_recipe_makes_is_not_known() -> None:
    record = census(up=te("Linear", {"weight": (32, 16)}, recipe("CustomRecipe")))["up"]
    assert (record["state"], record["recipe"], record["formats"]) == (
        "unknown",
        "CustomRecipe",
        {},
    )


def test_gradients_of_a_hybrid_format_are_e5m2() -> None:
    made = recipe("MXFP8BlockScaling", fp8_format=SimpleNamespace(name="HYBRID"))
    assert (
        census(up=te("Linear", {"weight": (32, 16)}, made))["up"]["gradients"] == "e5m2"
    )


def test_layers_of_transformer_engine_outside_its_autocast() -> None:
    record = census(up=te("Linear", {"weight": (32, 16)}))["up"]
    assert (record["state"], record["formats"]) == ("fp8_module_off", {})


def test_both_layers_of_an_mlp_have_their_sizes() -> None:
    weights = {
        "layer_norm_weight": (16,),
        "fc1_weight": (64, 16),
        "fc2_weight": (16, 32),
    }
    record = census(mlp=te("LayerNormMLP", weights, recipe("DelayedScaling")))["mlp"]

    assert record["sizes"] == [(64, 16), (16, 32)]
    assert (record["in_features"], record["out_features"]) == (None, None)


def test_grouped_linears_are_experts() -> None:
    weights = {"weight0": (32, 16), "weight1": (32, 16)}
    record = census(experts=te("GroupedLinear", weights, recipe("DelayedScaling")))[
        "experts"
    ]
    assert (record["kind"], record["out_features"]) == ("experts", 32)


def test_attention_cores_are_no_linear_layers() -> None:
    core = te("DotProductAttention", {"softmax_offset": (1, 16, 1, 1)})
    assert list(census(core=core, up=nn.Linear(16, 32))) == ["up"]


class Own(nn.Linear):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return torch._scaled_mm(x, self.weight.t())


class Renamed(nn.Linear):  # type: ignore[misc, name-defined]
    """Only its name is new: torchtitan and others add an `init_weights` so."""


def test_own_linear_classes_are_unknown_unless_they_compute_what_pytorch_does() -> None:
    hooked = nn.Linear(16, 32)
    hooked.forward = lambda x: x
    bounded = torch.nn.utils.parametrizations.weight_norm(nn.Linear(16, 32))
    found = census(
        own=Own(16, 32), renamed=Renamed(16, 32), plain=nn.Linear(16, 32), hooked=hooked,
        bounded=bounded,
    )  # fmt: skip

    states = {name: record["state"] for name, record in found.items()}
    assert states == {
        "own": "unknown",
        "renamed": "high_precision",
        "plain": "high_precision",
        "hooked": "unknown",
        "bounded": "unknown",
    }
    assert found["own"]["source"] == __name__


def test_layers_compute_the_same_while_they_are_named() -> None:
    model = {"renamed": Renamed(16, 32), "plain": nn.Linear(16, 32)}
    end = name_layers(list(model.items()))
    try:
        found = census(**model)
    finally:
        end()
    assert {record["state"] for record in found.values()} == {"high_precision"}


def test_the_base_of_a_lora_layer_is_the_layer() -> None:
    wrapper = library("peft.tuners.lora.layer", "Linear", nn.Module)()
    wrapper.base_layer = nn.Linear(16, 32)
    wrapper.lora_A = nn.ModuleDict({"default": nn.Linear(16, 4)})

    assert {name: record["state"] for name, record in census(up=wrapper).items()} == {
        "up.base_layer": "high_precision",
        "up.lora_A.default": "high_precision",
    }


class Experts(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.mlp1_weight = nn.Parameter(torch.zeros(2, 32, 16))


@pytest.mark.parametrize(("prefix", "format_"), [("MXFP8", "mxfp8"), ("Float8", "fp8")])
def test_expert_classes_that_torchtitan_makes_on_the_spot(
    prefix: str, format_: str
) -> None:
    parent = library("torchtitan.models.gpt_oss.model", "GptOssGroupedExperts", Experts)
    made = library(
        "torchtitan.components.quantization.mx", f"{prefix}{parent.__name__}", parent
    )()
    (record,) = census(experts=made).values()

    assert record["formats"] == dict.fromkeys(("fprop", "dgrad", "wgrad"), format_)
    assert census(experts=parent())["experts.mlp1_weight"]["state"] == "high_precision"


def test_modules_that_were_built_before_us_are_searched_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[object] = []
    search = layers.find_instances

    def counted(wanted: Any) -> list[Any]:
        searches.append(wanted)
        return search(wanted)

    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(layers, "find_instances", counted)
    monkeypatch.setattr(layers, "_modules", weakref.WeakValueDictionary())
    monkeypatch.setattr(layers, "_searched", {})

    found = [[record["fqn"] for record in take_census([optimizer])] for _ in range(3)]

    assert found == [["0", "1"]] * 3
    assert len(searches) == 1


def test_a_layer_that_is_converted_after_the_window_has_opened_is_listed_as_it_ran() -> (
    None
):
    layers._modules.clear()
    layers._searched.clear()
    model = nn.ModuleDict({"up": nn.Linear(16, 32)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    listed = ModuleList(InstrumentContext({"live": None}, lambda: [optimizer]))

    listed.before_window()
    before = listed.record()["modules"]
    model["up"].__class__ = library(
        "torchao.float8.float8_linear", "Float8Linear", nn.Linear
    )
    listed.end()

    assert [
        [one["state"] for one in found]
        for found in (before, listed.record()["modules"])
    ] == [
        [HIGH],
        ["fp8"],
    ]


def test_a_layer_in_two_roots_is_listed_once() -> None:
    shared = nn.Linear(16, 32)
    roots = nn.Sequential(shared), nn.ModuleList([shared])
    for module in (*roots, shared):
        layers.remember(module)

    assert len(take_census([torch.optim.SGD(shared.parameters(), lr=0.1)])) == 1
    del roots
