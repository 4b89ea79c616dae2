"""What the agent writes about scales and tensors: `rankR.numerics.json`, and lines of a series.

A field that only one side knows fails `tests/integration/test_numerics_run.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fp8verify.capture.names import NUMERICS, NUMERICS_SUFFIX, SERIES_SUFFIX
from fp8verify.errors import InputError
from fp8verify.text import clean_json

SCHEMA = 1
MAX_BYTES = 64 << 20
MAX_SERIES, MAX_LINES = 128 << 20, 1 << 16  # bytes and lines of a series that are read
_MAX_LINE = 8 << 20

# What a file may hold: the rules reckon with it.
Positive = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Single = Annotated[float, Meta(ge=0, le=1e39)]  # a magnitude in float32
Number = Annotated[str, Meta(pattern=r"^(-?\d+(\.\d+)?(e[-+]?\d{1,3})?|-?inf|nan)$")]


class TensorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of one layer in the measured step; shares are of its elements, 0 to 1.

    Attributes:
        layer: the module's name; of a module with two GEMMs the weight's too, "mlp.fc1".
        tensor: "input", "weight" or "grad_output".
        source: "replay" (the cast was repeated), "bytes" (the FP8 bytes were seen, not the values),
            "values" (the cast is not known) or "te-debug" (Transformer Engine's own log).
        format: "e4m3" or "e5m2", None where the cast is not known.
        scaling: "tensorwise", "rowwise", "delayed", "block_1x128", "block_128x128" or "mxfp8".
        calls: passes of the layer in the step that were added up.
        sampled: elements of which the shares are; amax and rows are of all.
        amax: the largest magnitude, None if it is not finite.
        scale: what values are multiplied by, where one holds for the whole tensor.
        zeros: of the values; of source "bytes", of the bytes.
        flushed: values that the cast made zero.
        saturated: values that it clipped.
        subnormal: values that it left with fewer bits.
        rows_not_finite: rows with a NaN or infinity, of all of the tensor.
        zero_rows: share of rows that are all zero.
        sqnr_db: signal to quantisation noise.
        top_blocks: share of MX blocks more than half of whose values are the largest.
        what_if: the same in dB under other recipes.
        error: by how much figures of a sample may be off, by name: four standard errors, and for
            shares what rows that were all left out could hold. Empty where all was measured.
    """

    layer: str
    tensor: Annotated[str, Meta(pattern="^(input|weight|grad_output)$")]
    source: str
    format: str | None = None
    scaling: str | None = None
    calls: Count = 1
    elements: Count = 0
    sampled: Count = 0
    amax: Positive | None = None
    rms: Positive | None = None
    scale: float | None = None
    zeros: Positive | None = None
    flushed: Positive | None = None
    saturated: Positive | None = None
    subnormal: Positive | None = None
    nan: Positive = 0.0
    inf: Positive = 0.0
    rows_not_finite: Count = 0
    zero_rows: Positive | None = None
    sqnr_db: float | None = None
    top_blocks: Positive | None = None
    what_if: dict[str, float] = {}
    error: dict[str, Positive] = {}

    @property
    def finite(self) -> bool:
        """Whether no NaN or infinity was seen in it."""
        return not (self.nan or self.inf or self.rows_not_finite)


class GradientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The L2 norm of a rank's gradients as the optimizer used them, so after clipping.

    `norm` is None if it is not finite; `sharded` says that other ranks hold parts of them;
    `clip_ratio` is what clipping left of the norm, known of measured steps that clip once.
    """

    norm: float | None
    finite: bool
    sharded: bool
    step: int = 0
    clip_ratio: float | None = None


class MeasuredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step; rows are in the order in which the tensors were met."""

    step: int
    time: float
    rows: tuple[TensorRecord, ...]
    recomputed_high: tuple[str, ...]
    gradient: GradientRecord | None
    notes: tuple[str, ...]


class RecipeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe of Transformer Engine as configured; None where it has no such setting."""

    name: str
    forward: str
    backward: str
    margin: Annotated[int, Meta(ge=-64, le=64)] | None
    interval: int | None
    history_length: int | None
    algorithm: str | None
    reduces_amax: bool


class SlotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One scale that Transformer Engine keeps, at the end of a window and at its beginning.

    Attributes:
        gemm: which of its layer's GEMMs it belongs to, from 0.
        largest: the largest value of its format.
        recipe: index of its recipe.
        group: index of the ranks that share its amax, -1 if none is known.
        tensor_parallel: index of the ranks that share the layer, -1 if none is known.
        scale: as text, since it may be infinite.
        amax: of the last steps, the newest last.
        staged: what waits to enter the history; 0 once a step is complete.
        largest_amax: of the whole history.
    """

    layer: str
    tensor: str
    gemm: Count
    format: str
    largest: Annotated[float, Meta(ge=1, le=1e39)]
    recipe: int
    group: int
    tensor_parallel: int
    scale: Number
    scale_before: Number | None
    amax: tuple[Single | None, ...]
    amax_before: Single | None
    staged: Single | None
    staged_before: Single | None
    largest_amax: Single | None
    largest_amax_before: Single | None


class WeightCopyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of the FP8 copy of a weight beside the master that it is cast from.

    Attributes:
        kind: class of the tensor that holds the copy.
        sampled: how many values were compared.
        unchanged: whether the copy is the same at both ends of the window.
        moved: share of the master's values that changed in it.
        off_before: share of the copy's values, at the end, that are more than one unit in the last
            place from the cast of the master as it was at the beginning.
        off: the same of the master as it is at the end.
        likeness: cosine of the angle between copy and master.
    """

    layer: str
    kind: str
    format: str
    sampled: Count
    unchanged: bool
    moved: Positive
    off_before: Positive
    off: Positive
    likeness: float


class ScalesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The scales at a window that ended with `last_step`; loss scales are None if infinite.

    `weights_ms` is how long the training waited for the samples of `weights`.
    """

    last_step: int
    recipes: tuple[RecipeRecord, ...]
    groups: tuple[tuple[int, ...], ...]
    slots: tuple[SlotRecord, ...]
    loss_scales: tuple[float | None, ...]
    loss_scales_before: tuple[float | None, ...]
    weights: tuple[WeightCopyRecord, ...] = ()
    weights_ms: float = 0.0


class NumericsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a rank's numbers; `reason` is why no step was measured."""

    schema: int
    rank: int
    windows: tuple[ScalesRecord, ...]
    measured: MeasuredRecord | None
    reason: str | None


class SeriesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step of a long run, as columns: one entry for each row, as in `TensorRecord`.

    Captures of before 0.3 lack the columns from `source` on.
    """

    step: int
    time: float
    gradient: GradientRecord | None
    layer: tuple[str, ...]
    tensor: tuple[str, ...]
    amax: tuple[float | None, ...]
    rms: tuple[float | None, ...]
    scale: tuple[float | None, ...]
    flushed: tuple[float | None, ...]
    saturated: tuple[float | None, ...]
    sqnr_db: tuple[float | None, ...]
    nan: tuple[float, ...]
    inf: tuple[float, ...]
    source: tuple[str, ...] = ()
    format: tuple[str | None, ...] = ()
    scaling: tuple[str | None, ...] = ()
    rows_not_finite: tuple[Count, ...] = ()
    zero_rows: tuple[float | None, ...] = ()
    top_blocks: tuple[float | None, ...] = ()
    what_if: tuple[dict[str, float], ...] = ()
    recomputed_high: tuple[str, ...] = ()


class RankNumerics(msgspec.Struct, frozen=True, kw_only=True):
    """The numerics of one rank: its record, and the series of a long run."""

    record: NumericsRecord
    series: tuple[SeriesRecord, ...] = ()

    @property
    def rows(self) -> tuple[TensorRecord, ...]:
        """The rows of the measured step."""
        return self.record.measured.rows if self.record.measured is not None else ()


def read_numerics(folder: Path) -> dict[int, RankNumerics]:
    """Return the numerics of a capture by rank; of two processes of a rank the first's.

    Raises:
        InputError: a file cannot be read.
    """
    found: dict[int, RankNumerics] = {}
    paths = folder.glob(NUMERICS) if folder.is_dir() else ()
    for path in sorted(paths, key=lambda path: path.name.removesuffix(NUMERICS_SUFFIX)):
        record = _decode(path, path.read_bytes()[: MAX_BYTES + 1])
        series = path.with_name(path.name.removesuffix(NUMERICS_SUFFIX) + SERIES_SUFFIX)
        lines = tuple(_series(series)) if series.is_file() else ()
        found.setdefault(record.rank, RankNumerics(record=record, series=lines))
    return found


def _decode(path: Path, data: bytes) -> NumericsRecord:
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 20} MB")
        record = msgspec.json.decode(clean_json(data), type=NumericsRecord)
        if record.schema != SCHEMA:
            raise ValueError(f"it has schema {record.schema}, this version reads {SCHEMA}")
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} holds no numerics: {str(error)[:200]}.",
            "It is damaged or was not written by fp8verify run; move it out of the capture folder.",
        ) from None
    return record


def _series(path: Path) -> Iterator[SeriesRecord]:
    """Yield the lines of a series; one that was cut by a killed process is left out.

    Of a file that is too large every n-th line is read.
    """
    with path.open("rb") as file:
        size, first = path.stat().st_size, len(file.readline(_MAX_LINE)) or 1
        every = 1 + max(size // MAX_SERIES, size // first // MAX_LINES)
        file.seek(0)
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b"")):
            if number % every == 0:
                with suppress(ValueError, RecursionError):
                    yield msgspec.json.decode(clean_json(line), type=SeriesRecord)
