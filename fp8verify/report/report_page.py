"""A report as a page: the first screen in its order, then every table there is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from fp8verify.capture.schema import TensorRecord
from fp8verify.model.kernels import KernelRow
from fp8verify.model.numerics import NumericsReport
from fp8verify.model.report import (
    BreakdownReport,
    RankReport,
    Report,
)
from fp8verify.model.steps import StepReport
from fp8verify.model.verdict import Finding
from fp8verify.patterns import lazy_pattern
from fp8verify.report import tables
from fp8verify.report.page import BAD, TONES, Grid, Note, Page, sentence
from fp8verify.report.payoff import payoff
from fp8verify.report.proof import is_named, proof_grid, range_of_times, rank_numbers
from fp8verify.report.sentences import (
    of_expected,
    report_notes,
    sources,
    steps_shown,
)
from fp8verify.report.tables import figure, millis, percent
from fp8verify.terms import (
    Severity,
    Verdict,
    low_precision_count,
    low_precision_name,
)
from fp8verify.text import MEASURES, about, counted, shown_size
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
    "If less than half is intended, nothing is wrong: --min-share expected makes the run ACTIVE. "
    "Otherwise change {setting} so that it keeps fewer layers in high precision."
)
_LINES = {Verdict.ACTIVE: 16}
# A part of a C++ name that is no list of parameters.
_UNNAMED = "(anonymous namespace)"
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
    urgent: list[Note] = []
    if report.verdict is Verdict.INCONCLUSIVE:
        for note in report.notes:
            urgent.append(Note("note", note, rank=6))
    return Page(
        verdict=verdict_of_report(report),
        tone=_tone(report),
        run=tuple(dict.fromkeys(_run(report))),
        sentence=sentence(report.reason),
        fails=report.fails,
        exit=exit_line(report),
        proof=proof_grid(report),
        sources=sources(report),
        findings=findings,
        cause=report.cause,
        fix=_fix(report),
        speed=_speed(report, findings),
        requested=tuple(_requested(report, verbose)),
        body=tuple(_body(report)),
        notes=tuple(report_notes(report)),
        urgent=tuple(urgent),
        further=tuple(_further(report)),
        lines=_LINES.get(report.verdict, 30),
        facts=tuple(_facts(report)),
        software=_software(report),
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
        is_cause = finding.code == report.cause and not is_said
        is_repeated = _repeats(report, finding)
        is_said = is_said or bool(finding.hint and is_cause)
        if finding.hint and (is_cause or is_repeated):
            yield replace(finding, message="")
        else:
            yield finding


def _repeats(report: Report, finding: Finding) -> bool:
    """Whether the sentence says what a finding says; of the only rank also its file's name does."""
    message = finding.message
    if len(report.ranks) == 1:
        message = message.removeprefix(f"{report.ranks[0].source}: ")
    reason = report.reason
    is_cause = reason.endswith(f": {message}")
    return is_cause or f"; {message};" in f"; {reason};"


def _speed(report: Report, findings: Iterable[Finding]) -> Note | None:
    """Return the line of the speed, with the finding that says the same."""
    speed = payoff(report)
    if speed is None:
        return None
    note = Note("speed", speed.text, speed.tone)
    for finding in findings:
        if viewed(finding, "speed"):
            return note._replace(finding=finding)
    return note


def _errors(report: Report) -> int:
    return sum(one.severity is Severity.ERROR for one in report.findings)


def verdict_of_report(report: Report) -> str:
    """Return the verdict; an ACTIVE run that fails for its errors says so."""
    errors = _errors(report)
    if report.verdict is Verdict.ACTIVE and errors:
        return f"ACTIVE, with {counted(errors, 'error')}"
    return report.verdict.value


def _run(report: Report) -> Iterator[str]:
    yield report.name
    if report.environment.gpu:
        yield report.environment.gpu
    steps = steps_shown(report)
    if steps:
        yield steps
    for finding in report.findings:
        if viewed(finding, "ranks"):
            yield finding.message
            return
    if len(report.ranks) > 1:
        yield f"{len(report.ranks)} ranks"


