"""The replayed casts give torchao's own bytes, bit for bit, and the figures of known tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, from the train extra")
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fp8verify.agent.casts import (
    BLOCK_ROW,
    BLOCK_SQUARE,
    DELAYED,
    E4M3,
    E5M2,
    FORMATS,
    MXFP8,
    ROWWISE,
    TENSORWISE,
    Cast,
    absolute_maxima,
    quantize,
)
from fp8verify.agent.numerics import figures
from fp8verify.agent.numerics.figures import WHAT_IF, Measurements, decibels
from fp8verify.agent.precision import casts_of

pytestmark = pytest.mark.train
# It is imported where a test needs it: each process of the tests would wait for it.
needs_torchao = pytest.mark.skipif(
    find_spec("torchao") is None, reason="needs torchao, from the train extra"
)


def wild(rows: int = 48, columns: int = 64, dtype: Any = torch.bfloat16) -> Any:
    """Return a matrix whose values lie over forty octaves, with zeros and a row of zeros."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator)
    x = x * torch.exp2(torch.randint(-20, 20, (rows, columns), generator=generator))
    x[3] = 0
    x[:, 5] = 0
    return x.to(dtype)


def replayed(x: Any, cast: Cast) -> Any:
    maxima = absolute_maxima(x)
    amax = maxima.unsqueeze(-1) if cast.scaling == ROWWISE else maxima.max()
    return quantize(x, cast, amax).values


def same_bytes(ours: Any, theirs: Any) -> bool:
    return torch.equal(ours.view(torch.uint8), theirs.contiguous().view(torch.uint8))


