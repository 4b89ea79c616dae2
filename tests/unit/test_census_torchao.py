"""The module list on torchao's own classes, converted as its users do; none of them runs a GEMM."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
if find_spec("torchao") is None:  # imported where a test needs it, which takes seconds
    pytest.skip("needs torchao, from the train extra", allow_module_level=True)
from fp8verify.agent.census import take_census  # noqa: E402 - needs torch

pytestmark = pytest.mark.train
nn = torch.nn
MOE, NVFP4 = (
    "prototype.moe_training",
    "prototype.moe_training.nvfp4_training.nvfp4_training",
)
BLOCKWISE = "prototype.blockwise_fp8_training.linear"


class Experts(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(4, 64, 32, dtype=torch.bfloat16))


class Model(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, up: Any = nn.Linear, **options: Any) -> None:
        super().__init__()
        self.up = up(128, 256, bias=False, dtype=torch.bfloat16, **options)
        self.experts = Experts()
        self.head = nn.Linear(256, 10, dtype=torch.bfloat16)


class Seen(NamedTuple):
    state: str
    recipe: str | None
    formats: list[str]


def seen(state: str, recipe: str | None, format_: str = "", wgrad: str = "") -> Seen:
    """Return a record whose three legs have a format, but for wgrad's own."""
    return Seen(state, recipe, [format_, format_, wgrad or format_] if format_ else [])


def census(model: Any) -> dict[str, Seen]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records = {record["fqn"]: record for record in take_census([optimizer])}
    assert set(records) == {"up", "experts.w1", "head"}
    assert (records["up"]["in_features"], records["up"]["out_features"]) == (128, 256)
    assert records["head"]["reason"] == "out_features 10 is not divisible by 16"
    return {
        n: Seen(r["state"], r["recipe"], [*r["formats"].values()])
        for n, r in records.items()
    }


def named(module: str, name: str) -> Any:
    """Return what a version of torchao may not have."""
    try:
        return getattr(import_module(f"torchao.{module}"), name)
    except (ImportError, AttributeError):
        pytest.skip(f"this torchao has no {module}.{name}")


def emulated() -> dict[str, Any]:
    preference = named("quantization.quantize_.common", "KernelPreference")
    return {"kernel_preference": preference.EMULATED}


def converted(module: str, config: str, *names: str, **options: Any) -> Any:
    """Return a model of which some modules have been converted."""
    made, model = named(module, config)(**options), Model()
    named("quantization", "quantize_")(
        model, made, filter_fn=lambda _, fqn: fqn in names
    )
    return model


def wrapped(kind: str, **options: Any) -> Any:
    return converted(
        f"{MOE}.config", f"{kind}TrainingOpConfig", "up", "experts", **options
    )


def mxfp8_linear(**options: Any) -> Any:
    return Model(named(f"{MOE}.mxfp8_linear", "MXFP8Linear"), **options)


def nvfp4(**options: Any) -> Any:
    return converted(NVFP4, "NVFP4TrainingConfig", "up", **options)


MXFP8, HIGH = seen("fp8", "mxfp8", "mxfp8"), "high_precision"
CASES: dict[str, tuple[Callable[[], Any], dict[str, Seen]]] = {
    "weights wrapped for MXFP8": (
        lambda: wrapped("MXFP8"), {"up": MXFP8, "experts.w1": MXFP8, "head": seen(HIGH, None)}),
    "the same, wgrad in BF16": (
        lambda: wrapped("MXFP8", wgrad_with_hp=True), {"up": seen("fp8", "mxfp8", "mxfp8", HIGH)}),
    "the same, emulated": (
        lambda: wrapped("MXFP8", **emulated()), {"up": seen("fp8_emulated", "mxfp8", "mxfp8")}),
    "weights wrapped for FP8": (lambda: wrapped("Float8"),
        {"up": seen("fp8", "rowwise", "fp8"), "experts.w1": seen("fp8", "rowwise", "fp8")}),
    "the same, gw_hp": (lambda: wrapped("Float8", float8_linear_recipe="rowwise_with_gw_hp"),
        {"up": seen("fp8", "rowwise_with_gw_hp", "fp8", HIGH)}),
    "linears of MXFP8": (mxfp8_linear, {"up": MXFP8}),
    "linears of MXFP8, wgrad in BF16": (
        lambda: mxfp8_linear(wgrad_with_hp=True), {"up": seen("fp8", "mxfp8", "mxfp8", HIGH)}),
    "linears of NVFP4": (nvfp4, {"up": seen("fp4", "nvfp4", "nvfp4")}),
    "linears of NVFP4, emulated": (
        lambda: nvfp4(**emulated()), {"up": seen("fp4_emulated", "nvfp4", "nvfp4")}),
    "linears of FP8 in blocks": (lambda: converted(BLOCKWISE, "Float8BlockwiseLinearConfig", "up"),
        {"up": seen("fp8", "blockwise_128", "fp8_block")}),
    "linears of 8 bit integers": (
        lambda: converted("prototype.quantized_training", "int8_mixed_precision_training", "up"),
        {"up": seen("unknown", None)}),
}  # fmt: skip


@pytest.fixture
def _hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a module be imported and used whose kernels this machine cannot compile."""
    before = set(sys.modules)
    if find_spec("triton") is None:
        for name in ("triton", "triton.language"):
            monkeypatch.setitem(sys.modules, name, MagicMock())
    named(BLOCKWISE, "is_sm_at_least_90")
    monkeypatch.setattr(f"torchao.{BLOCKWISE}.is_sm_at_least_90", lambda: True)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("torchao.prototype.blockwise"):
            del sys.modules[name]


@pytest.mark.parametrize("case", CASES)
def test_what_torchao_converts_is_known(
    case: str, request: pytest.FixtureRequest
) -> None:
    make, expected = CASES[case]
    if "blocks" in case:
        request.getfixturevalue("_hopper")
    found = census(make())
    assert {name: found[name] for name in expected} == expected


def test_weights_that_fsdp_gathers_in_float8() -> None:
    float8 = import_module("torchao.float8")
    config = float8.Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    model = Model()
    float8.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, fqn: fqn == "up"
    )

    record = take_census([torch.optim.SGD(model.parameters(), lr=0.1)])[0]
    assert (record["class"], record["state"]) == ("Float8Linear", "fp8")
    assert record["weight_class"] == "WeightWithDynamicFloat8CastTensor"


def test_a_class_whose_attributes_are_unknown_is_still_what_its_name_says() -> None:
    float8 = import_module("torchao.float8.float8_linear").Float8Linear

    class Later(float8):  # type: ignore[misc, valid-type]
        def __init__(self, *_: Any, **__: Any) -> None:
            nn.Linear.__init__(self, 128, 256, bias=False, dtype=torch.bfloat16)

    assert census(Model(Later))["up"] == seen("fp8", None)
