"""A report as pandas DataFrames.

>>> import fp8verify
>>> frames = fp8verify.inspect("traces/fp8_rowwise_gw_hp").to_pandas()
>>> frames.gemms.groupby(["leg", "precision"])["kernels"].sum()
leg    precision
dgrad  fp8          45
fprop  fp8          45
wgrad  bf16         45
Name: kernels, dtype: int64
>>> frames.layers.state.unique().tolist()
['fp8']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from fp8verify.errors import UsageError
from fp8verify.report.model import KernelRow, Report

if TYPE_CHECKING:
    import pandas as pd

# The columns of each frame; `rank` is the rank's number everywhere, None where it is not known.
COLUMNS: dict[str, dict[str, str]] = {
    "kernels": {
        "rank": "rank",
        "name": "name of the kernel",
        "role": "gemm, grouped_gemm, attention, cast_quantize, communication and so on",
        "precision": "class of the operands: fp8, mxfp8, bf16 and so on, or unknown",
        "library": "library that the name belongs to",
        "op": "operator that launched it, None if not known",
        "leg": "fprop, dgrad, wgrad, backward, recompute or unknown; None for what is no GEMM",
        "dims": "input shapes of the operator, None if not recorded",
        "shape": "batch, m, n, k of a GEMM, None if not known",
        "kernels": "how often it was launched",
        "time_us": "time of all launches in µs",
        "tflops": "10^12 operations a second, None if not known",
        "percent_of_peak": "that, in percent of the GPU's dense peak, None if not known",
        "decided_by": "what told the precision: the name, the operator or both",
        "reason": "why it is what it is",
    },
    "gemms": {
        "rank": "rank",
        "name": "name of the kernel",
        "precision": "class of the operands",
        "is_fp8": "whether it counts into the FP8 share",
        "leg": "fprop, dgrad, wgrad, backward, recompute or unknown",
        "op": "operator that launched it, None if not known",
        "shape": "batch, m, n, k, None if not known",
        "kernels": "how often it was launched",
        "time_us": "time of all launches in µs",
        "tflops": "10^12 operations a second, None if not known",
        "percent_of_peak": "that, in percent of the GPU's dense peak, None if not known",
    },
    "steps": {
        "rank": "rank",
        "step": "the profiler's number of the training step",
        "fp8_share_of_time": "FP8 share of the step's GEMM time, None without GEMMs",
        "gemm_us": "GEMM time in µs",
        "cpu_us": "duration on the CPU in µs",
        "gpu_us": "duration on the GPU in µs, None if it launched no kernel",
    },
    "layers": {
        "rank": "rank",
        "layer": "name of the linear module in the model",
        "state": "fp8, fp8_emulated, fp8_module_off, fp4, fp4_emulated, high_precision or unknown",
    },
    "named_layers": {
        "rank": "rank",
        "layer": "name of the linear module in the model",
        "leg": "fprop, dgrad, wgrad, backward, recompute or unknown",
        "precision": "class of the operands",
        "kernels": "how often a GEMM was launched",
        "time_us": "time of all launches in µs",
        "source": "window, or step for an eager step, whose times are not the run's",
    },
    "numerics": {
        "rank": "rank",
        "layer": "name of the FP8 layer in the model",
        "tensor": "input, weight or grad_output",
        "source": "replay, bytes, values or te-debug: how it was seen",
        "format": "e4m3 or e5m2, None if the cast is not known",
        "scaling": "tensorwise, rowwise, delayed, block_1x128, block_128x128 or mxfp8",
        "elements": "how many values it has",
        "sampled": "of how many of them shares, rms and dB are",
        "amax": "largest magnitude, None if it is not finite",
        "rms": "root mean square",
        "zeros": "share of values that are zero",
        "flushed": "share that the cast makes zero",
        "saturated": "share that the cast clips",
        "subnormal": "share that the cast leaves with fewer bits",
        "nan": "share of NaN",
        "inf": "share of infinities",
        "zero_rows": "share of rows that are all zero",
        "sqnr_db": "signal to quantisation noise in dB",
    },
    "ranks": {
        "rank": "rank",
        "source": "file of its trace",
        "verdict": "its own verdict",
        "reason": "and why",
        "fp8_share_of_time": "FP8 share of GEMM time, None without GEMMs",
        "gemm_us": "GEMM time in µs",
        "gpu_us": "time of all kernels in µs",
        "kernels": "how many kernels its trace holds",
    },
}


class Frames(NamedTuple):
    """One DataFrame for each kind of row; `COLUMNS` says what their columns are."""

    kernels: pd.DataFrame
    gemms: pd.DataFrame
    steps: pd.DataFrame
    layers: pd.DataFrame
    named_layers: pd.DataFrame
    numerics: pd.DataFrame
    ranks: pd.DataFrame


def to_frames(report: Report) -> Frames:
    """Lay a report out as DataFrames; kernels are in kinds, one row for each and rank.

    Raises:
        UsageError: pandas is not installed.
    """
    pd = import_pandas()
    rows: dict[str, Iterable[tuple[Any, ...]]] = {
        "kernels": _kernels(report),
        "gemms": _gemms(report),
        "steps": _steps(report),
        "layers": _layers(report),
        "named_layers": _named_layers(report),
        "numerics": _numerics(report),
        "ranks": _ranks(report),
    }
    return Frames(
        **{
            name: pd.DataFrame(list(found), columns=[*COLUMNS[name]])
            for name, found in rows.items()
        }
    )


def import_pandas() -> Any:
    """Return the module pandas.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise UsageError(
            "to_pandas() needs a package that is not installed: pandas.",
            "pip install 'fp8verify[pandas]', or use the report's own rows.",
        ) from None
    return pd