def _facts(report: Report) -> Iterator[Note]:
    """Yield what was run, when and on what; what is not known is left out."""
    environment = report.environment
    if environment.command:
        yield Note("command", environment.command)
    if environment.recorded:
        date, _, time = environment.recorded.partition("T")
        yield Note("recorded", f"{date} {time.removesuffix('Z')} UTC")
    if environment.gpu:
        gpu = environment.gpu
        if environment.compute_capability:
            gpu = f"{gpu}, compute capability {environment.compute_capability}"
        yield Note("GPU", gpu)
    yield Note("software", _software(report))


def _software(report: Report) -> str:
    versions = {"fp8verify": report.fp8verify_version}
    versions |= report.environment.versions
    shown = []
    for name, version in versions.items():
        shown.append(f"{name} {version}")
    return ", ".join(shown)


def exit_code_of(report: Report) -> int:
    """Return the exit code of the command: the run's own if it failed."""
    return report.training_exit_code or report.exit_code


def exit_line(report: Report) -> str:
    """Return the exit code of the command, and why."""
    code = f"exit {exit_code_of(report)}"
    if report.training_exit_code:
        return f"{code}: the run's own exit code"
    if report.exit_reason:
        return f"{code}: {report.exit_reason}"
    return code


# As a sentence names what keeps layers in high precision: a setting of the log.
_SETTING = lazy_pattern(r"in high precision \((\w+), around log line")


def _accept(report: Report) -> str:
    """Say how a share is accepted, and what else to change: the setting that the log names."""
    found = _SETTING.search(report.reason)
    setting = "the recipe, filter or argument"
    if found is not None:
        setting = found[1]
    return _ACCEPT.format(setting=setting)


def _fix(report: Report) -> str:
    """Say what to do about the verdict where no error or warning says it."""
    if report.cause is not None or report.verdict not in _FIX:
        return ""
    usual = _FIX[report.verdict]
    if report.verdict is Verdict.PARTIAL:
        return _accept(report) if _is_as_expected(report) else usual
    if report.verdict is Verdict.INACTIVE:
        for finding in report.findings:
            if viewed(finding, "fix"):  # its layers may be outside of their autocast
                return finding.hint
        return usual
    if any(map(_says_what_to_do, report.findings)):
        return ""
    return usual


def _is_as_expected(report: Report) -> bool:
    known = []
    for rank in report.ranks:
        if rank.expected is not None:
            known.append(rank.expected.is_met)
    return bool(known) and all(known)


def _says_what_to_do(finding: Finding) -> bool:
    is_grave = finding.severity is not Severity.INFO
    return is_grave and bool(finding.hint) and not viewed(finding, "aside")


def _further(report: Report) -> Iterator[str]:
    if len(report.legs) > 1:
        yield "legs"
    if any(rank.layers is not None for rank in report.ranks):
        yield "layers"
    if any(report.gemm.kernels.values()):
        yield "kernels"
        yield "GPU time"
    if report.notes:
        yield counted(report.notes, "note")


# ---- tables that were asked for, and all others


def _requested(report: Report, verbose: bool) -> Iterator[Grid | str]:
    """Yield what `--layers`, `--numerics` and `--breakdown` asked for."""
    ran_low = low_precision_count(report.gemm.kernels) > 0
    if is_named(report) and (ran_low or verbose):
        layers = tables.layer_table(report, verbose=verbose)
        if layers is not None:
            yield layers
    for rank in _measured(report, verbose):
        if rank.numerics is not None:
            title = f"numerics{_of_rank(report, rank)}"
            yield _tensor_grid(rank.numerics, title, verbose)
    if report.breakdown is not None:
        yield _breakdown_grid(report.breakdown)


def _measured(report: Report, verbose: bool) -> list[RankReport]:
    """Return the ranks that measured tensors, or say why not; without `verbose` the first one."""
    measured = []
    for rank in report.ranks:
        numerics = rank.numerics
        if numerics is not None and (numerics.rows or numerics.reason):
            measured.append(rank)
    if verbose:
        return measured
    return measured[:1]


