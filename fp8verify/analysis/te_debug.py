"""Transformer Engine's own debug logs, as the numbers that `run --numerics` would have measured.

nvdlfw-inspect writes `nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-N.log`, lines such
as `2025-11-22 10:00:00,123 - INFO - decoder.layers.1.mlp.fc2_activation_fp8_delayed_scaling_\
underflows% iteration=000002 value=0.01`; names of the statistics are those of
transformer_engine/debug/features/log_fp8_tensor_stats.py and log_tensor_stats.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from fp8verify.analysis.numerics import rows_of
from fp8verify.capture.schema import (
    MeasuredRecord,
    NumericsRecord,
    RankNumerics,
    SeriesRecord,
)
from fp8verify.errors import InputError
from fp8verify.logs.lines import read_lines
from fp8verify.text import lazy_pattern

LOGS = "nvdlfw_inspect_globalrank-*.log"
FOLDER = "nvdlfw_inspect_statistics_logs"
MAX_VALUES = 2_000_000
MAX_STEPS = 4096
_RANK = lazy_pattern(r"globalrank-(\d{1,9})")
_LINE = lazy_pattern(
    r" - INFO - (?P<name>\S.{0,1000}?)\s+iteration=(?P<step>\d{1,12})\s+"
    r"value=(?P<value>[-+]?\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|-?inf)\s*$"
)
_NAME = lazy_pattern(r"(?P<layer>.+)_(?P<tensor>activation|weight|gradient)_(?P<stat>.+)")
TENSORS = {"activation": "input", "weight": "weight", "gradient": "grad_output"}
# The recipe in a statistic's name, and how its values share a scale.
SCALINGS = {
    "fp8_delayed_scaling": "delayed",
    "fp8_current_scaling": "tensorwise",
    "fp8_block_scaling": "block_1x128",
    "mxfp8": "mxfp8",
    "nvfp4": None,
}
# What a statistic is called here, and what its unit is in ours.
STATISTICS = {
    "underflows%": ("flushed", 0.01),
    "overflows%": ("saturated", 0.01),
    "cur_amax": ("amax", 1.0),
    "max": ("amax", 1.0),
    "scale_inv_min": ("scale_inv_min", 1.0),
    "scale_inv_max": ("scale_inv_max", 1.0),
}

Row = tuple[str, str]
Values = dict[int, dict[Row, dict[str, float]]]


def read_stats(folder: Path) -> dict[int, RankNumerics]:
    """Return the numbers of each rank that has a log.

    Args:
        folder: the logs' own, or the one that holds it.

    Raises:
        InputError: there is no such log, or none of its lines is a statistic.
    """
    inner = folder / FOLDER
    logs = sorted((inner if inner.is_dir() else folder).glob(LOGS))
    found = {}
    for path in logs:
        match = _RANK.search(path.name)
        lines = (line.text for line in read_lines(path, words=(b"iteration=",)))
        numerics = _numbers(lines, int(match[1]) if match else 0)
        if numerics is not None:
            found[numerics.record.rank] = numerics
    if not found:
        raise InputError(
            f"{folder} holds no statistics of Transformer Engine.",
            f"Give the folder {FOLDER}, with {LOGS} in it: debug_api.initialize(log_dir=…) of "
            "nvdlfw-inspect names where.",
        )
    return found


def _numbers(lines: Iterable[str], rank: int) -> RankNumerics | None:
    values, scalings = _values(lines)
    if not values:
        return None
    steps = sorted(values)
    last = _line(steps[-1], values[steps[-1]], scalings)
    measured = MeasuredRecord(
        step=last.step,
        time=0.0,
        rows=rows_of(last, {}),
        recomputed_high=(),
        gradient=None,
        notes=(),
    )
    record = NumericsRecord(schema=1, rank=rank, windows=(), measured=measured, reason=None)
    every = -(-len(steps) // MAX_STEPS)
    series = tuple(_line(step, values[step], scalings) for step in steps[::every])
    return RankNumerics(record=record, series=series)


def _values(lines: Iterable[str]) -> tuple[Values, dict[Row, str | None]]:
    found: Values = defaultdict(lambda: defaultdict(dict))
    scalings: dict[Row, str | None] = {}
    count = 0
    for line in lines:
        match = _LINE.search(line[:2048])
        name = _NAME.fullmatch(match["name"]) if match else None
        if match is None or name is None or count >= MAX_VALUES:
            continue
        scaling, known = _statistic(name["stat"])
        if known is None:
            continue
        count += 1
        key = (name["layer"], TENSORS[name["tensor"]])
        if scaling is not None:
            scalings[key] = scaling
        field, unit = known
        values = found[int(match["step"])][key]
        values[field] = _joined(field, values.get(field), float(match["value"]) * unit)
    return found, scalings


def _joined(field: str, old: float | None, value: float) -> float:
    """Return an amax of all that is known of it, as the largest value, which has a sign."""
    if field != "amax" or old is None or math.isnan(value):
        return abs(value) if field == "amax" else value
    return old if math.isnan(old) else max(old, abs(value))


def _statistic(text: str) -> tuple[str | None, tuple[str, float] | None]:
    """Tell the recipe and the statistic; transposed copies repeat what is known."""
    if text.endswith("_columnwise"):
        return None, None
    for recipe, scaling in SCALINGS.items():
        if text.startswith(f"{recipe}_"):
            return scaling, STATISTICS.get(text.removeprefix(f"{recipe}_"))
    return None, STATISTICS.get(text)


def _line(
    step: int, rows: dict[Row, dict[str, float]], scalings: dict[Row, str | None]
) -> SeriesRecord:
    def column(field: str) -> tuple[float | None, ...]:
        found = (values.get(field) for values in rows.values())
        return tuple(value if value is None or math.isfinite(value) else None for value in found)

    nothing, zeros = (None,) * len(rows), (0.0,) * len(rows)
    return SeriesRecord(
        step=step,
        time=0.0,
        gradient=None,
        layer=tuple(layer for layer, _ in rows),
        tensor=tuple(tensor for _, tensor in rows),
        amax=column("amax"),
        rms=nothing,
        scale=tuple(1 / value if value else None for value in column("scale_inv_max")),
        flushed=column("flushed"),
        saturated=column("saturated"),
        sqnr_db=nothing,
        nan=zeros,
        inf=zeros,
        source=("te-debug",) * len(rows),
        format=nothing,
        scaling=tuple(map(scalings.get, rows)),
        rows_not_finite=tuple(
            int(not all(map(math.isfinite, values.values()))) for values in rows.values()
        ),
    )
