"""The census on torchao's own classes, converted as its users do; none of them runs a GEMM."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
pytest.importorskip("torchao", reason="needs torchao, from the train extra")
from fp8verify.agent.census import take_census  # noqa: E402 - needs torch

pytestmark = pytest.mark.train
nn = torch.nn


def legs(name: str, *, wgrad: str | None = None) -> list[str]:
    """Return the formats of fprop, dgrad and wgrad."""
    return [name, name, wgrad or name]


FP8, MXFP8 = legs("fp8"), legs("mxfp8")
FP8_NO_WGRAD = legs("fp8", wgrad="high_precision")
MXFP8_NO_WGRAD = legs("mxfp8", wgrad="high_precision")


class Experts(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(4, 64, 32, dtype=torch.bfloat16))


class Model(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(128, 256, bias=False, dtype=torch.bfloat16)
        self.experts = Experts()
        self.head = nn.Linear(256, 10, dtype=torch.bfloat16)


class Seen(NamedTuple):
    state: str
    recipe: str | None
    formats: list[str]


def census(model: Any) -> dict[str, Seen]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records = {record["fqn"]: record for record in take_census([optimizer])}
    assert set(records) == {"up", "experts.w1", "head"}
    assert (records["up"]["in_features"], records["up"]["out_features"]) == (128, 256)
    assert records["head"]["reason"] == "out_features 10 is not divisible by 16"
    return {n: Seen(r["state"], r["recipe"], [*r["formats"].values()]) for n, r in records.items()}


def named(module: str, name: str) -> Any:
    """Return what a version of torchao may not have."""
    try:
        return getattr(import_module(f"torchao.{module}"), name)
    except (ImportError, AttributeError):
        pytest.skip(f"this torchao has no {module}.{name}")


def training_config(name: str, **options: Any) -> Any:
    config = named("prototype.moe_training.config", name)
    try:
        return config(**options)
    except TypeError:
        pytest.skip(f"the {name} of this torchao has no {', '.join(options)}")


def convert(model: Any, config: Any, *names: str) -> Any:
    quantize = named("quantization", "quantize_")
    quantize(model, config, filter_fn=lambda _, fqn: fqn in names)
    return model


def emulated() -> Any:
    preference = named("quantization.quantize_.common", "KernelPreference")
    return getattr(preference, "EMULATED", None) or pytest.skip("this torchao cannot emulate")


MXFP8_OPTIONS = pytest.mark.parametrize(
    ("options", "state", "formats"),
    [
        (dict, "fp8", MXFP8),
        (lambda: {"kernel_preference": emulated()}, "fp8_emulated", MXFP8),
        (lambda: {"wgrad_with_hp": True}, "fp8", MXFP8_NO_WGRAD),
    ],
    ids=["auto", "emulated", "wgrad in BF16"],
)


@MXFP8_OPTIONS
def test_weights_wrapped_for_mxfp8(
    options: Callable[[], dict[str, Any]], state: str, formats: list[str]
) -> None:
    config = training_config("MXFP8TrainingOpConfig", **options())

    seen = census(convert(Model(), config, "up", "experts"))

    assert seen["up"] == seen["experts.w1"] == Seen(state, "mxfp8", formats)
    assert seen["head"] == Seen("high_precision", None, [])


@pytest.mark.parametrize(
    ("options", "recipe", "formats"),
    [
        ({}, "rowwise", FP8),
        ({"float8_linear_recipe": "tensorwise"}, "tensorwise", FP8),
        ({"float8_linear_recipe": "rowwise_with_gw_hp"}, "rowwise_with_gw_hp", FP8_NO_WGRAD),
    ],
    ids=["default", "tensorwise", "gw_hp"],
)
def test_weights_wrapped_for_float8(
    options: dict[str, Any], recipe: str, formats: list[str]
) -> None:
    config = training_config("Float8TrainingOpConfig", **options)

    seen = census(convert(Model(), config, "up", "experts"))

    assert seen["up"] == Seen("fp8", recipe, formats)
    assert seen["experts.w1"] == Seen("fp8", "rowwise", FP8)


@MXFP8_OPTIONS
def test_linears_of_mxfp8(
    options: Callable[[], dict[str, Any]], state: str, formats: list[str]
) -> None:
    linear = named("prototype.moe_training.mxfp8_linear", "MXFP8Linear")
    model = Model()
    model.up = linear(128, 256, bias=False, dtype=torch.bfloat16, **options())

    assert census(model)["up"] == Seen(state, "mxfp8", formats)


@pytest.mark.parametrize(
    ("dtype", "seen"),
    [
        (torch.float8_e4m3fn, Seen("fp8_emulated", "mxfp8", MXFP8)),
        (getattr(torch, "float4_e2m1fn_x2", None), Seen("fp4", "mxfp4", legs("mxfp4"))),
    ],
    ids=["mxfp8", "mxfp4"],
)
def test_linears_of_mx_before_0_16(dtype: Any, seen: Seen) -> None:
    config = named("prototype.mx_formats.config", "MXLinearConfig")(elem_dtype=dtype)
    model = Model()
    model.up = named("prototype.mx_formats.mx_linear", "MXLinear").from_float(
        model.up, config=config
    )

    assert census(model)["up"] == seen


def test_linears_of_nvfp4() -> None:
    config = named("prototype.moe_training.nvfp4_training.nvfp4_training", "NVFP4TrainingConfig")

    assert census(convert(Model(), config(), "up"))["up"] == Seen("fp4", "nvfp4", legs("nvfp4"))
    copied = census(convert(Model(), config(kernel_preference=emulated()), "up"))["up"]
    assert copied == Seen("fp4_emulated", "nvfp4", legs("nvfp4"))


@pytest.fixture
def _triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let modules be imported whose kernels this machine cannot compile."""
    before = set(sys.modules)
    try:
        import triton  # noqa: F401
    except ImportError:
        for name in ("triton", "triton.language"):
            monkeypatch.setitem(sys.modules, name, MagicMock())
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("torchao.prototype.blockwise", "torchao.prototype.moe_training")):
            del sys.modules[name]