def _body(report: Report) -> Iterator[Grid | str]:
    is_timed = report.measure == "time"
    if any(report.gemm.kernels.values()):
        yield _gemm_grid(report, is_timed)
        if len(report.legs) > 1:
            yield _leg_grid(report)
        yield _gpu_time(report)
        yield _kernel_grid(report, is_timed)
    if len(report.ranks) > 1:
        yield _rank_grid(report)
    if not is_named(report):
        layers = tables.layer_table(report, verbose=True)
        if layers is not None:
            yield layers
    has_steps = any(len(rank.steps) > 1 for rank in report.ranks)
    if is_timed and has_steps:
        yield _step_grid(report)


def _of_rank(report: Report, rank: RankReport) -> str:
    if len(report.ranks) > 1:
        return f" of {rank.label}"
    return ""


def _gemm_grid(report: Report, is_timed: bool) -> Grid:
    """GEMMs of layers, whose shares the verdict is about, then those of other work."""
    name, unit = MEASURES[report.measure]
    others = report.other_gemms
    what = f"<GEMM {name}"
    share = "share"
    if others:
        what = "<GEMM of layers"
        share = "of layers"
    headings = [what, "kernels", unit, share]
    if is_timed:
        headings.append("TFLOP/s")
    rows = []
    for row in report.layer_gemm.rows:
        cells = [row.precision, str(row.kernels), millis(row.time_us)]
        cells.append(percent(row.share))
        if is_timed:
            cells.append(_rate(row.tflops))
        rows.append(tuple(cells))
    for purpose, row in others:
        kind = f"({row.precision}, {purpose})"
        cells = [kind, str(row.kernels), millis(row.time_us), "-"]
        if is_timed:
            cells.append("-")
        rows.append(tuple(cells))
    below = tuple(_expected_shares(report))
    return Grid(f"GEMM {name}", tuple(headings), rows, below=below)


def _expected_shares(report: Report) -> Iterator[str]:
    """Yield what was expected to run in low precision, once for ranks alike."""
    shares: dict[str, list[RankReport]] = {}
    for rank in report.ranks:
        expected = rank.expected
        if expected is not None:
            formats = low_precision_name(report.gemm.kernels)
            measured = of_expected(report, expected)
            wanted = about(expected.share_of_flops)
            line = f"in {formats}: {measured} ({wanted} expected)"
            shares.setdefault(line, []).append(rank)
    for line, ranks in shares.items():
        if len(shares) > 1:
            yield f"{tables.label_of_group(ranks)} {line}"
        else:
            yield line


def _rate(tflops: float | None) -> str:
    if tflops is None or tflops >= 9.5:
        return figure(tflops, ".0f")
    return figure(tflops, ".2g")


def _leg_grid(report: Report) -> Grid:
    ran: set[str] = set()
    for leg in report.legs:
        for name, us in leg.time_us.items():
            if us:
                ran.add(name)
    kinds = [name for name in report.gemm.kernels if name in ran]
    rows = []
    for leg in report.legs:
        cells = [leg.leg.value]
        for name in kinds:
            leg_us = leg.time_us.get(name)
            cells.append(millis(leg_us or None))
        rows.append(tuple(cells))
    name, unit = MEASURES[report.measure]
    return Grid(f"GEMM {name} by leg", (f"<leg ({unit})", *kinds), rows)


def _gpu_time(report: Report) -> str:
    total = sum(report.gpu_time_us.values())
    what = "GPU time" if report.measure == "time" else "FLOPs"
    head = f"{what} {total / 1000:.2f} {MEASURES[report.measure].unit}"
    if not total:  # a trace may say of every kernel that it took no time
        return head
    kinds = []
    for name, us in tables.by_time(report.gpu_time_us):
        if us / total >= 0.005:
            kinds.append(f"{name} {percent(us / total)}")
    return f"{head}: {', '.join(kinds)}"


