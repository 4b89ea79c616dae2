"""A comparison as a page: its outcome, where the time goes, GEMMs and losses side by side."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.report.model.comparison import Comparison, LossPair, Outcome, Side
from fp8verify.report.page import BAD, FAIR, GOOD, Grid, Note, Page
from fp8verify.report.tables import by_severity, millis, percent
from fp8verify.text import gib

TONES = {Outcome.FASTER: GOOD, Outcome.SLOWER: BAD}
_TOP = 6


def comparison_page(found: Comparison, *, verbose: bool = False) -> Page:
    """Lay out a comparison; `verbose` is for pages of reports alone."""
    del verbose
    loss = found.loss
    return Page(
        head=f"fp8verify {found.fp8verify_version} · {title(found)}",
        verdict=word(found),
        tone=TONES.get(found.outcome, FAIR),
        reason=found.reason,
        fails=bool(found.exit_code),
        name=title(found),
        pays=Note("loss", loss_line(loss)) if loss else None,
        pays_briefly=loss_line(loss) if loss else "",
        findings=tuple(by_severity(found.findings)),
        body=(*grids(found), *([loss_trend(loss)] if loss else [])),
        notes=tuple(Note("note", note) for note in found.notes),
    )


def word(found: Comparison) -> str:
    """Return the outcome as a word or two."""
    return found.outcome.value.replace("_", " ")


def title(found: Comparison) -> str:
    """Return "candidate against baseline" by the runs' names."""
    baseline, candidate = found.names
    return f"{candidate} against {baseline}"


def times(speedup: float | None) -> str:
    """Return a speed-up as "1.38x"."""
    return "-" if speedup is None else f"{speedup:.2f}x"


def grids(found: Comparison) -> Iterator[Grid]:
    """Yield each table that has rows, in the order in which they are shown."""
    if found.baseline is not None and found.candidate is not None:
        yield _sides(found.baseline, found.candidate)
    parts = (_budget, _memory, _legs, _ranks, _layers, _gemms)
    for grid in (part(found) for part in parts):
        if grid.rows:
            yield grid


def _sides(baseline: Side, candidate: Side) -> Grid:
    names = ("run", "verdict", "FP8", "steps", "mean ms", "range", "name")
    rows = (_side("baseline", baseline), _side("candidate", candidate))
    return Grid("Runs", names, ("run", "verdict", "name"), rows, stretch=True)


def _side(name: str, side: Side) -> tuple[str, ...]:
    step = side.step
    return (
        name,
        side.verdict.value,
        percent(side.fp8_share_of_time),
        str(step.steps),
        millis(step.mean_us),
        f"{millis(step.min_us)}-{millis(step.max_us)}",
        side.name,
    )


def _budget(found: Comparison) -> Grid:
    names = ("ms a mean step", "baseline", "candidate", "change")
    parts = [(row.name, row.baseline_us, row.candidate_us) for row in found.budget]
    total = ("all", sum(part[1] for part in parts), sum(part[2] for part in parts))
    rows = tuple(
        (name, millis(before), millis(after), f"{(after - before) / 1000:+.2f}")
        for name, before, after in ([*parts, total] if parts else [])
    )
    return Grid(
        "Where the time of a step goes", names, names[:1], rows, below=(kernels_alone(found),)
    )


def _memory(found: Comparison) -> Grid:
    names = ("peak GPU memory", "baseline", "candidate", "change")
    memory = found.memory
    rows = memory and (
        ("tensors", memory.baseline_allocated, memory.candidate_allocated),
        ("held by torch", memory.baseline_reserved, memory.candidate_reserved),
    )
    shown = tuple(
        (name, gib(before), gib(after), f"{after / before - 1:+.0%}" if before else "-")
        for name, before, after in rows or ()
    )
    return Grid("Memory", names, names[:1], shown)


def _legs(found: Comparison) -> Grid:
    names = ("GEMM pass (ms)", "baseline", "candidate", "speed-up")
    rows = [
        (leg.leg, millis(leg.baseline_us), millis(leg.candidate_us), times(leg.speedup))
        for leg in found.legs
    ]
    if rows:
        before = sum(leg.baseline_us for leg in found.legs)
        after = sum(leg.candidate_us for leg in found.legs)
        rows.append(("all", millis(before), millis(after), times(found.gemm_speedup)))
    return Grid("GEMMs by pass", names, names[:1], tuple(rows))


