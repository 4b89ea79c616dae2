"""A report as a page: the first screen in its order, then every table there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from fp8verify.capture.schema import TensorRecord
from fp8verify.model.kernels import KernelRow, LegRow
from fp8verify.model.numerics import NumericsReport
from fp8verify.model.report import (
    BreakdownReport,
    RankBreakdown,
    RankReport,
    Report,
)
from fp8verify.model.steps import StepReport
from fp8verify.model.verdict import Finding, Proof, ProofRow
from fp8verify.report import tables
from fp8verify.report.page import BAD, TONES, Grid, Note, Page, columns, sentence
from fp8verify.report.sentences import payoff, report_notes, sources, steps_shown
from fp8verify.report.tables import figure, millis, percent
from fp8verify.terms import (
    Leg,
    Severity,
    Verdict,
    low_precision_count,
    low_precision_name,
)
from fp8verify.text import MEASURES, counted
from fp8verify.verdict.findings_table import viewed

# What to do where no error and no warning says it.
_FIX = {
    Verdict.PARTIAL: "Change the recipe, filter or argument that keeps these GEMMs in high "
    "precision, or accept the share with --min-share.",
    Verdict.INACTIVE: "If FP8 was meant, convert the model before the first step (torchao's "
    "convert_to_float8_training, or Transformer Engine's layers inside its autocast); "
    "`fp8verify doctor` checks the configuration beforehand.",
    Verdict.INCONCLUSIVE: "Record a window of whole training steps with `fp8verify run`: it "
    "includes operators, shapes and the modules.",
}
_ACCEPT = (
    "If this is intended, accept it with --min-share expected; else change what keeps these GEMMs "
    "in high precision."
)
_LINES = {Verdict.ACTIVE: 16}
_PROOF_ROWS = 8
_RANKS = 8
_TENSORS = 5


def report_page(report: Report, *, verbose: bool = False) -> Page:
    """Lay out a report.

    Args:
        report: the finished report.
        verbose: whether tables show every tensor and rank.
    """
    findings = tuple(_findings(report))
    versions = {"fp8verify": report.fp8verify_version, **report.environment.versions}
    unsure = report.verdict is Verdict.INCONCLUSIVE
    return Page(
        verdict=_verdict(report),
        tone=_tone(report),
        run=tuple(dict.fromkeys(_run(report))),
        sentence=sentence(report.reason),
        fails=report.fails,
        exit=exit_line(report),
        proof=_proof(report),
        sources=sources(report),
        findings=findings,
        cause=report.cause,
        fix=_fix(report),
        speed=_speed(report, findings),
        requested=tuple(_requested(report, verbose)),
        body=tuple(_body(report)),
        notes=tuple(report_notes(report)),
        urgent=tuple(Note("note", note, rank=6) for note in report.notes if unsure),
        further=tuple(_further(report)),
        lines=_LINES.get(report.verdict, 26),
        software=", ".join(f"{name} {version}" for name, version in versions.items()),
    )


def _tone(report: Report) -> str:
    is_failed = report.fails and _errors(report)
    if is_failed:
        return BAD
    return TONES.get(report.verdict, BAD)


def _findings(report: Report) -> Iterator[Finding]:
    """Yield the findings as a page shows them: the sentence is not said a second time.

    The sentence is about the first finding of its cause; others of that code say something else.
    """
    is_said = False
    for finding in tables.by_severity(tables.shown_findings(report)):
        if finding.code == report.cause and finding.hint and not is_said:
            is_said = True
            yield replace(finding, message="")
        elif finding.hint and report.reason.endswith(f"; {finding.message}"):
            yield replace(finding, message="")
        else:
            yield finding


def _speed(report: Report, findings: Iterable[Finding]) -> Note | None:
    """Return the line of the speed, with the finding that says the same."""
    speed = payoff(report)
    paying = next((finding for finding in findings if viewed(finding, "speed")), None)
    return speed and Note("speed", speed.text, speed.tone, paying)


def _errors(report: Report) -> int:
    return sum(one.severity is Severity.ERROR for one in report.findings)


def _verdict(report: Report) -> str:
    """Return the verdict; an ACTIVE run that fails for its errors says so."""
    errors = _errors(report)
    if report.verdict is Verdict.ACTIVE and errors:
        return f"ACTIVE, with {counted(errors, 'error')}"
    return report.verdict.value


def _run(report: Report) -> Iterator[str]:
    yield report.name
    if report.environment.gpu:
        yield report.environment.gpu
    if shown := steps_shown(report):
        yield shown
    left_out = [one.message for one in report.findings if viewed(one, "ranks")]
    if left_out or len(report.ranks) > 1:
        yield (left_out or [f"{len(report.ranks)} ranks"])[0]


def exit_line(report: Report) -> str:
    """Return the exit code of the command, and why."""
    if report.training_exit_code:
        return f"exit {report.training_exit_code}: the run's own exit code"
    why = f": {report.exit_reason}" if report.exit_reason else ""
    return f"exit {report.exit_code}{why}"


def _fix(report: Report) -> str:
    """Say what to do about the verdict where no error or warning says it."""
    grave = [one for one in report.findings if one.severity is not Severity.INFO]
    if report.cause is not None or report.verdict not in _FIX:
        return ""
    if report.verdict is Verdict.PARTIAL:
        known = [rank.expected for rank in report.ranks if rank.expected is not None]
        if known and all(one.is_met for one in known):
            return _ACCEPT
        return _FIX[report.verdict]
    if (
        report.verdict is Verdict.INACTIVE
    ):  # its layers may be outside of their autocast
        layers = (one.hint for one in report.findings if viewed(one, "fix"))
        return next(layers, _FIX[report.verdict])
    said = any(one.hint and not viewed(one, "aside") for one in grave)
    if said:
        return ""
    return _FIX[report.verdict]


def _further(report: Report) -> Iterator[str]:
    if len(report.legs) > 1:
        yield "legs"
    if any(rank.layers is not None for rank in report.ranks):
        yield "layers"
    if any(report.gemm.kernels.values()):
        yield from ("kernels", "GPU time")
    if report.notes:
        yield counted(report.notes, "note")


# ---- the table that proves the sentence


def _proof(report: Report) -> Grid | None:
    """Return the table along the coordinate that decides; else legs, if any has no FP8."""
    proof = report.proof
    if report.verdict not in (Verdict.PARTIAL, Verdict.INCONCLUSIVE):
        return None
    if proof is not None and any(row.short is not False for row in proof.rows):
        return _proof_grid(proof, proof.rows, report)
    legs = [_leg_row(leg) for leg in report.legs if leg.leg not in _NO_LEGS]
    if report.verdict is Verdict.PARTIAL and {row.short for row in legs} == {
        True,
        False,
    }:
        return _proof_grid(Proof(coordinate="leg", rows=tuple(legs)), legs, report)
    return None


# Not of layers, which the sentence above the table is about.
_NO_LEGS = frozenset({Leg.ATTENTION, Leg.OPTIMIZER})


def _leg_row(leg: LegRow) -> ProofRow:
    low = low_precision_count(leg.kernels)
    unknown = leg.kernels.get("unknown", 0)
    return ProofRow(
        value=leg.leg.value,
        low=low,
        high=sum(leg.kernels.values()) - low - unknown,
        unknown=unknown,
        time_us=sum(leg.time_us.values()),
        flops=None,
        short=not low,
    )


def _proof_grid(proof: Proof, rows: Sequence[ProofRow], report: Report) -> Grid:
    name = proof.coordinate
    # Of many, those that fell short come first; few stay in their order.
    if len(rows) > _PROOF_ROWS:
        rows = sorted(rows, key=lambda row: row.short is False)
    unknown = any(row.unknown for row in rows)
    high = [
        kind for kind, n in report.gemm.kernels.items() if n and kind not in _NOT_HIGH
    ]
    of_all = "none in FP8"
    if len(high) == 1:
        of_all = f"all in {high[0].upper()}"
    formats = low_precision_name(report.gemm.kernels)
    rest = rows[_PROOF_ROWS:]
    if rest:
        rows = [*rows[:_PROOF_ROWS], _summed(rest)]
    notes = [
        row.note or (of_all if row.high and not row.low + row.unknown else "")
        for row in rows
    ]
    noted = any(notes)
    return Grid(
        f"GEMMs by {name}",
        (
            f"<{name}",
            f"{formats} GEMMs",
            *["unknown"] * unknown,
            "GEMM ms",
            *["<"] * noted,
        ),
        [
            (
                row.value.removeprefix(f"{name} "),
                f"{row.low}/{row.low + row.high + row.unknown}",
                *[str(row.unknown)] * unknown,
                millis(row.time_us),
                *[note] * noted,
            )
            for row, note in zip(rows, notes, strict=True)
        ],
        below=(f"… and {proof.left_out} more",) if proof.left_out else (),
    )


def _summed(rows: Sequence[ProofRow]) -> ProofRow:
    """Return the rows for which a table has no room as one."""
    return ProofRow(
        value=f"{len(rows)} others",
        low=sum(row.low for row in rows),
        high=sum(row.high for row in rows),
        unknown=sum(row.unknown for row in rows),
        time_us=sum(row.time_us for row in rows),
        flops=None,
        short=any(row.short is not False for row in rows),
    )


_NOT_HIGH = frozenset({"fp8", "mxfp8", "mxfp6", "nvfp4", "mxfp4", "fp4", "unknown"})


# ---- tables that were asked for, and all others


def _requested(report: Report, verbose: bool) -> Iterator[Grid | str]:
    """Yield what `--layers`, `--numerics` and `--breakdown` asked for."""
    if (
        _is_named(report)
        and (layers := tables.layer_table(report, verbose=verbose)) is not None
    ):
        yield layers
    numbers = [
        (rank, rank.numerics) for rank in report.ranks if rank.numerics is not None
    ]
    measured = [(rank, found) for rank, found in numbers if found.rows or found.reason]
    for rank, found in measured if verbose else measured[:1]:
        yield _tensor_grid(found, f"numerics{_of_rank(report, rank)}", verbose)
    if report.breakdown is not None:
        yield _breakdown_grid(report.breakdown)


def _is_named(report: Report) -> bool:
    layers = (rank.named_layers for rank in report.ranks)
    return any(named is not None and named.rows for named in layers)


def _body(report: Report) -> Iterator[Grid | str]:
    timed = report.measure == "time"
    if any(report.gemm.kernels.values()):
        yield _gemm_grid(report, timed)
        if len(report.legs) > 1:
            yield _leg_grid(report)
        yield _gpu_time(report)
        yield _kernel_grid(report, timed)
    if len(report.ranks) > 1:
        yield _rank_grid(report)
    if (
        not _is_named(report)
        and (layers := tables.layer_table(report, verbose=True)) is not None
    ):
        yield layers
    if timed and any(len(rank.steps) > 1 for rank in report.ranks):
        yield _step_grid(report)


def _of_rank(report: Report, rank: RankReport) -> str:
    if len(report.ranks) > 1:
        return f" of {rank.label}"
    return ""


def _gemm_grid(report: Report, timed: bool) -> Grid:
    """GEMMs of layers, whose shares the verdict is about, then those of other work."""
    name, unit = MEASURES[report.measure]
    others = report.other_gemms
    what, share = (
        ("<GEMM of layers", "of layers") if others else (f"<GEMM {name}", "share")
    )
    layers = [
        (
            row.precision,
            str(row.kernels),
            millis(row.time_us),
            percent(row.share),
            _rate(row.tflops),
        )
        for row in report.layer_gemm.rows
    ]
    apart = [
        (
            f"({row.precision}, {purpose})",
            str(row.kernels),
            millis(row.time_us),
            "-",
            "-",
        )
        for purpose, row in others
    ]
    headings = (what, "kernels", unit, share, "TFLOP/s")
    shown = len(headings) if timed else -1
    rows = [row[:shown] for row in (*layers, *apart)]
    return Grid(f"GEMM {name}", headings[:shown], rows)


def _rate(tflops: float | None) -> str:
    return figure(tflops, ".0f" if tflops is None or tflops >= 9.5 else ".2g")


def _leg_grid(report: Report) -> Grid:
    kinds = [
        name
        for name in report.gemm.kernels
        if any(leg.time_us.get(name) for leg in report.legs)
    ]
    rows = [
        (leg.leg.value, *(millis(leg.time_us.get(name) or None) for name in kinds))
        for leg in report.legs
    ]
    name, unit = MEASURES[report.measure]
    return Grid(f"GEMM {name} by leg", (f"<leg ({unit})", *kinds), rows)


def _gpu_time(report: Report) -> str:
    total = sum(report.gpu_time_us.values())
    shares = sorted(report.gpu_time_us.items(), key=lambda item: -item[1])
    what = "GPU time" if report.measure == "time" else "FLOPs"
    head = f"{what} {total / 1000:.2f} {MEASURES[report.measure].unit}"
    if not total:  # a trace may say of every kernel that it took no time
        return head
    kinds = [
        f"{name} {percent(us / total)}" for name, us in shares if us / total >= 0.005
    ]
    return f"{head}: {', '.join(kinds)}"


def _kernel_grid(report: Report, timed: bool) -> Grid:
    """The longest GEMM kernels: what they multiply first, the whole name on a line of its own."""
    kernels = [row for row in tables.merge_kernels(report) if row.role.is_gemm]
    cells: dict[str, Callable[[KernelRow], str]] = {
        MEASURES[report.measure].unit: lambda row: millis(row.time_us),
        "<precision": lambda row: row.precision.value,
        "<leg": lambda row: row.leg.value if row.leg else "-",
        "<M x N x K": lambda row: (
            " x ".join(map(str, row.shape[1:])) if row.shape else "-"
        ),
        "<operator": lambda row: (row.op or "-").removeprefix("aten::"),
        "TFLOP/s": lambda row: _rate(row.tflops),
        "of peak": lambda row: figure(
            row.percent_of_peak and row.percent_of_peak / 100, ".0%"
        ),
        "<kernel": lambda row: row.name,
    }
    if not timed:
        del cells["TFLOP/s"], cells["of peak"]
    return Grid(
        "Longest GEMM kernels", *columns(kernels, cells), own_line=True, folded=True
    )


def _rank_grid(report: Report) -> Grid:
    """The ranks whose verdict differs from the run's first, then the others."""
    ranks = sorted(report.ranks, key=lambda rank: rank.verdict is report.verdict)
    unit = MEASURES[report.measure].unit
    cells: dict[str, Callable[[RankReport], str]] = {
        "<rank": lambda rank: figure(rank.rank, "d"),
        "<verdict": lambda rank: rank.verdict.value,
        f"{low_precision_name(report.gemm.kernels)} share": lambda rank: percent(
            rank.layer_share
        ),
        f"GEMM {unit}": lambda rank: millis(sum(rank.gemm.time_us.values())),
        "<source": lambda rank: rank.source,
    }
    return Grid("Ranks", *columns(ranks, cells), stretch=True, shown=_RANKS)