def _kernel_grid(report: Report, is_timed: bool) -> Grid:
    """The longest GEMM kernels: what they multiply first, the whole name on a line of its own."""
    unit = MEASURES[report.measure].unit
    headings = [unit, "<precision", "<leg", "<MxNxK", "<operator"]
    if is_timed:
        headings += ["TFLOP/s", "of peak"]
    headings.append("<kernel")
    rows = []
    for row in tables.merge_kernels(report):
        if row.role.is_gemm:
            rows.append(tuple(_kernel_cells(row, is_timed)))
    title = "Longest GEMM kernels"
    return Grid(title, tuple(headings), rows, own_line=True, folded=True)


def _kernel_cells(row: KernelRow, is_timed: bool) -> Iterator[str]:
    yield millis(row.time_us)
    yield row.precision.value
    yield row.leg.value if row.leg else "-"
    yield shown_size(row.shape[1:]) if row.shape else "-"
    yield (row.op or "-").removeprefix("aten::")
    if is_timed:
        yield _rate(row.tflops)
        of_peak = row.percent_of_peak and row.percent_of_peak / 100
        yield figure(of_peak, ".0%")
    yield _without_parameters(row.name)


def _without_parameters(name: str) -> str:
    """Return the name of a C++ function without the types of its parameters, which say little."""
    depth = 0
    for place, letter in enumerate(name):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth == 0 and place:
            is_scope = name.startswith(_UNNAMED, place)
            if not is_scope:
                return name[:place]
    return name


def _rank_grid(report: Report) -> Grid:
    """The ranks whose verdict differs from the run's first, then the others; ranks alike as one."""
    unit = MEASURES[report.measure].unit
    headings = (
        "<rank",
        "<verdict",
        f"{low_precision_name(report.gemm.kernels)} share",
        f"GEMM {unit}",
        "<source",
    )
    differing = []
    others = []
    for ranks in tables.ranks_alike(report.ranks):
        if ranks[0].verdict is report.verdict:
            others.append(_rank_cells(ranks))
        else:
            differing.append(_rank_cells(ranks))
    rows = [*differing, *others]
    return Grid("Ranks", headings, rows, stretch=True, shown=_RANKS)


def _rank_cells(ranks: Sequence[RankReport]) -> tuple[str, ...]:
    first = ranks[0]
    number = figure(first.rank, "d")
    source = first.source
    if len(ranks) > 1:
        numbers = [rank.rank or 0 for rank in ranks]
        number = rank_numbers(numbers)
        source = f"{first.source} … {ranks[-1].source}"
    times = [sum(rank.gemm.time_us.values()) for rank in ranks]
    return (
        number,
        first.verdict.value,
        percent(first.layer_share),
        range_of_times(times),
        source,
    )


def _breakdown_grid(breakdown: BreakdownReport) -> Grid:
    """What HolisticTraceAnalysis found of each rank."""
    headings = (
        f"<HTA {breakdown.hta_version} rank",
        *("GPU ms", "idle", "computing", "other", "comm. hidden"),
    )
    rows = []
    for rank in breakdown.ranks:
        hidden = _share(rank.communication_overlap_percent, 100)
        cells = (
            str(rank.rank),
            millis(rank.span_us),
            percent(_share(rank.idle_us, rank.span_us)),
            percent(_share(rank.compute_us, rank.span_us)),
            percent(_share(rank.non_compute_us, rank.span_us)),
            percent(hidden),
        )
        rows.append(cells)
    title = "Breakdown by HolisticTraceAnalysis"
    return Grid(title, headings, rows, below=breakdown.notes)


def _share(part: float | None, whole: float) -> float | None:
    if part is None or not whole:
        return None
    return part / whole


def _tensor_grid(numerics: NumericsReport, title: str, verbose: bool) -> Grid | str:
    """The measured tensors, the worst first without `verbose`; a line if none was measured."""
    if not numerics.rows:
        return f"{title}: none measured, {numerics.reason or ''}"
    tensors: Sequence[TensorRecord] = numerics.rows
    layer = "<layer"
    if not verbose:
        tensors = worst(tensors)[:_TENSORS]
        layer = "<layer (worst first)"
    headings = ("SQNR dB", "flushed", "clipped", "amax", "<format", "<tensor", layer)
    return Grid(
        "Numerics",
        headings,
        list(map(_tensor_cells, tensors)),
        stretch=True,
        above=f"{title} in step {numerics.step}: {_all_tensors(numerics.rows)}",
        below=tuple(f"{title}: {note}" for note in numerics.notes),
    )