def _rows(report: Report) -> Iterator[tuple[int | None, KernelRow]]:
    return ((rank.rank, row) for rank in report.ranks for row in rank.kernels)


def _kernels(report: Report) -> Iterator[tuple[Any, ...]]:
    fields = [*COLUMNS["kernels"]][1:]
    for rank, row in _rows(report):
        yield (rank, *(_plain(getattr(row, field)) for field in fields))


def _plain(value: object) -> object:
    """Return terms as the words that pandas shows."""
    return value.value if isinstance(value, Enum) else value


def _gemms(report: Report) -> Iterator[tuple[Any, ...]]:
    fields = [*COLUMNS["gemms"]][4:]
    for rank, row in _rows(report):
        if row.role.is_gemm:
            fp8, rest = row.precision.is_fp8, (_plain(getattr(row, field)) for field in fields)
            yield (rank, row.name, row.precision.value, fp8, *rest)


def _steps(report: Report) -> Iterator[tuple[Any, ...]]:
    for rank in report.ranks:
        for step in rank.steps:
            gemm = step.gemm
            share, total = gemm.fp8_share_of_time, sum(gemm.time_us.values())
            yield rank.rank, step.step, share, total, step.duration_us, step.gpu_us


def _layers(report: Report) -> Iterator[tuple[Any, ...]]:
    for rank in report.ranks:
        for state, names in (rank.modules.names if rank.modules else {}).items():
            for name in names:
                yield rank.rank, name, state


def _named_layers(report: Report) -> Iterator[tuple[Any, ...]]:
    for rank in report.ranks:
        found = rank.named_layers
        if found is None:
            continue
        for row in found.rows:
            for leg in row.legs:
                for precision, count in leg.kernels.items():
                    time_us = leg.time_us[precision]
                    yield (
                        rank.rank,
                        row.layer,
                        leg.leg.value,
                        precision,
                        count,
                        time_us,
                        found.source,
                    )


def _numerics(report: Report) -> Iterator[tuple[Any, ...]]:
    fields = [*COLUMNS["numerics"]][1:]
    for rank in report.ranks:
        for row in rank.numerics.rows if rank.numerics is not None else ():
            yield (rank.rank, *(getattr(row, field) for field in fields))


def _ranks(report: Report) -> Iterator[tuple[Any, ...]]:
    for rank in report.ranks:
        yield (
            rank.rank,
            rank.source,
            rank.verdict.value,
            rank.reason,
            rank.gemm.fp8_share_of_time,
            sum(rank.gemm.time_us.values()),
            sum(rank.gpu_time_us.values()),
            rank.health.kernels,
        )