def _breakdown_grid(breakdown: BreakdownReport) -> Grid:
    """What HolisticTraceAnalysis found of each rank."""
    cells: dict[str, Callable[[RankBreakdown], str]] = {
        f"<HTA {breakdown.hta_version} rank": lambda rank: str(rank.rank),
        "GPU ms": lambda rank: millis(rank.span_us),
        "idle": lambda rank: percent(_share(rank.idle_us, rank.span_us)),
        "computing": lambda rank: percent(_share(rank.compute_us, rank.span_us)),
        "other": lambda rank: percent(_share(rank.non_compute_us, rank.span_us)),
        "comm. hidden": lambda rank: percent(
            _share(rank.communication_overlap_percent, 100)
        ),
    }
    title = "Breakdown by HolisticTraceAnalysis"
    return Grid(title, *columns(breakdown.ranks, cells), below=breakdown.notes)


def _share(part: float | None, whole: float) -> float | None:
    if part is None or not whole:
        return None
    return part / whole


def _tensor_grid(numerics: NumericsReport, title: str, verbose: bool) -> Grid | str:
    """The measured tensors, the worst first without `verbose`; a line if none was measured."""
    if not numerics.rows:
        return f"{title}: none measured, {numerics.reason or ''}"
    rows: Sequence[TensorRecord] = numerics.rows
    if not verbose:
        rows = worst(rows)[:_TENSORS]
    cells: dict[str, Callable[[TensorRecord], str]] = {
        "SQNR dB": lambda row: "dead" if _is_dead(row) else figure(row.sqnr_db, ".1f"),
        "flushed": lambda row: figure(row.flushed, ".2%"),
        "clipped": lambda row: figure(row.saturated, ".2%"),
        "amax": tables.amax_of,
        "<format": lambda row: row.format or "-",
        "<tensor": lambda row: row.tensor,
        "<layer" if verbose else "<layer (worst first)": lambda row: row.layer,
    }
    return Grid(
        "Numerics",
        *columns(rows, cells),
        stretch=True,
        above=f"{title} in step {numerics.step}: {_all_tensors(numerics.rows)}",
        below=tuple(f"{title}: {note}" for note in numerics.notes),
    )


