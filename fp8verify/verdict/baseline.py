"""What a good run reached, kept in a file, so that later runs may not fall below it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fp8verify.errors import InputError, UsageError
from fp8verify.report.model import Finding, Leg, Report, Severity, Verdict, fp8_share
from fp8verify.report.model.diagnosis import ExpectedReport
from fp8verify.report.tables import layer_share
from fp8verify.text import listed
from fp8verify.verdict.findings_table import finding

SCHEMA = 1
MAX_BYTES = 64 << 20


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What may not fall: shares of GEMM time from 0 to 1, and the layers' states.

    Attributes:
        fp8_share: of the run's GEMM time; None where no GEMM ran.
        lowest_rank_share: of the rank that has the least.
        legs: the FP8 share of each GEMM leg.
        layers: the state of each linear layer by name, empty without a census; a layer in several
            states on several ranks has the worst of them.
        short_of_expected: by how much the FLOPs in FP8 fell short of those that were to run in it,
            on the rank where most; None where that was not known.
    """

    fp8verify_baseline: int = SCHEMA
    fp8_share: float | None = None
    lowest_rank_share: float | None = None
    legs: dict[str, float] = {}
    layers: dict[str, str] = {}
    short_of_expected: float | None = None


def baseline_of(report: Report) -> Baseline:
    """Take from a report what a later run is held to."""
    shares = [layer_share(rank) for rank in report.ranks]
    known = [share for share in shares if share is not None]
    known_ranks = [rank.expected for rank in report.ranks if rank.expected is not None]
    return Baseline(
        fp8_share=layer_share(report),
        lowest_rank_share=min(known) if known else None,
        legs={
            leg.leg.value: round(share, 6)
            for leg in report.legs
            if (share := fp8_share(leg.time_us)) is not None
            and leg.leg not in (Leg.UNKNOWN, Leg.ATTENTION, Leg.OPTIMIZER)
        },
        layers=layer_states(report),
        short_of_expected=max(map(_short_of_expected, known_ranks), default=None),
    )


def _short_of_expected(expected: ExpectedReport) -> float:
    return round(max(0.0, expected.share_of_flops - expected.measured_share_of_flops), 6)


def layer_states(report: Report) -> dict[str, str]:
    """Return the state of each linear layer by name; "fp8" only if it is that on every rank."""
    found: dict[str, set[str]] = defaultdict(set)
    for rank in report.ranks:
        if rank.modules is not None:
            for state, names in rank.modules.names.items():
                for name in names:
                    found[name].add(state)
    return {name: min(states - {"fp8"}, default="fp8") for name, states in found.items()}


def read_baseline(path: Path) -> Baseline:
    """Read a baseline that `write_baseline` wrote.

    Raises:
        InputError: it cannot be read, or is no baseline of this version.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"cannot read the baseline {path}: {error.strerror}.",
            "Make one from a good run: fp8verify inspect CAPTURE --save-baseline FILE",
        ) from None
    try:
        found = msgspec.json.decode(data[:MAX_BYTES], type=_Strict)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is no baseline: {str(error)[:200]}.",
            "Make one from a good run: fp8verify inspect CAPTURE --save-baseline FILE",
        ) from None
    if found.fp8verify_baseline != SCHEMA:
        raise InputError(
            f"{path} has baseline schema {found.fp8verify_baseline}; this version reads {SCHEMA}.",
            "Save it anew with this version.",
        )
    return found


class _Strict(Baseline, frozen=True, kw_only=True):
    """A baseline from outside, which must say that it is one."""

    fp8verify_baseline: int


def can_be_baseline(report: Report) -> bool:
    """Whether FP8 GEMMs ran, so that a later run could fall below this one."""
    return report.verdict in (Verdict.ACTIVE, Verdict.PARTIAL)


def write_baseline(report: Report, path: Path) -> None:
    """Save what a run reached.

    Raises:
        UsageError: the file cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(baseline_of(report)), indent=2) + b"\n"
    try:
        path.write_bytes(text)
    except OSError as error:
        raise UsageError(
            f"cannot write the baseline to {path}: {error.strerror}.",
            "Pass --save-baseline a file in a folder that exists and may be written.",
        ) from None


def hold(report: Report, baseline: Baseline, tolerance: float, *, gate: bool = True) -> Report:
    """Add what fell below the baseline as findings; a report that passed gets exit code 1.

    Args:
        report: the run to judge; its verdict stays.
        baseline: what it is held to.
        tolerance: how far a share may fall, in points: 0.02 allows 93% where 95% was.
        gate: whether the exit code is to change.
    """
    found = tuple(regressions(report, baseline, tolerance))
    return replace(
        report,
        findings=(*found, *report.findings),
        exit_code=report.exit_code or int(fell(found) and gate),
        fails=report.fails or fell(found),
    )


def fell(findings: Iterable[Finding]) -> bool:
    """Whether any of the findings says that a run fell below its baseline, or is not comparable."""
    return any(found.severity is Severity.ERROR for found in findings)


def regressions(report: Report, baseline: Baseline, tolerance: float) -> Iterator[Finding]:
    """Yield what fell below the baseline, and what could not be held against it."""
    now = baseline_of(report)
    if now.fp8_share is None:
        yield _not_comparable("no GEMM ran, so there is no FP8 share to hold against it")
        return
    yield from _fallen("the FP8 share of GEMM time", baseline.fp8_share, now.fp8_share, tolerance)
    if len(report.ranks) > 1:
        what = "the lowest FP8 share of a rank"
        yield from _fallen(what, baseline.lowest_rank_share, now.lowest_rank_share, tolerance)
    for leg, before in baseline.legs.items():
        yield from _fallen(f"the FP8 share of {leg}", before, now.legs.get(leg), tolerance)
    yield from _fallen_layers(baseline.layers, now.layers)
    was_short, short = baseline.short_of_expected, now.short_of_expected
    if was_short is not None and short is not None and short > was_short + tolerance + 1e-6:
        what = f"{short:.1%} of GEMM FLOPs were to run in FP8 and did not, {was_short:.1%} before"
        yield _regression(what)


def _fallen(
    what: str, before: float | None, now: float | None, tolerance: float
) -> Iterator[Finding]:
    # Shares are kept with six decimals: what is finer is rounding.
    if before is not None and now is not None and now < before - tolerance - 1e-6:
        points = 100 * (before - now)
        yield _regression(f"{what} fell from {before:.1%} to {now:.1%} ({points:.1f} points)")


def _fallen_layers(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Finding]:
    if before and not now:
        yield _not_comparable("it lists layers, and this capture has no module census")
        return
    was_fp8 = [name for name, state in before.items() if state == "fp8"]
    lost = [name for name in was_fp8 if now.get(name, "fp8") != "fp8"]
    if lost:
        states = ", ".join(sorted({now[name] for name in lost}))
        yield _regression(f"{len(lost)} layers left FP8 (now {states}): {listed(lost)}", lost)
    gone = [name for name in was_fp8 if name not in now]
    count = sum(state == "fp8" for state in now.values())
    if gone and count + len(lost) < len(was_fp8):
        yield _regression(
            f"{len(was_fp8)} layers were in FP8 and {count} are; gone are {listed(gone)}", gone
        )


def _regression(what: str, layers: Iterable[str] = ()) -> Finding:
    return finding("regression", what=what, layers=layers)


def _not_comparable(why: str) -> Finding:
    return finding("baseline-not-comparable", why=why)
