"""The replayed casts give torchao's own bytes, bit for bit, and the figures of known tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, from the train extra")
pytest.importorskip("torchao", reason="needs torchao, from the train extra")
import torch

from fp8verify.runner.agent.numerics.casts import casts_of
from fp8verify.runner.agent.numerics.formats import E4M3, E5M2, FORMATS
from fp8verify.runner.agent.numerics.measure import measure_bytes
from fp8verify.runner.agent.numerics.measurements import Measurements
from fp8verify.runner.agent.numerics.replay import (
    BLOCK_ROW,
    DELAYED,
    MXFP8,
    ROWWISE,
    TENSORWISE,
    Cast,
    absolute_maxima,
    quantize,
)
from fp8verify.runner.agent.numerics.rows import MOST_ELEMENTS

pytestmark = pytest.mark.train
float8 = import_module("torchao.float8")
scaling = import_module("torchao.float8.float8_scaling_utils")
linear = import_module("torchao.float8.float8_linear")


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


@pytest.mark.parametrize("power_of_2", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("found", [E4M3, E5M2], ids=lambda found: found.name)
@pytest.mark.parametrize("by_row", [False, True], ids=["tensorwise", "rowwise"])
def test_the_bytes_are_torchaos(by_row: bool, found: Any, dtype: Any, power_of_2: bool) -> None:
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


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_linear_casts_as_its_class_says(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    tensors = {"input": x.detach(), "weight": layer.weight.detach(), "grad_output": gradient}
    ours = {name: replayed(tensor, casts[name]) for name, tensor in tensors.items()}
    theirs = dict(zip(("input", "weight", "grad_output"), seen, strict=False))
    assert same_bytes(ours["input"], theirs["input"]._data)
    assert same_bytes(ours["weight"], theirs["weight"]._data.t())
    assert same_bytes(ours["grad_output"], theirs["grad_output"]._data)


def row(x: Any, cast: Cast | None) -> dict[str, Any]:
    measured = Measurements()
    assert measured.add("layer", "input", x, cast)
    return measured.records()[0]


@pytest.mark.parametrize(("found", "db"), [(E4M3, 31.5), (E5M2, 25.5)], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("how", [TENSORWISE, ROWWISE, BLOCK_ROW])
def test_random_values_keep_what_they_should(found: Any, db: float, how: str) -> None:
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)

    seen = row(x, Cast(found, how))

    assert seen["sqnr_db"] == pytest.approx(db, abs=1)
    assert seen["what_if"]["tensorwise_e5m2"] == pytest.approx(25.5, abs=1)
    assert (seen["flushed"], seen["saturated"]) == (pytest.approx(0, abs=1e-3), 0)


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


def test_a_large_tensor_is_sampled_and_its_amax_is_not() -> None:
    x = torch.zeros(3 * MOST_ELEMENTS // 1024, 1024, dtype=torch.bfloat16)
    x[1, 7] = 5.0  # not among every third row

    seen = row(x, Cast(E4M3, ROWWISE))

    assert seen["sampled"] == MOST_ELEMENTS
    assert seen["amax"] == 5.0
    assert seen["zero_rows"] == pytest.approx(1 - 1 / len(x))


@pytest.mark.parametrize("ceiling", [False, True])
def test_mx_scales_that_are_rounded_up_clip_nothing(ceiling: bool) -> None:
    x = torch.full((4, 32), 500.0)

    assert row(x, Cast(E4M3, MXFP8, ceiling=ceiling))["saturated"] == (0 if ceiling else 1)


def test_bytes_are_told_apart() -> None:
    for found in FORMATS.values():
        values = torch.tensor([0.0, found.largest, -found.largest, float("nan"), 1.0])
        seen, _ = measure_bytes(values.to(found.dtype), found)
        counts = {name: int(seen[name]) for name in ("zeros", "saturated", "nan")}
        assert counts == {"zeros": 1, "saturated": 2, "nan": 1}, found.name


@pytest.mark.parametrize("place", [1, 12_345, (1 << 24) + 7])
@pytest.mark.parametrize("transposed", [False, True])
def test_one_nan_among_millions_of_bytes_is_found(place: int, transposed: bool) -> None:
    data = torch.full((17, 1 << 20), 0x38, dtype=torch.uint8)
    data.view(-1)[place] = 0xFF
    measured = Measurements()

    assert measured.add_bytes("l", "input", data.t() if transposed else data, Cast(E4M3, DELAYED))

    (found,) = measured.records()
    assert found["nan"] == 1 / data.numel()
    assert found["inf"] == 0
    assert found["sampled"] <= 5 << 20


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
