"""FP8 copies of weights and their masters, as libraries keep them: stale ones, and sound ones."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, from the train extra")
import torch
from torch import nn

from fp8verify.agent.casts import E4M3, E5M2
from fp8verify.agent.numerics.weight_copies import _ordinal, _segments, compare, sample_copies
from fp8verify.capture.schema import WeightCopyRecord
from fp8verify.verdict.findings.scales import stale_copies

pytestmark = pytest.mark.train
ROWS, COLUMNS = 256, 384


class DType(IntEnum):
    """As Transformer Engine's, whose str() is a number."""

    kFloat8E4M3 = 7  # noqa: N815
    kFloat8E5M2 = 8  # noqa: N815


class Kept:
    """Looks like a quantized tensor of Transformer Engine: bytes, scales, how they lie."""

    def __init__(self, layout: str, weight: torch.Tensor, found: Any = E4M3) -> None:
        self._fp8_dtype = DType[f"kFloat8{found.name.upper()}"]
        self._layout, self._format = layout, found
        self.cast(weight)

    def cast(self, weight: torch.Tensor) -> None:
        """Quantize anew, as the layout says."""
        x, largest = weight.detach().float(), self._format.largest
        rows, columns = x.shape

        def quantized(inverse: torch.Tensor) -> torch.Tensor:
            scaled = (x / inverse).clamp(-largest, largest)
            return scaled.to(self._format.dtype).view(torch.uint8)

        if self._layout in ("tensor", "transposed"):
            self._scale_inv = (x.abs().amax() / largest).reshape(1)
            data = quantized(self._scale_inv)
            if self._layout == "tensor":
                self._data = data
            else:
                self._data, self._transpose = None, data.t().contiguous()
                self._transpose_invalid = False
            return
        if self._layout == "mx":
            amax = x.view(rows, -1, 32).abs().amax(2)
            exponent = torch.ceil(torch.log2(amax / largest))
            self._rowwise_data = quantized(torch.exp2(exponent).repeat_interleave(32, 1))
            padded = torch.zeros(rows, columns // 32 + 4)
            padded[:, : columns // 32] = exponent + 127
            self._rowwise_scale_inv = padded.to(torch.uint8)
            return
        blocks = x.view(rows, -1, 128).abs().amax(2) / largest
        self._rowwise_scale_inv = blocks.t().contiguous()
        self._rowwise_data = quantized(blocks.repeat_interleave(128, 1))


LAYOUTS = ("tensor", "transposed", "row", "mx")


class Linear(nn.Linear):
    """A linear that keeps an FP8 copy in `_fp8_workspaces`, as Transformer Engine's do."""

    def __init__(self, layout: str, found: Any = E4M3) -> None:
        super().__init__(COLUMNS, ROWS, bias=False)
        self._fp8_workspaces = {"weight": Kept(layout, self.weight, found)}

    def refresh(self) -> None:
        self._fp8_workspaces["weight"].cast(self.weight)


def window(module: Any, steps: Any, optimizers: Any = ()) -> list[dict[str, Any]]:
    """Sample at both ends of some steps."""
    before = sample_copies([("layer", module)], optimizers)
    steps()
    return compare(before, sample_copies([("layer", module)], optimizers))


def train(module: Linear, rate: float, *, refresh: bool, steps: int = 3) -> list[dict[str, Any]]:
    """Step a weight by Adam; each forward pass casts it before the step, or never."""
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)

    def step() -> None:
        if refresh:
            module.refresh()
        module.weight.grad = torch.randn_like(module.weight)
        optimizer.step()

    step()
    return window(module, lambda: [step() for _ in range(steps)])


def stale(records: list[dict[str, Any]]) -> int:
    return len(stale_copies([WeightCopyRecord(**record) for record in records]))


@pytest.mark.parametrize(
    ("found", "rate", "steps"),
    [(E4M3, 0.0, 1), (E4M3, 1e-7, 3), (E4M3, 1e-3, 1), (E5M2, 1e-3, 3), (E5M2, 1e-1, 1)],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_that_are_cast_in_each_step_are_sound(
    layout: str, rate: float, steps: int, found: Any
) -> None:
    torch.manual_seed(0)
    (record,) = train(Linear(layout, found), rate, refresh=True, steps=steps)
    assert (record["sampled"], record["format"]) == (1920, found.name)
    assert stale([record]) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("steps_before", [1, 500])  # then the copy resembles its master no more
def test_a_copy_that_is_never_cast_again_is_stale(layout: str, steps_before: int) -> None:
    torch.manual_seed(0)
    module = Linear(layout)
    with torch.no_grad():
        module.weight += 1e-2 * (steps_before - 1) * torch.randn_like(module.weight)
    (record,) = train(module, 3e-3, refresh=False)
    assert record["unchanged"]
    assert record["moved"] == 1
    assert stale([record]) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rate", [0.0, 1e-7])
def test_a_master_that_hardly_moves_accuses_nothing(layout: str, rate: float) -> None:
    torch.manual_seed(0)
    assert stale(train(Linear(layout), rate, refresh=False)) == 0


class Parameter(nn.Module):
    """A module whose parameter is FP8 itself, with its master elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.master = torch.randn(ROWS, COLUMNS)
        self.weight = nn.Parameter(torch.zeros(ROWS, COLUMNS))
        self.refresh()

    def refresh(self) -> None:
        self.kept = Kept("tensor", self.master)
        for name, value in vars(self.kept).items():
            setattr(self.weight, name, value)


@pytest.mark.parametrize("refreshed", [True, False])
@pytest.mark.parametrize("where", ["main_param", "optimizer"])
def test_the_master_of_an_fp8_parameter_is_found(where: str, refreshed: bool) -> None:
    torch.manual_seed(0)
    module = Parameter()
    optimizers = []
    if where == "main_param":
        module.weight.main_param = module.master.view(-1)  # type: ignore[attr-defined]
    else:
        state = {module.weight: {"exp_avg": torch.zeros(1), "master_param": module.master}}
        optimizers = [SimpleNamespace(state=state)]

    def step() -> None:
        module.master += 0.3 * torch.randn_like(module.master)
        if refreshed:
            module.refresh()

    # An optimizer's FP8 parameters may be gathered in the next forward pass: one step tells not.
    assert stale(window(module, step, optimizers)) == 0
    records = window(module, step, optimizers)
    assert stale(records) == (0 if refreshed else 1)
    assert (records[0]["off"] == 0) is refreshed


class Own(nn.Linear):
    """A script's own linear, with an FP8 tensor of its weight whose scale nothing names."""

    def __init__(self, scale: str, *, transposed: bool = False) -> None:
        super().__init__(COLUMNS, ROWS, bias=False)
        self._scale_of, self._turned = scale, transposed
        self.register_buffer("quantized", torch.zeros(1, 1, dtype=torch.float8_e4m3fn))
        self.refresh()

    def refresh(self) -> None:
        weight = self.weight.detach()
        amax = (
            weight.abs().amax(dim=1, keepdim=True)
            if self._scale_of == "row"
            else weight.abs().max()
        )
        data = (weight * (448 / amax)).to(torch.float8_e4m3fn)
        self.quantized = data.t().contiguous() if self._turned else data


@pytest.mark.parametrize("scale", ["tensor", "row"])
@pytest.mark.parametrize(
    ("rate", "refresh", "expected"),
    [(1e-3, True, 0), (0.0, False, 0), (1e-7, False, 0), (1e-2, False, 1)],
)
def test_a_copy_whose_scale_is_not_known_is_compared(
    scale: str, rate: float, refresh: bool, expected: int
) -> None:
    torch.manual_seed(0)
    assert stale(train(Own(scale), rate, refresh=refresh)) == expected  # type: ignore[arg-type]


def test_a_tensor_that_is_no_copy_of_the_weight_accuses_nothing() -> None:
    torch.manual_seed(0)
    module = Own("tensor")
    module.quantized = torch.randn(ROWS, COLUMNS).to(torch.float8_e4m3fn)
    assert stale(train(module, 1e-2, refresh=False)) == 0  # type: ignore[arg-type]
    module.quantized = Own("tensor").quantized.t().contiguous()  # lies the other way around
    assert stale(train(module, 1e-2, refresh=False)) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "columns"), [(256, 384), (3, 1000), (5000, 7), (1, 1)])