@pytest.mark.usefixtures("_triton")
def test_linears_of_blockwise_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    config = named("prototype.blockwise_fp8_training.linear", "Float8BlockwiseLinearConfig")
    home = sys.modules[config.__module__]
    monkeypatch.setattr(home, "is_sm_at_least_90", lambda: True)

    seen = census(convert(Model(), config(), "up"))

    assert seen["up"] == Seen("fp8", "blockwise_128", legs("fp8_block"))


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize(
    ("scaling", "recipe", "formats"),
    [("FP8_ROWWISE", "rowwise", FP8), ("MXFP8", "mxfp8", MXFP8)],
    ids=["rowwise", "mxfp8"],
)
def test_experts_of_before_0_16(scaling: str, recipe: str, formats: list[str]) -> None:
    wrapper = named("prototype.moe_training.tensor", "ScaledGroupedMMTensor")
    scalings = named("prototype.moe_training.conversion_utils", "MoEScalingType")
    model = Model()
    model.experts.w1 = nn.Parameter(wrapper(model.experts.w1.data, getattr(scalings, scaling)))

    assert census(model)["experts.w1"] == Seen("fp8", recipe, formats)


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


def test_eight_bit_integers_are_not_fp8() -> None:
    config = named("prototype.quantized_training", "int8_mixed_precision_training")

    seen = census(convert(Model(), config(), "up"))

    assert seen["up"] == Seen("unknown", None, [])


def test_a_class_whose_attributes_are_unknown_is_still_what_its_name_says() -> None:
    float8 = import_module("torchao.float8.float8_linear").Float8Linear

    class Later(float8):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            nn.Linear.__init__(self, 128, 256, bias=False, dtype=torch.bfloat16)

    model = Model()
    model.up = Later()

    assert census(model)["up"] == Seen("fp8", None, [])
