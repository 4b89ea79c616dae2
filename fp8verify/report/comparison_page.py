"""Comparisons and tables of runs as pages."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.model.comparison import (
    Comparison,
    LossPair,
    MemoryPair,
    Outcome,
    RunRow,
    RunTable,
    Side,
)
from fp8verify.report.page import BAD, FAIR, GOOD, TONES, Grid, Note, Page
from fp8verify.report.tables import by_severity, millis, percent
from fp8verify.report.tables import times as times_of
from fp8verify.terms import Severity, Verdict
from fp8verify.text import counted, gib, listed, shown_size

_TONES = {Outcome.FASTER: GOOD, Outcome.SLOWER: BAD}
_TOP = 6
_LEGEND = (
    "FP8: share of layers' GEMM time; casts: of GPU time; speed-up: over BF16 (estimate; "
    "none: no gain, -v says why); times: of one profiled step"
)
BUDGET = "Where the time of a step goes"


def comparison_page(comparison: Comparison) -> Page:
    """Lay out a comparison."""
    baseline, candidate = comparison.names
    run = [f"{candidate} against {baseline}"]
    gpu = _gpu(comparison)
    if gpu:
        run.append(gpu)
    needed = comparison.steps_needed
    losses = [loss_line(comparison.loss), loss_trend(comparison.loss)]
    loss = "; ".join(filter(None, losses))
    notes = tuple(Note("note", note, rank=6) for note in comparison.notes)
    budget = _budget_grid(comparison)
    legs = _leg_grid(comparison)
    further = [grid for grid in _further_grids(comparison) if grid.rows]
    return Page(
        verdict=outcome_word(comparison),
        tone=_TONES.get(comparison.outcome, FAIR),
        run=tuple(run),
        sentence=comparison.reason,
        fails=bool(comparison.exit_code),
        exit=_exit(comparison),
        proof=budget if budget.rows else None,
        speed=Note("loss", loss) if loss else None,
        findings=tuple(by_severity(comparison.findings)),
        fix=f"Record {needed} steps of each run." if needed else "",
        requested=(legs,) if legs.rows else (),
        body=tuple(further),
        notes=notes,
        urgent=notes,
        further=("runs", "GEMMs", "layers", "memory") if budget.rows else (),
        software=f"fp8verify {comparison.fp8verify_version}",
    )


def outcome_word(comparison: Comparison) -> str:
    """Return whether the candidate is faster, as a page says it."""
    return comparison.outcome.value.replace("_", " ")


def _gpu(comparison: Comparison) -> str | None:
    for side in (comparison.candidate, comparison.baseline):
        if side is not None and side.gpu:
            return side.gpu
    return None


def _exit(comparison: Comparison) -> str:
    code = f"exit {comparison.exit_code}"
    if comparison.outcome is Outcome.NOT_COMPARABLE:
        return f"{code}: the runs cannot be compared"
    errors = []
    for finding in comparison.findings:
        if finding.severity is Severity.ERROR:
            errors.append(finding.code)
    if not comparison.exit_code or not errors:
        return code
    if len(errors) == 1:
        return f"{code}: {errors[0]} is an error"
    return f"{code}: {listed(errors, 2)} are errors"


def _budget_grid(comparison: Comparison) -> Grid:
    times = []
    for work in comparison.budget:
        times.append((work.name, work.baseline_us, work.candidate_us))
    rows = []
    for name, before, after in _with_sum(times):
        # What rounds to nothing has no minus sign.
        change = round((after - before) / 1000, 2) + 0.0
        cells = (
            name,
            millis(before),
            millis(after),
            f"{change:+.2f}",
        )
        rows.append(cells)
    busy = times_of(comparison.busy_speedup)
    below = f"GPU kernel time: {busy} (profiling adds waiting)"
    headings = ("<ms per step", "baseline", "candidate", "change")
    return Grid(BUDGET, headings, rows, below=(below,))


def _leg_grid(comparison: Comparison) -> Grid:
    legs = _with_sum(
        [(leg.leg, leg.baseline_us, leg.candidate_us) for leg in comparison.legs]
    )
    speedups = [leg.speedup for leg in comparison.legs]
    speedups.append(comparison.gemm_speedup)
    rows = []
    for (name, before, after), speedup in zip(legs, speedups, strict=False):
        cells = (
            name,
            millis(before),
            millis(after),
            times_of(speedup),
        )
        rows.append(cells)
    headings = ("<GEMM leg (ms)", "baseline", "candidate", "speed-up")
    return Grid("GEMMs by leg", headings, rows)


# What took how many µs in the baseline and in the candidate.
_Times = tuple[str, float, float]


def _with_sum(rows: list[_Times]) -> list[_Times]:
    """Return rows and the one that adds them up; none if there are none."""
    if not rows:
        return []
    total_before = 0.0
    total_after = 0.0
    for _, before, after in rows:
        total_before += before
        total_after += after
    return [*rows, ("all", total_before, total_after)]


def _further_grids(comparison: Comparison) -> Iterator[Grid]:
    """Yield the tables of whole runs, of memory, and of what is paired: ranks, layers, GEMMs."""
    yield _side_grid(comparison)
    if comparison.memory is not None:
        yield _memory_grid(comparison.memory)
    yield _rank_grid(comparison)
    yield _layer_grid(comparison)
    yield _gemm_grid(comparison)


def _side_grid(comparison: Comparison) -> Grid:
    sides = (("baseline", comparison.baseline), ("candidate", comparison.candidate))
    rows = []
    for role, side in sides:
        if side is not None:
            rows.append((role, *_side_cells(side)))
    headings = (
        *("<run", "<verdict", "FP8", "steps"),
        *("mean ms", "range", "<name"),
    )
    return Grid("Runs", headings, rows, stretch=True)


def _side_cells(side: Side) -> tuple[str, ...]:
    step = side.step
    return (
        side.verdict.value,
        percent(side.fp8_share_of_time),
        str(step.steps),
        millis(step.mean_us),
        f"{millis(step.min_us)}-{millis(step.max_us)}",
        side.name,
    )


def _memory_grid(memory: MemoryPair) -> Grid:
    peaks = (
        ("tensors", memory.baseline_allocated, memory.candidate_allocated),
        ("reserved", memory.baseline_reserved, memory.candidate_reserved),
    )
    rows = []
    for what, before, after in peaks:
        change = "-"
        if before:
            change = f"{after / before - 1:+.0%}"
        rows.append((what, gib(before), gib(after), change))
    headings = ("<peak GPU memory", "baseline", "candidate", "change")
    return Grid("Memory", headings, rows)


def _rank_grid(comparison: Comparison) -> Grid:
    headings = (
        *("<rank", "baseline ms", "candidate ms", "speed-up of a step"),
        *("baseline FP8", "candidate FP8"),
    )
    rows = []
    for pair in comparison.ranks:
        cells = (
            str(pair.rank),
            millis(pair.baseline_us),
            millis(pair.candidate_us),
            times_of(pair.step_speedup),
            percent(pair.baseline_fp8_share),
            percent(pair.candidate_fp8_share),
        )
        rows.append(cells)
    return Grid("Ranks", headings, rows, shown=_TOP)


def _layer_grid(comparison: Comparison) -> Grid:
    headings = (
        *("baseline us", "candidate us", "speed-up"),
        "<layer (GEMMs of a step)",
    )
    rows = []
    for pair in comparison.layers:
        before = _micros(pair.baseline_us, pair.baseline_precision)
        after = _micros(pair.candidate_us, pair.candidate_precision)
        rows.append((before, after, times_of(pair.speedup), pair.layer))
    return Grid("Layers", headings, rows, stretch=True, shown=_TOP)


def _gemm_grid(comparison: Comparison) -> Grid:
    headings = (
        *("<layer (NxK)", "<leg", "tokens"),
        *("baseline us", "candidate us", "speed-up"),
    )
    rows = []
    for pair in comparison.gemms:
        cells = (
            shown_size((pair.n, pair.k)),
            pair.leg,
            _tokens(pair.baseline_tokens, pair.candidate_tokens),
            _micros(pair.baseline_us, pair.baseline_precision),
            _micros(pair.candidate_us, pair.candidate_precision),
            times_of(pair.speedup),
        )
        rows.append(cells)
    return Grid("One GEMM of each size and leg", headings, rows, shown=_TOP)


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
    lasts = []
    for value in (loss.last_baseline, loss.last_candidate):
        lasts.append("no number" if value is None else _number(value))
    largest = _number(loss.largest_gap, "+")
    place = loss.place_of(loss.largest_gap_step)
    return (
        f"{head}last {' and '.join(lasts)}, gap on average {_number(loss.mean_gap, '+')}, "
        f"largest {largest} ({place}){_not_finite(loss)}"
    )


def _not_finite(loss: LossPair) -> str:
    """Say from where on a loss is no number."""
    if loss.first_bad_step is None:
        return ""
    whose = f"the {loss.first_bad_run} alone"
    if loss.first_bad_run == "both":
        whose = "both"
    return f"; not finite in {whose} from {loss.place_of(loss.first_bad_step)} on"


def _number(value: float, sign: str = "") -> str:
    is_usual = 1e-3 <= abs(value) < 1e6 or not value
    if is_usual:
        return format(value, f"{sign}.4f")
    return format(value, f"{sign}.4g")


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
    has_ranks = any(run.ranks > 1 for run in table.runs)
    headings = ["<run", "<verdict", "FP8"]
    if has_ranks:
        headings.append("lowest")
    headings += ["step ms", "GEMM ms", "casts", "speed-up"]
    rows = []
    below = []
    for run in table.runs:
        cells = _run_cells(run, has_ranks)
        rows.append(tuple(cells))
        if verbose:
            below.append(_why(run))
    below.append(_LEGEND)
    grid = Grid("Runs", tuple(headings), rows, below=tuple(below))
    return Page(
        verdict="",
        tone=_tone_of_table(table),
        run=(counted(table.runs, "run"),),
        sentence=active_of(table),
        fails=bool(table.exit_code),
        exit=f"exit {table.exit_code}{_failed(table)}",
        body=(grid,),
        software=f"fp8verify {table.fp8verify_version}",
    )


def _tone_of_table(table: RunTable) -> str:
    """Return the worst tone of its runs."""
    tones = set(map(tone_of_run, table.runs))
    for tone in (BAD, FAIR):
        if tone in tones:
            return tone
    return GOOD


def tone_of_run(run: RunRow) -> str:
    """Return the tone of a verdict; a run that fails for an error is bad."""
    if run.errors and run.exit_code:
        return BAD
    return TONES.get(run.verdict, BAD)


def active_of(table: RunTable) -> str:
    """Say how many runs of a table are ACTIVE and pass."""
    active = sum(map(_is_sound, table.runs))
    return f"{active} of {counted(table.runs, 'run')} ACTIVE"


def _is_sound(run: RunRow) -> bool:
    return run.verdict is Verdict.ACTIVE and not run.exit_code


def _run_cells(run: RunRow, has_ranks: bool) -> Iterator[str]:
    yield run.name
    yield verdict_of(run)
    yield percent(run.fp8_share_of_time)
    if has_ranks:
        yield percent(run.lowest_rank_share if run.ranks > 1 else None)
    yield millis(run.step_us)
    yield millis(run.gemm_us_per_step)
    yield percent(run.casts_share_of_gpu_time)
    yield _gain(run)


def _gain(run: RunRow) -> str:
    """Return the speed-up over BF16, or that the report says there is none."""
    if run.speedup_estimate is None and run.speed.startswith("no gain"):
        return "none"
    return times_of(run.speedup_estimate)


def _why(run: RunRow) -> str:
    reason = f"{run.name}: {run.reason}."
    if run.speed:
        return f"{reason} Speed: {run.speed}."
    return reason


def _failed(table: RunTable) -> str:
    """Say which run makes the exit code of a table what it is, and how many others fail."""
    if not table.exit_code:
        return ""
    failed = [run for run in table.runs if run.exit_code]
    worst = max(failed, key=lambda run: run.exit_code)
    others = len(failed) - 1
    more = ""
    if others:
        more = f"; {counted(others, 'other run')} failed too"
    return f": {worst.name} is {verdict_of(worst).replace(',', ' with')}{more}"


# With FP8 GEMMs these verdicts pass, unless a finding is an error.
_MAY_PASS = (Verdict.ACTIVE, Verdict.PARTIAL)


def verdict_of(run: RunRow) -> str:
    """Return a run's verdict, with its errors where it fails for them and not for the verdict."""
    if run.errors and run.exit_code and run.verdict in _MAY_PASS:
        return f"{run.verdict.value}, {counted(run.errors, 'error')}"
    return run.verdict.value