def test_samples_are_spread_over_the_matrix(rows: int, columns: int) -> None:
    matrix = torch.arange(rows * columns).view(rows, columns)
    places = _segments(matrix)
    assert len(places) <= 2048
    assert torch.equal(places, _segments(matrix.t().contiguous().t()))  # of any strides
    row, column = places // columns, places % columns
    assert 0 <= row.min() <= rows // 2 <= row.max() < rows
    assert 0 <= column.min() <= columns // 2 <= column.max() < columns
    for found, size in ((row, rows), (column, columns)):
        quarters = torch.bincount(found * 4 // size, minlength=4)
        assert size < 8 or quarters.min() > len(found) / 7
    if rows * columns > 16 * 2048:
        assert len(set(zip(row.tolist(), column.tolist(), strict=True))) == len(row)


def test_a_copy_of_a_part_of_the_weight_is_not_sampled() -> None:
    module = Linear("tensor")
    module._fp8_workspaces["weight"].cast(module.weight[: ROWS // 2])
    assert sample_copies([("layer", module)], []) == {}


def test_modules_without_a_copy_are_not_sampled() -> None:
    for module in (nn.Linear(64, 64), nn.LayerNorm(4), nn.Embedding(4, 4)):
        assert sample_copies([("layer", module)], []) == {}


def test_bytes_are_numbered_in_the_order_of_their_values() -> None:
    data = torch.arange(256, dtype=torch.uint8)
    values = data.view(torch.float8_e4m3fn).float()
    order = values.nan_to_num(-1e9).argsort(stable=True)[2:]  # without both NaN
    steps = _ordinal(data)[order].diff().tolist()
    assert (set(steps), steps.count(0)) == ({0, 1}, 1)  # both zeros


@pytest.mark.parametrize("found", [E4M3, E5M2], ids=lambda found: found.name)
def test_one_unit_in_the_last_place_is_no_difference(found: Any) -> None:
    torch.manual_seed(0)
    module = Linear("tensor", found)
    kept = module._fp8_workspaces["weight"]
    byte = kept._data.view(-1)
    byte += (byte & 0x7F < 0x70).to(torch.uint8)  # each a unit larger

    def step() -> None:
        with torch.no_grad():
            module.weight += 1e-9

    (record,) = window(module, step)
    assert record["off"] == record["off_before"] == 0