def _ranks(found: Comparison) -> Grid:
    names = ("rank", "baseline ms", "candidate ms", "speed-up of a step", "FP8 before", "after")
    rows = tuple(
        (
            str(pair.rank),
            millis(pair.baseline_us),
            millis(pair.candidate_us),
            times(pair.step_speedup),
            percent(pair.baseline_fp8_share),
            percent(pair.candidate_fp8_share),
        )
        for pair in found.ranks
    )
    return Grid("Ranks", names, names[:1], rows, shown=_TOP)


def _layers(found: Comparison) -> Grid:
    names = ("baseline us", "candidate us", "speed-up", "layer (GEMMs of a step)")
    rows = tuple(
        (
            _micros(pair.baseline_us, pair.baseline_precision),
            _micros(pair.candidate_us, pair.candidate_precision),
            times(pair.speedup),
            pair.layer,
        )
        for pair in found.layers
    )
    return Grid("Layers", names, names[-1:], rows, stretch=True, shown=_TOP)


def _gemms(found: Comparison) -> Grid:
    names = ("layer (N x K)", "pass", "tokens", "baseline us", "candidate us", "speed-up")
    rows = tuple(
        (
            f"{pair.n} x {pair.k}",
            pair.leg,
            _tokens(pair.baseline_tokens, pair.candidate_tokens),
            _micros(pair.baseline_us, pair.baseline_precision),
            _micros(pair.candidate_us, pair.candidate_precision),
            times(pair.speedup),
        )
        for pair in found.gemms
    )
    return Grid("One GEMM of each size and pass", names, names[:2], rows, shown=_TOP)


def _micros(time_us: float | None, precision: str) -> str:
    return precision if time_us is None else f"{time_us:.1f} {precision}"


def _tokens(before: int, after: int) -> str:
    return str(before) if before == after else f"{before} → {after}"


def kernels_alone(found: Comparison) -> str:
    """Say how fast the kernels are without the time in which the GPU waits."""
    return f"kernels alone: {times(found.busy_speedup)} as fast (profiling adds waiting)"


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
    return (
        f"{head}last {last}, gap on average {_number(loss.mean_gap, '+')}, at most "
        f"{_number(loss.largest_gap, '+')} "
        f"({_at(loss, loss.largest_gap_step)}){_bad(loss)}"
    )


def _number(value: float, sign: str = "") -> str:
    usual = 1e-3 <= abs(value) < 1e6 or not value
    return format(value, f"{sign}.4f" if usual else f"{sign}.4g")


def _bad(loss: LossPair) -> str:
    if loss.first_bad_step is None:
        return ""
    one = loss.first_bad_run or "one log"
    whose = "both" if one == "both" else f"the {one} alone" if loss.first_bad_run else one
    return f"; not finite in {whose} from {_at(loss, loss.first_bad_step)} on"


def _at(loss: LossPair, step: int | None) -> str:
    return f"{'value' if loss.counted else 'step'} {step}"


def loss_trend(loss: LossPair) -> str:
    """Say how the gap develops, and the gradient norms where both logs give them."""
    said = []
    if loss.relative_gap is not None and loss.trend != "unknown":
        noise = ", which may be chance" if loss.gap_is_noise and loss.relative_gap else ""
        noise = f", diverged from {_at(loss, loss.diverged_step)}" if loss.diverged_step else noise
        gap = format(loss.relative_gap, "+.2%" if abs(loss.relative_gap) < 10 else "+.3g")
        times = "" if gap.endswith("%") else " times the baseline's loss"
        said.append(f"the gap is {loss.trend}, {gap}{times} in the last half{noise}")
    if loss.gradient_norms is not None:
        said.append("gradient norms {:.3g} and {:.3g} (medians)".format(*loss.gradient_norms))
    return "; ".join(said)


def loss_lines(loss: LossPair) -> str:
    """Say all of the losses in one sentence."""
    return "; ".join(filter(None, (loss_line(loss), loss_trend(loss))))
