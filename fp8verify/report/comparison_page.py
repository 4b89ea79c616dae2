"""Comparisons and tables of runs as pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fp8verify.model.comparison import (
    Comparison,
    GemmPair,
    LayerPair,
    LossPair,
    Outcome,
    RankPair,
    RunRow,
    RunTable,
    Side,
)
from fp8verify.report.page import BAD, FAIR, GOOD, Grid, Note, Page, columns
from fp8verify.report.tables import by_severity, millis, percent, times
from fp8verify.terms import Severity, Verdict
from fp8verify.text import counted, gib, listed

TONES = {Outcome.FASTER: GOOD, Outcome.SLOWER: BAD}
_TOP = 6
_LEGEND = (
    "FP8: share of layers' GEMM time; casts: of GPU time; speed-up: over BF16 (estimate; "
    "none: no gain, -v says why); times: of one profiled step"
)
BUDGET = "Where the time of a step goes"


def comparison_page(comparison: Comparison) -> Page:
    """Lay out a comparison."""
    sides = (comparison.candidate, comparison.baseline)
    gpus = [side.gpu for side in sides if side is not None and side.gpu]
    needed = comparison.steps_needed
    loss = "; ".join(
        filter(None, [loss_line(comparison.loss), loss_trend(comparison.loss)])
    )
    notes = tuple(Note("note", note, rank=6) for note in comparison.notes)
    budget = _budget_grid(comparison)
    legs = _leg_grid(comparison)
    return Page(
        verdict=comparison.outcome.value.replace("_", " "),
        tone=TONES.get(comparison.outcome, FAIR),
        run=("{1} against {0}".format(*comparison.names), *gpus[:1]),
        sentence=comparison.reason,
        fails=bool(comparison.exit_code),
        exit=_exit(comparison),
        proof=budget if budget.rows else None,
        speed=Note("loss", loss) if loss else None,
        findings=tuple(by_severity(comparison.findings)),
        fix=f"Record {needed} steps of each run." if needed else "",
        requested=(legs,) if legs.rows else (),
        body=tuple(grid for grid in _further_grids(comparison) if grid.rows),
        notes=notes,
        urgent=notes,
        further=("runs", "GEMMs", "layers", "memory") if budget.rows else (),
        software=f"fp8verify {comparison.fp8verify_version}",
    )


def _exit(comparison: Comparison) -> str:
    errors = [one.code for one in comparison.findings if one.severity is Severity.ERROR]
    if comparison.outcome is Outcome.NOT_COMPARABLE:
        return f"exit {comparison.exit_code}: the runs cannot be compared"
    why = f": {listed(errors, 2)} {'is an error' if len(errors) == 1 else 'are errors'}"
    return (
        f"exit {comparison.exit_code}{why if comparison.exit_code and errors else ''}"
    )


def _budget_grid(comparison: Comparison) -> Grid:
    rows = _with_sum(
        [(row.name, row.baseline_us, row.candidate_us) for row in comparison.budget]
    )
    cells: dict[str, Callable[[_Times], str]] = {
        "<ms per step": lambda row: row[0],
        "baseline": lambda row: millis(row[1]),
        "candidate": lambda row: millis(row[2]),
        # What rounds to nothing has no minus sign.
        "change": lambda row: f"{round((row[2] - row[1]) / 1000, 2) + 0.0:+.2f}",
    }
    below = (
        f"GPU kernel time: {times(comparison.busy_speedup)} (profiling adds waiting)"
    )
    return Grid(BUDGET, *columns(rows, cells), below=(below,))


def _leg_grid(comparison: Comparison) -> Grid:
    legs = _with_sum(
        [(leg.leg, leg.baseline_us, leg.candidate_us) for leg in comparison.legs]
    )
    speedups = [*(leg.speedup for leg in comparison.legs), comparison.gemm_speedup]
    rows = [
        (name, millis(before), millis(after), times(speedup))
        for (name, before, after), speedup in zip(legs, speedups, strict=False)
    ]
    return Grid(
        "GEMMs by leg", ("<GEMM leg (ms)", "baseline", "candidate", "speed-up"), rows
    )


# What took how many µs in the baseline and in the candidate.
_Times = tuple[str, float, float]


def _with_sum(rows: list[_Times]) -> list[_Times]:
    """Return rows and the one that adds them up; none if there are none."""
    total = ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))
    if rows:
        return [*rows, total]
    return []


def _further_grids(comparison: Comparison) -> Iterator[Grid]:
    """Yield the tables of whole runs, of memory, and of what is paired: ranks, layers, GEMMs."""
    runs: dict[str, Callable[[tuple[str, Side]], str]] = {
        "<run": lambda run: run[0],
        "<verdict": lambda run: run[1].verdict.value,
        "FP8": lambda run: percent(run[1].fp8_share_of_time),
        "steps": lambda run: str(run[1].step.steps),
        "mean ms": lambda run: millis(run[1].step.mean_us),
        "range": lambda run: (
            f"{millis(run[1].step.min_us)}-{millis(run[1].step.max_us)}"
        ),
        "<name": lambda run: run[1].name,
    }
    sides = (("baseline", comparison.baseline), ("candidate", comparison.candidate))
    known = [(role, side) for role, side in sides if side is not None]
    yield Grid("Runs", *columns(known, runs), stretch=True)
    if (memory := comparison.memory) is not None:
        peaks = (
            ("tensors", memory.baseline_allocated, memory.candidate_allocated),
            ("reserved", memory.baseline_reserved, memory.candidate_reserved),
        )
        rows = [
            (
                what,
                gib(before),
                gib(after),
                f"{after / before - 1:+.0%}" if before else "-",
            )
            for what, before, after in peaks
        ]
        yield Grid(
            "Memory", ("<peak GPU memory", "baseline", "candidate", "change"), rows
        )
    ranks: dict[str, Callable[[RankPair], str]] = {
        "<rank": lambda pair: str(pair.rank),
        "baseline ms": lambda pair: millis(pair.baseline_us),
        "candidate ms": lambda pair: millis(pair.candidate_us),
        "speed-up of a step": lambda pair: times(pair.step_speedup),
        "baseline FP8": lambda pair: percent(pair.baseline_fp8_share),
        "candidate FP8": lambda pair: percent(pair.candidate_fp8_share),
    }
    yield Grid("Ranks", *columns(comparison.ranks, ranks), shown=_TOP)
    layers: dict[str, Callable[[LayerPair], str]] = {
        "baseline us": lambda pair: _micros(pair.baseline_us, pair.baseline_precision),
        "candidate us": lambda pair: _micros(
            pair.candidate_us, pair.candidate_precision
        ),
        "speed-up": lambda pair: times(pair.speedup),
        "<layer (GEMMs of a step)": lambda pair: pair.layer,
    }
    yield Grid("Layers", *columns(comparison.layers, layers), stretch=True, shown=_TOP)
    gemms: dict[str, Callable[[GemmPair], str]] = {
        "<layer (N x K)": lambda pair: f"{pair.n} x {pair.k}",
        "<leg": lambda pair: pair.leg,
        "tokens": lambda pair: _tokens(pair.baseline_tokens, pair.candidate_tokens),
        "baseline us": lambda pair: _micros(pair.baseline_us, pair.baseline_precision),
        "candidate us": lambda pair: _micros(
            pair.candidate_us, pair.candidate_precision
        ),
        "speed-up": lambda pair: times(pair.speedup),
    }
    yield Grid(
        "One GEMM of each size and leg", *columns(comparison.gemms, gemms), shown=_TOP
    )


def _micros(time_us: float | None, precision: str) -> str:
    if time_us is None:
        return precision
    return f"{time_us:.1f} {precision}"


def _tokens(before: int, after: int) -> str:
    if before == after:
        return str(before)
    return f"{before} → {after}"


def loss_line(loss: LossPair | None) -> str:
    """Say how the losses of both logs differ."""
    if loss is None:
        return ""
    what = "logged values" if loss.counted else "steps"
    head = f"{loss.steps} equal {what} ({loss.first_step}-{loss.last_step}): "
    if loss.mean_gap is None or loss.largest_gap is None:
        return f"{head}no step at which both are numbers"
    last = " and ".join(
        "no number" if value is None else _number(value)
        for value in (loss.last_baseline, loss.last_candidate)
    )
    bad = ""
    if loss.first_bad_step is not None:
        if loss.first_bad_run == "both":
            whose = "both"
        else:
            whose = f"the {loss.first_bad_run} alone"
        bad = f"; not finite in {whose} from {loss.place_of(loss.first_bad_step)} on"
    return (
        f"{head}last {last}, gap on average {_number(loss.mean_gap, '+')}, largest "
        f"{_number(loss.largest_gap, '+')} "
        f"({loss.place_of(loss.largest_gap_step)}){bad}"
    )


def _number(value: float, sign: str = "") -> str:
    usual = 1e-3 <= abs(value) < 1e6 or not value
    return format(value, f"{sign}.4f" if usual else f"{sign}.4g")


def loss_trend(loss: LossPair | None) -> str:
    """Say how the gap develops."""
    if loss is None or loss.relative_gap is None or loss.trend == "unknown":
        return ""
    doubt = ""
    if loss.gap_is_noise and loss.relative_gap:
        doubt = ", which may be chance"
    if loss.diverged_step:
        doubt = f", diverged from {loss.place_of(loss.diverged_step)}"
    if abs(loss.relative_gap) < 10:
        gap = f"{loss.relative_gap:+.2%}"
    else:
        gap = f"{loss.relative_gap:+.3g} times the baseline's loss"
    return f"the gap is {loss.trend}, {gap} in the last half{doubt}"


def run_table_page(table: RunTable, *, verbose: bool = False) -> Page:
    """Lay out a table of runs, a row each; with `verbose` the reason of each verdict is below.

    "lowest" is the FP8 share of the rank that has the least; it is left out where every run has
    one rank.
    """
    cells: dict[str, Callable[[RunRow], str]] = {
        "<run": lambda run: run.name,
        "<verdict": verdict_of,
        "FP8": lambda run: percent(run.fp8_share_of_time),
        "lowest": lambda run: percent(run.lowest_rank_share if run.ranks > 1 else None),
        "step ms": lambda run: millis(run.step_us),
        "GEMM ms": lambda run: millis(run.gemm_us_per_step),
        "casts": lambda run: percent(run.casts_share_of_gpu_time),
        "speed-up": _gain,
    }
    if all(run.ranks == 1 for run in table.runs):
        del cells["lowest"]
    reasons = [_why(run) for run in table.runs if verbose]
    grid = Grid("Runs", *columns(table.runs, cells), below=(*reasons, _LEGEND))
    active = sum(
        run.verdict is Verdict.ACTIVE and not run.exit_code for run in table.runs
    )
    return Page(
        verdict="",
        tone=GOOD if active == len(table.runs) else FAIR,
        run=(counted(table.runs, "run"),),
        sentence=f"{active} of {counted(table.runs, 'run')} ACTIVE",
        fails=bool(table.exit_code),
        exit=f"exit {table.exit_code}{_failed(table)}",
        body=(grid,),
        software=f"fp8verify {table.fp8verify_version}",
    )


def _gain(run: RunRow) -> str:
    """Return the speed-up over BF16, or that the report says there is none."""
    if run.speedup_estimate is None and run.speed.startswith("no gain"):
        return "none"
    return times(run.speedup_estimate)


def _why(run: RunRow) -> str:
    speed = f" Speed: {run.speed}." if run.speed else ""
    return f"{run.name}: {run.reason}.{speed}"


def _failed(table: RunTable) -> str:
    """Say which run makes the exit code of a table what it is, and how many others fail."""
    if not table.exit_code:
        return ""
    failed = [run for run in table.runs if run.exit_code]
    worst = max(failed, key=lambda run: run.exit_code)
    others = len(failed) - 1
    more = f"; {counted(others, 'other run')} failed too" if others else ""
    return f": {worst.name} is {verdict_of(worst).replace(',', ' with')}{more}"


# With FP8 GEMMs these verdicts pass, unless a finding is an error.
_MAY_PASS = (Verdict.ACTIVE, Verdict.PARTIAL)


def verdict_of(run: RunRow) -> str:
    """Return a run's verdict, with its errors where it fails for them and not for the verdict."""
    if run.errors and run.exit_code and run.verdict in _MAY_PASS:
        return f"{run.verdict.value}, {counted(run.errors, 'error')}"
    return run.verdict.value