def _is_dead(row: TensorRecord) -> bool:
    return (row.flushed or 0.0) > tables.DEAD


def worst(rows: Sequence[TensorRecord]) -> list[TensorRecord]:
    """Return rows by how much their casts lose, those with NaN first."""
    return sorted(
        rows,
        key=lambda row: (
            not (row.nan or row.inf),
            -(row.flushed or 0.0),
            row.sqnr_db or 999.0,
        ),
    )


def _all_tensors(rows: Sequence[TensorRecord]) -> str:
    formats = []
    for kind in dict.fromkeys(row.format for row in rows if row.format):
        figures = sorted(
            r.sqnr_db for r in rows if r.format == kind and r.sqnr_db is not None
        )
        if figures:
            middle = figures[len(figures) // 2]
            formats.append(
                f"{kind.upper()} {middle:.1f} dB ({figures[0]:.1f} to {figures[-1]:.1f})"
            )
    layers = counted({row.layer for row in rows}, "layer")
    return f"{counted(rows, 'tensor')} of {layers}: {', '.join(formats) or 'no cast is known'}"


def _step_grid(report: Report) -> Grid:
    cells: dict[str, Callable[[tuple[RankReport, StepReport]], str]] = {
        "<rank": lambda row: row[0].label,
        "<step": lambda row: str(row[1].step),
        "CPU ms (profiled)": lambda row: millis(row[1].duration_us),
        "GPU ms": lambda row: millis(row[1].gpu_us),
        "FP8 of all GEMMs": lambda row: percent(row[1].gemm.fp8_share_of_time),
        "GEMM ms": lambda row: millis(sum(row[1].gemm.time_us.values())),
    }
    if len(report.ranks) == 1:
        del cells["<rank"]
    steps = [(rank, step) for rank in report.ranks for step in rank.steps]
    return Grid("Steps", *columns(steps, cells), folded=True)