def _tensor_cells(row: TensorRecord) -> tuple[str, ...]:
    is_dead = (row.flushed or 0.0) > tables.DEAD
    return (
        "dead" if is_dead else figure(row.sqnr_db, ".1f"),
        figure(row.flushed, ".2%"),
        figure(row.saturated, ".2%"),
        tables.amax_of(row),
        row.format or "-",
        row.tensor,
        row.layer,
    )


def worst(rows: Sequence[TensorRecord]) -> list[TensorRecord]:
    """Return rows by how much their casts lose, those with NaN first."""
    return sorted(rows, key=_soundness)


def _soundness(row: TensorRecord) -> tuple[bool, float, float]:
    is_finite = not (row.nan or row.inf)
    flushed = row.flushed or 0.0
    decibels = row.sqnr_db or 999.0
    return is_finite, -flushed, decibels


def _all_tensors(rows: Sequence[TensorRecord]) -> str:
    decibels: dict[str, list[float]] = {}
    for row in rows:
        if row.format and row.sqnr_db is not None:
            decibels.setdefault(row.format, []).append(row.sqnr_db)
    formats = []
    for kind, known in decibels.items():
        known.sort()
        least = known[0]
        most = known[-1]
        middle = known[len(known) // 2]
        name = kind.upper()
        formats.append(f"{name} {middle:.1f} dB ({least:.1f} to {most:.1f})")
    casts = ", ".join(formats)
    if not casts:
        casts = "no cast is known"
    tensors = counted(rows, "tensor")
    layers = counted({row.layer for row in rows}, "layer")
    return f"{tensors} of {layers}: {casts}"


def _step_grid(report: Report) -> Grid:
    headings = ["<step", "CPU ms (profiled)", "GPU ms", "FP8 of all GEMMs", "GEMM ms"]
    has_ranks = len(report.ranks) > 1
    if has_ranks:
        headings.insert(0, "<rank")
    rows = []
    for ranks in _alike_in_steps(report.ranks):
        label = tables.label_of_group(ranks)
        steps_of_ranks = [rank.steps for rank in ranks]
        for steps in zip(*steps_of_ranks, strict=True):
            cells = _step_cells(steps)
            if has_ranks:
                cells.insert(0, label)
            rows.append(tuple(cells))
    return Grid("Steps", tuple(headings), rows, folded=True)


def _alike_in_steps(ranks: Sequence[RankReport]) -> list[list[RankReport]]:
    """Put ranks together that have the same FP8 shares in the same steps, the fewest first.

    Up to eight ranks stay alone: their times show which of them is slow.
    """
    if len(ranks) <= _RANKS:
        return [[rank] for rank in ranks]
    alike: dict[Hashable, list[RankReport]] = defaultdict(list)
    for rank in ranks:
        look: Hashable = rank.source
        if rank.rank is not None:
            look = tuple(map(_share_in_step, rank.steps))
        alike[look].append(rank)
    return sorted(alike.values(), key=len)


def _share_in_step(step: StepReport) -> tuple[int, str]:
    return step.step, percent(step.gemm.fp8_share_of_time)


def _step_cells(steps: Sequence[StepReport]) -> list[str]:
    """Return the cells of one step of some ranks, with the range of their times."""
    number, share = _share_in_step(steps[0])
    gemm_us = [sum(step.gemm.time_us.values()) for step in steps]
    return [
        str(number),
        _range_of_known(step.duration_us for step in steps),
        _range_of_known(step.gpu_us for step in steps),
        share,
        range_of_times(gemm_us),
    ]


def _range_of_known(times_us: Iterable[float | None]) -> str:
    known = [time_us for time_us in times_us if time_us is not None]
    if not known:
        return "-"
    return range_of_times(known)
