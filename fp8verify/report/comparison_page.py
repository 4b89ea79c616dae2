"""Comparisons and tables of runs as pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fp8verify.report.model.comparison import Comparison, LossPair, Outcome, RunTable
from fp8verify.report.page import BAD, FAIR, GOOD, Grid, Note, Page, lay_out
from fp8verify.report.tables import by_severity, times
from fp8verify.terms import Verdict

TONES = {Outcome.FASTER: GOOD, Outcome.SLOWER: BAD}
_TOP = 6
_LEGEND = (
    "FP8: share of GEMM time of linear layers; casts: share of GPU time; gain: GPU time "
    "against BF16, by estimate; times are of one step"
)


def comparison_page(found: Comparison) -> Page:
    """Lay out a comparison."""
    loss, name = found.loss, "{1} against {0}".format(*found.names)
    grids = (grid for part in (_run_grids, _pair_grids) for grid in part(found))
    return Page(
        head=f"fp8verify {found.fp8verify_version} · {name}",
        verdict=found.outcome.value.replace("_", " "),
        tone=TONES.get(found.outcome, FAIR),
        reason=found.reason,
        fails=bool(found.exit_code),
        name=name,
        pays=Note("loss", loss_line(loss)) if loss else None,
        pays_briefly=loss_line(loss) if loss else "",
        findings=tuple(by_severity(found.findings)),
        body=(*(grid for grid in grids if grid.rows), *([loss_trend(loss)] if loss else [])),
        notes=tuple(Note("note", note) for note in found.notes),
        to_do=(f"Record {found.steps_needed} steps of each run.",) if found.steps_needed else (),
    )


def _run_grids(found: Comparison) -> Iterator[Grid]:
    """Yield the tables of whole runs: verdicts and steps, kinds of work, memory."""
    sides = (("baseline", found.baseline), ("candidate", found.candidate))
    yield lay_out(
        "Runs",
        "<run | <verdict | FP8 | steps | mean ms | range | <name",
        "{0} | {1.verdict.value} | {1.fp8_share_of_time:%} | {1.step.steps} | {1.step.mean_us:ms}"
        " | {1.step.min_us:ms}-{1.step.max_us:ms} | {1.name}",
        sides if found.baseline and found.candidate else (),
        stretch=True,
    )
    parts = [(row.name, row.baseline_us, row.candidate_us) for row in found.budget]
    yield lay_out(
        "Where the time of a step goes",
        "<ms per step | baseline | candidate | change",
        "{0} | {1:ms} | {2:ms} | {3:+.2f}",
        [(*row, (row[2] - row[1]) / 1000) for row in (*parts, *_sums(parts))],
        below=(f"kernels alone: {times(found.busy_speedup)} as fast (profiling adds waiting)",),
    )
    memory = found.memory
    peaks = memory and (
        ("tensors", memory.baseline_allocated, memory.candidate_allocated),
        ("held by torch", memory.baseline_reserved, memory.candidate_reserved),
    )
    yield lay_out(
        "Memory",
        "<peak GPU memory | baseline | candidate | change",
        "{0} | {1:size} | {2:size} | {3:+.0%}",
        [(*row, row[2] / row[1] - 1 if row[1] else None) for row in peaks or ()],
    )


def _sums(rows: Sequence[tuple[Any, ...]]) -> list[tuple[str, float, float]]:
    """Return the row that adds up the times of both runs; none if there are no rows."""
    return [("all", sum(row[1] for row in rows), sum(row[2] for row in rows))] if rows else []


def _pair_grids(found: Comparison) -> Iterator[Grid]:
    """Yield the tables of what is paired: passes, ranks, layers, GEMMs."""
    legs = [(leg.leg, leg.baseline_us, leg.candidate_us, leg.speedup) for leg in found.legs]
    yield lay_out(
        "GEMMs by pass",
        "<GEMM pass (ms) | baseline | candidate | speed-up",
        "{0} | {1:ms} | {2:ms} | {3:x}",
        [*legs, *((*row, found.gemm_speedup) for row in _sums(legs))],
    )
    yield lay_out(
        "Ranks",
        "<rank | baseline ms | candidate ms | speed-up of a step | baseline FP8 | candidate FP8",
        "{0.rank} | {0.baseline_us:ms} | {0.candidate_us:ms} | {0.step_speedup:x}"
        " | {0.baseline_fp8_share:%} | {0.candidate_fp8_share:%}",
        [(pair,) for pair in found.ranks],
        shown=_TOP,
    )
    yield lay_out(
        "Layers",
        "baseline us | candidate us | speed-up | <layer (GEMMs of a step)",
        "{1} | {2} | {0.speedup:x} | {0.layer}",
        [
            (
                pair,
                _micros(pair.baseline_us, pair.baseline_precision),
                _micros(pair.candidate_us, pair.candidate_precision),
            )
            for pair in found.layers
        ],
        stretch=True,
        shown=_TOP,
    )
    yield lay_out(
        "One GEMM of each size and pass",
        "<layer (N x K) | <pass | tokens | baseline us | candidate us | speed-up",
        "{0.n} x {0.k} | {0.leg} | {1} | {0.baseline_us:.1f} {0.baseline_precision}"
        " | {0.candidate_us:.1f} {0.candidate_precision} | {0.speedup:x}",
        [(pair, _tokens(pair.baseline_tokens, pair.candidate_tokens)) for pair in found.gemms],
        shown=_TOP,
    )


def _micros(time_us: float | None, precision: str) -> str:
    return precision if time_us is None else f"{time_us:.1f} {precision}"


def _tokens(before: int, after: int) -> str:
    return str(before) if before == after else f"{before} → {after}"


def loss_line(loss: LossPair) -> str:
    """Say how the losses of both logs differ."""
    what = "logged values" if loss.counted else "steps"
    head = f"loss at {loss.steps} equal {what} ({loss.first_step}-{loss.last_step}): "
    if loss.mean_gap is None or loss.largest_gap is None:
        return f"{head}no step at which both are numbers"
    last = " and ".join(
        "no number" if value is None else _number(value)
        for value in (loss.last_baseline, loss.last_candidate)
    )
    bad = ""
    if loss.first_bad_step is not None:
        runs = {"both": "both", None: "one log"}
        whose = runs.get(loss.first_bad_run, f"the {loss.first_bad_run} alone")
        bad = f"; not finite in {whose} from {loss.place_of(loss.first_bad_step)} on"
    return (
        f"{head}last {last}, gap on average {_number(loss.mean_gap, '+')}, largest "
        f"{_number(loss.largest_gap, '+')} "
        f"({loss.place_of(loss.largest_gap_step)}){bad}"
    )


def _number(value: float, sign: str = "") -> str:
    usual = 1e-3 <= abs(value) < 1e6 or not value
    return format(value, f"{sign}.4f" if usual else f"{sign}.4g")


def loss_trend(loss: LossPair) -> str:
    """Say how the gap develops."""
    if loss.relative_gap is None or loss.trend == "unknown":
        return ""
    doubt = ", which may be chance" if loss.gap_is_noise and loss.relative_gap else ""
    if loss.diverged_step:
        doubt = f", diverged from {loss.place_of(loss.diverged_step)}"
    if abs(loss.relative_gap) < 10:
        gap = f"{loss.relative_gap:+.2%}"
    else:
        gap = f"{loss.relative_gap:+.3g} times the baseline's loss"
    return f"the loss gap is {loss.trend}, {gap} in the last half{doubt}"


def run_table_page(found: RunTable, *, verbose: bool = False) -> Page:
    """Lay out a table of runs, a row each; with `verbose` the reason of each verdict is below.

    "lowest" is the FP8 share of the rank that has the least; it is left out where every run has
    one rank.
    """
    lowest = [run.lowest_rank_share if run.ranks > 1 else None for run in found.runs]
    several = any(run.ranks > 1 for run in found.runs)
    grid = lay_out(
        "Runs",
        f"<verdict | FP8{' | lowest' if several else ''} | step ms | GEMM ms | casts | gain | <run",
        f"{{0.verdict.value}} | {{0.fp8_share_of_time:%}}{' | {1:%}' if several else ''}"
        " | {0.step_us:ms} | {0.gemm_us_per_step:ms} | {0.casts_share_of_gpu_time:%}"
        " | {0.speedup_estimate:x} | {0.name}",
        zip(found.runs, lowest, strict=True),
        stretch=True,
        below=(*(f"{run.name}: {run.reason}." for run in found.runs if verbose), _LEGEND),
    )
    active = sum(run.verdict is Verdict.ACTIVE for run in found.runs)
    return Page(
        head="",
        verdict="",
        tone=GOOD if active == len(found.runs) else FAIR,
        reason=f"{active} of {len(found.runs)} runs ACTIVE",
        fails=bool(found.exit_code),
        name=f"{len(found.runs)} runs",
        body=(grid,),
    )