@needs_torchao
@pytest.mark.parametrize("power_of_2", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("found", [E4M3, E5M2], ids=lambda found: found.name)
@pytest.mark.parametrize("by_row", [False, True], ids=["tensorwise", "rowwise"])
def test_the_bytes_are_torchaos(
    by_row: bool, found: Any, dtype: Any, power_of_2: bool
) -> None:
    scaling = import_module("torchao.float8.float8_scaling_utils")
    granularity = import_module("torchao.float8.config").ScalingGranularity
    x = wild(dtype=dtype)
    theirs = scaling.hp_tensor_to_float8_dynamic(
        x,
        found.dtype,
        import_module("torchao.float8.float8_training_tensor").LinearMMConfig(),
        scaling_granularity=granularity.AXISWISE if by_row else granularity.TENSORWISE,
        axiswise_dim=-1 if by_row else None,
        round_scales_to_power_of_2=power_of_2,
    )

    ours = replayed(x, Cast(found, ROWWISE if by_row else TENSORWISE, power_of_2))

    assert same_bytes(ours, theirs._data)


@needs_torchao
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_linear_casts_as_its_class_says(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    float8 = import_module("torchao.float8")
    linear = import_module("torchao.float8.float8_linear")
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", True)
    layer = linear.Float8Linear(64, 32, bias=False, config=config, dtype=torch.bfloat16)
    seen: list[Any] = []
    original = linear.hp_tensor_to_float8_dynamic

    def watched(x: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(original(x, *args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(linear, "hp_tensor_to_float8_dynamic", watched)
    x = wild().requires_grad_()
    out = layer(x)
    gradient = wild(48, 32)
    out.backward(gradient)

    casts = casts_of(layer, layer.weight)
    assert casts is not None
    tensors = {
        "input": x.detach(),
        "weight": layer.weight.detach(),
        "grad_output": gradient,
    }
    ours = {name: replayed(tensor, casts[name]) for name, tensor in tensors.items()}
    theirs = dict(zip(("input", "weight", "grad_output"), seen, strict=False))
    assert same_bytes(ours["input"], theirs["input"]._data)
    assert same_bytes(ours["weight"], theirs["weight"]._data.t())
    assert same_bytes(ours["grad_output"], theirs["grad_output"]._data)


def row(x: Any, cast: Cast | None) -> dict[str, Any]:
    measured = Measurements()
    measured.add("layer", "input", x, cast)
    return measured.records()[0]


def test_the_figures_of_a_tensor_are_counted() -> None:
    x = torch.ones(8, 16, dtype=torch.bfloat16)
    x[0, 0] = 448.0
    x[1] = 0
    x[2, :4] = 2.0**-12  # below half of the smallest subnormal
    x[3, :2] = 2.0**-8  # subnormal
    x[4, 3] = float("nan")

    seen = row(x, Cast(E4M3, DELAYED, scale=torch.tensor(1.0)))
    assert (seen["nan"], seen["rows_not_finite"], seen["amax"]) == (1 / 128, 1, None)
    assert seen["flushed"] is None
    x[4, 3:6] = float("-inf")
    assert row(x, Cast(E4M3, DELAYED, scale=torch.tensor(1.0)))["inf"] == 3 / 128
    x[4, 4:6] = 1.0

    x[4, 3] = 480.0
    seen = row(x, Cast(E4M3, DELAYED, scale=torch.tensor(1.0)))
    assert seen["amax"] == 480
    assert seen["saturated"] == 1 / 128
    assert seen["flushed"] == 4 / 128
    assert seen["subnormal"] == 2 / 128
    assert seen["zeros"] == 16 / 128
    assert seen["zero_rows"] == 1 / 8


def test_calls_of_one_layer_add_up() -> None:
    measured, cast = Measurements(), Cast(E4M3, TENSORWISE)
    for factor in (1.0, 8.0):
        x = torch.full((4, 16), factor, dtype=torch.bfloat16)
        measured.add("layer", "input", x, cast)

    (seen,) = measured.records()
    assert (seen["calls"], seen["amax"], seen["elements"]) == (2, 8.0, 128)
    assert seen["rms"] == pytest.approx(math.sqrt((1 + 64) / 2))


CASTS = {
    "tensorwise": Cast(E4M3, TENSORWISE),
    "tensorwise, power of 2": Cast(E4M3, TENSORWISE, power_of_2=True),
    "tensorwise e5m2": Cast(E5M2, TENSORWISE),
    "rowwise": Cast(E4M3, ROWWISE, power_of_2=True),
    "block": Cast(E4M3, BLOCK_ROW),
    "mxfp8": Cast(E4M3, MXFP8, ceiling=True),
    "delayed": Cast(E4M3, DELAYED, scale=torch.tensor(4.0)),
}


@pytest.mark.parametrize("name", [*CASTS, "square"])
def test_a_large_tensor_is_measured_whole_in_small_parts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = wild(1024, 256)
    x[517, 3] = 1e5
    cast = {**CASTS, "square": Cast(E4M3, BLOCK_SQUARE)}[name]
    whole = row(x, cast)
    monkeypatch.setattr(figures, "PART", 1 << 15)
    largest: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            given = x.untyped_storage().data_ptr()
            if (
                isinstance(out, torch.Tensor)
                and out.untyped_storage().data_ptr() != given
            ):
                largest.append(out.numel())
            return out

    with Watch():
        parts = row(x, cast)

    assert max(largest) <= 1 << 15
    what_if = parts.pop("what_if")
    assert what_if == pytest.approx(whole.pop("what_if"), abs=2e-3)
    assert parts == {key: pytest.approx(value) for key, value in whole.items()}
    assert (parts["amax"], parts["elements"]) == (x.abs().max(), x.numel())
    by_hand = float(x.double().square().mean().sqrt())
    assert parts["rms"] == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize(("noise", "db"), [(0.0, 150.0), (1e-30, 150.0), (1e-3, 30.0)])
def test_a_cast_that_loses_next_to_nothing_is_capped(noise: float, db: float) -> None:
    assert decibels(1.0, noise) == db


def test_what_is_lost_of_some_calls_alone_is_not_told() -> None:
    measured = Measurements()
    for cast in (CASTS["rowwise"], None):
        measured.add("layer", "grad_output", wild(), cast)
    (seen,) = measured.records()
    assert (seen["source"], seen["calls"], seen["sqnr_db"], seen["flushed"]) == (
        "values", 2, None, None,
    )  # fmt: skip


def in_float64(x: Any, cast: Cast) -> tuple[float, float]:
    """Return the squares of a tensor and of what its cast loses, group by group of one scale."""
    width = {ROWWISE: x.shape[1], BLOCK_ROW: 128, MXFP8: 32}.get(
        cast.scaling, x.numel()
    )
    groups = x.float().reshape(-1, width)
    signal = noise = 0.0
    for group in groups:
        done = quantize(group.view(1, -1), cast, group.abs().max())
        back = done.values.double() / done.scale.double().flatten()[0]
        signal += float(group.double().square().sum())
        noise += float((back - group.double()).square().sum())
    return signal, noise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("name", CASTS)
def test_what_a_cast_loses_is_as_in_float64(name: str, dtype: Any) -> None:
    x = (wild(64, 256, torch.float32) / 2**10).to(dtype)
    signal, noise = in_float64(x, CASTS[name])

    seen = row(x, CASTS[name])

    assert seen["rms"] == pytest.approx(math.sqrt(signal / x.numel()), rel=1e-6)
    assert seen["sqnr_db"] == pytest.approx(10 * math.log10(signal / noise), abs=2e-3)
    for other, cast in WHAT_IF.items():
        signal, noise = in_float64(x, cast)
        assert seen["what_if"][other] == pytest.approx(
            10 * math.log10(signal / noise), abs=2e-3
        )


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_that_loses_nothing_says_so(name: str) -> None:
    seen = row(torch.full((64, 256), 7.0), CASTS[name])
    assert min(seen["sqnr_db"], *seen["what_if"].values()) >= 140
    seen = row(torch.zeros(64, 256), CASTS[name])
    assert (seen["zeros"], seen["zero_rows"], seen["amax"], seen["rms"]) == (1, 1, 0, 0)
    assert (seen["flushed"], seen["sqnr_db"], seen["what_if"]) == (0, None, {})


@pytest.mark.parametrize("largest", [1e-30, 1e-38, 1e-40])
def test_values_below_every_scale_are_lost_and_no_recipe_is_said_to_keep_them(
    largest: float,
) -> None:
    x = torch.linspace(0.1, 1, 64 * 256).view(64, 256) * largest
    for name in ("tensorwise", "rowwise", "block", "delayed"):
        seen = row(x, CASTS[name])
        assert (seen["flushed"], seen["sqnr_db"]) == (1, 0)
        assert f"{seen['sqnr_db']:.1f}" == "0.0"
        kept = {other for other, db in seen["what_if"].items() if db > 1}
        assert kept == {"mxfp8_e4m3"}  # whose scales reach down to 2^-127


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("factor", [1e30, 1e-9])
def test_figures_do_not_depend_on_the_range(name: str, factor: float) -> None:
    x = wild(64, 256, torch.float32) / 2**20
    cast = CASTS[name]
    if cast.scale is not None:
        cast = cast._replace(scale=cast.scale / factor)
    usual, seen = row(x, CASTS[name]), row(x * factor, cast)
    assert seen["sqnr_db"] == pytest.approx(usual["sqnr_db"], abs=0.3)
    assert seen["rms"] == pytest.approx(usual["rms"] * factor, rel=1e-4)
    assert seen["flushed"] == pytest.approx(usual["flushed"], abs=0.02)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_one_tensor_that_is_not_finite_spoils_no_other(odd: float) -> None:
    measured, cast = Measurements(), CASTS["tensorwise"]
    x, broken = wild(64, 256), wild(64, 256)
    broken[7, 9] = odd
    for name, tensor in (("a", x), ("b", broken), ("c", torch.zeros_like(x)), ("d", x)):
        measured.add(name, "input", tensor, cast)

    first, bad, zeros, last = measured.records()

    assert {**first, "layer": "d"} == last == {**row(x, cast), "layer": "d"}
    assert (bad["nan"] > 0, bad["inf"] > 0) == (math.isnan(odd), math.isinf(odd))
    assert (bad["amax"], bad["flushed"], bad["sqnr_db"], bad["rows_not_finite"]) == (
        None, None, None, 1,
    )  # fmt: skip
    assert (zeros["zeros"], zeros["nan"], zeros["sqnr_db"]) == (1, 0, None)


@pytest.mark.parametrize("shape", [(256,), (1, 256), (2, 3, 256), ()])
def test_tensors_of_any_shape_are_measured(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    seen = row(x, CASTS["tensorwise"])
    assert (seen["elements"], seen["amax"]) == (x.numel(), x.abs().max())
    assert seen["sqnr_db"] > 29


@pytest.mark.parametrize("name", ["block", "mxfp8"])
def test_blocks_that_do_not_fit_leave_all_else(name: str) -> None:
    seen = row(torch.randn(16, 40), CASTS[name])
    assert (seen["source"], seen["sqnr_db"], seen["flushed"]) == ("values", None, None)
    assert set(seen["what_if"]) == {
        "tensorwise_e4m3",
        "tensorwise_e5m2",
        "rowwise_e4m3",
    }
    assert seen["rms"] == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("ceiling", [False, True])
def test_mx_scales_that_are_rounded_up_clip_nothing(ceiling: bool) -> None:
    x = torch.full((4, 32), 500.0)

    assert row(x, Cast(E4M3, MXFP8, ceiling=ceiling))["saturated"] == (
        0 if ceiling else 1
    )


def test_blocks_at_the_largest_value_are_counted() -> None:
    x = torch.full((4, 32), 448.0)
    x[:1, 1:] = 100.0  # one value alone is no crowd
    x[1, 16:] = 100.0  # nor is half of a block

    assert row(x, Cast(E4M3, MXFP8))["top_blocks"] == 2 / 4


def test_bytes_are_told_apart() -> None:
    for found in FORMATS.values():
        values = torch.tensor([0.0, found.largest, -found.largest, float("nan"), 1.0])
        line = figures.measure_bytes(values.to(found.dtype), found).tolist()
        seen = dict(zip(figures.COLUMNS, line, strict=True))
        assert (seen["zeros"], seen["saturated"], seen["nan"]) == (1, 2, 1), found.name


@pytest.mark.parametrize("place", [1, 12_345, (1 << 24) + 7])
@pytest.mark.parametrize("transposed", [False, True])
def test_one_nan_among_millions_of_bytes_is_found(place: int, transposed: bool) -> None:
    data = torch.full((17, 1 << 20), 0x38, dtype=torch.uint8)
    data.view(-1)[place] = 0xFF
    measured = Measurements()

    measured.add_bytes(
        "l", "input", data.t() if transposed else data, Cast(E4M3, DELAYED)
    )

    (found,) = measured.records()
    assert found["nan"] == 1 / data.numel()
    assert found["inf"] == 0
    assert found["elements"] == data.numel()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
