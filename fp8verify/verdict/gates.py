"""Gates and assertions on a finished report: a baseline that may not fall, a number format.

A baseline is what a good run reached, kept in a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fp8verify.errors import InputError
from fp8verify.files import open_regular, writing
from fp8verify.model.kernels import KernelRow
from fp8verify.model.report import AnyReport, RankReport, Report
from fp8verify.model.verdict import Finding
from fp8verify.terms import (
    CERTAIN_LEGS,
    Leg,
    Precision,
    Scaling,
    Severity,
    Verdict,
    fp8_share,
)
from fp8verify.text import listed
from fp8verify.thresholds import USUAL_SHARE
from fp8verify.verdict.clauses import optional
from fp8verify.verdict.findings_table import finding, told
from fp8verify.verdict.judge import EXIT_CODES, judge, with_exit_code
from fp8verify.verdict.libraries import GemmOrigin, changes, origins_of
from fp8verify.verdict.policy import Policy

SCHEMA = 1
MAX_BYTES = 64 << 20
# Shares are kept with six decimals: what is finer is rounding.
_ROUNDING = 1e-6
# Kernels that may have run in any format, or in any below 16 bits.
_NOT_KNOWN = (Precision.BELOW16.value, Precision.UNKNOWN.value)
_LEGS = (*CERTAIN_LEGS, Leg.BACKWARD)
_MAKE_ONE = "Make one from a good run: fp8verify inspect CAPTURE --save-baseline FILE"


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What may not fall: shares of GEMM time from 0 to 1, and the layers' states.

    Attributes:
        fp8verify_baseline: the version of this format; a file without it is no baseline.
        fp8_share: of the run's GEMM time; None if no GEMM ran.
        lowest_rank_share: of the rank that has the least.
        legs: the FP8 share of each GEMM leg.
        layers: the state of each linear layer by name, empty without a module list; a layer in
            several states on several ranks has the worst of them.
        share_of_expected: how much of the FLOPs that were to run in FP8 did, on the rank where
            least; None if that was not known.
        gpu: the model of GPU, by which libraries are compared; None if not known.
        libraries: what ran each low-precision GEMM; empty in baselines before 0.5.
    """

    fp8verify_baseline: int
    fp8_share: float | None = None
    lowest_rank_share: float | None = None
    legs: dict[str, float] = {}
    layers: dict[str, str] = {}
    share_of_expected: float | None = None
    gpu: str | None = None
    libraries: tuple[GemmOrigin, ...] = ()

    @property
    def shares(self) -> dict[str, float | None]:
        """What may not fall by more than the tolerance, by the name that a regression gives it."""
        return {
            "the FP8 share of GEMM time": self.fp8_share,
            "the lowest FP8 share of a rank": self.lowest_rank_share,
            **{f"the FP8 share of {leg}": share for leg, share in self.legs.items()},
            "the FP8 share of the GEMM FLOPs expected in FP8": self.share_of_expected,
        }


def baseline_of(report: Report) -> Baseline:
    """Return what a later run of a report's training is compared with."""
    legs = {}
    for row in report.legs:
        share = fp8_share(row.time_us)
        if row.leg in _LEGS and share is not None:
            legs[row.leg.value] = round(share, 6)
    has_ranks = len(report.ranks) > 1
    return Baseline(
        fp8verify_baseline=SCHEMA,
        fp8_share=report.layer_share,
        lowest_rank_share=report.lowest_share if has_ranks else None,
        legs=legs,
        layers=report.layer_states,
        share_of_expected=_share_of_expected(report),
        gpu=report.environment.gpu,
        libraries=origins_of(report),
    )


def _share_of_expected(report: Report) -> float | None:
    """Return how much of what was to run in FP8 did, on the rank where least; None if unknown."""
    met = []
    for rank in report.ranks:
        expected = rank.expected
        if expected is not None and expected.share_of_flops:
            met.append(expected.measured_share_of_flops / expected.share_of_flops)
    return round(min(1.0, *met), 6) if met else None


def read_baseline(path: Path) -> Baseline:
    """Read a baseline that `write_baseline` wrote.

    Raises:
        InputError: it cannot be read, or is no baseline of this version.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
        baseline = msgspec.json.decode(data[:MAX_BYTES], type=Baseline)
    except OSError as error:
        raise InputError(
            f"cannot read the baseline {path}: {error.strerror}.", _MAKE_ONE
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not a baseline: {str(error)[:200]}.", _MAKE_ONE
        ) from None
    schema = baseline.fp8verify_baseline
    if schema != SCHEMA:
        raise InputError(
            f"{path} has baseline schema {schema}; this version reads {SCHEMA}.",
            "Save it again with this version.",
        )
    return baseline


def can_be_baseline(report: Report) -> bool:
    """Whether FP8 GEMMs ran, so a later run could fall below this one."""
    return report.verdict in (Verdict.ACTIVE, Verdict.PARTIAL)


def write_baseline(report: Report, path: Path) -> None:
    """Save what a run reached.

    Raises:
        UsageError: the file cannot be written.
    """
    compact = msgspec.json.encode(baseline_of(report))
    text = msgspec.json.format(compact, indent=2)
    with writing("the baseline", path):
        path.write_bytes(text + b"\n")


def gated(
    report: AnyReport,
    findings: Iterable[Finding],
    *,
    gate: bool = True,
) -> AnyReport:
    """Put the findings of a gate first in a report; if it is not met, exit with 1.

    If kernels of an unknown format leave it open, exit with 3.

    Args:
        report: the run; its verdict stays.
        findings: of `regressions` or `other_formats`.
        gate: whether the exit code is to change.
    """
    unmet = tuple(findings)
    others = report.findings
    errors = [one for one in unmet if one.severity is Severity.ERROR]
    codes = {one.code for one in unmet}
    if errors and not report.fails:
        asked = Policy(exit_zero=not gate)
        report = with_exit_code(replace(report, findings=tuple(errors[:1])), (), asked)
    elif "required-format" in codes and not report.fails:
        report = _as_open(report, gate=gate)
    return replace(report, findings=(*unmet, *others))


def _as_open(report: AnyReport, *, gate: bool) -> AnyReport:
    """Return a report that does not tell whether the required format was met."""
    code = EXIT_CODES[Verdict.INCONCLUSIVE]
    why = "kernels of unknown format leave --require-format open"
    if not gate:
        why = f"--exit-zero; without it {code}: {why}"
        code = 0
    return replace(report, exit_code=code, fails=True, exit_reason=why)


def other_formats(report: Report, name: str, min_share: float) -> Iterator[Finding]:
    """Yield a finding where a rank's GEMMs did not run in a format.

    Args:
        report: the run.
        name: one of `fp8verify.verdict.policy.FORMATS`.
        min_share: of each rank's GEMM time that has to be in it.
    """
    took = []
    numbers: list[int] = []
    is_open = True
    for rank in report.ranks:
        share, not_known = _shares_in(rank, name)
        if share >= min_share:
            continue
        took.append(f"{share:.1%} on {rank.label}")
        is_open = is_open and share + not_known >= min_share
        if rank.rank is not None:
            numbers.append(rank.rank)
    yield from told(
        "required-format",
        optional("open", when=is_open),
        when=took,
        format=name,
        share=min_share,
        took=listed(took),
        ranks=numbers,
    )


def _shares_in(rank: RankReport, name: str) -> tuple[float, float]:
    """Return the shares of a rank's GEMM time in a format, and in kernels of unknown ones."""
    times = rank.layer_gemm.time_us
    part = times.get(name, 0.0)
    if name == "fp8_block":
        # Block scales are known from the kernels.
        part = rank.recipe.time_us.get(Scaling.BLOCKWISE.value, 0.0)
    not_known = 0.0
    for precision in _NOT_KNOWN:
        not_known += times[precision]
    total = sum(times.values()) or math.inf
    return part / total, not_known / total


def regressions(
    report: Report,
    baseline: Baseline,
    tolerance: float,
) -> Iterator[Finding]:
    """Yield what fell below the baseline, and what could not be compared with it.

    Args:
        report: the run.
        baseline: what it is compared with.
        tolerance: how far a share may fall, in points: 0.02 allows 93% where 95% was.
    """
    now = baseline_of(report)
    if now.fp8_share is None:
        why = "no GEMM ran, so there is no FP8 share to compare with it"
        yield finding("baseline-not-comparable", why=why)
        return
    yield from _lower_shares(baseline.shares, now.shares, tolerance)
    if baseline.gpu == now.gpu:  # another GPU has other kernels
        yield from changes(baseline.libraries, now.libraries)
    if baseline.layers and not now.layers:
        why = "it lists layers, and this capture has no module list"
        yield finding("baseline-not-comparable", why=why)
        return
    yield from _lost_layers(baseline.layers, now.layers)


def _lower_shares(
    before: Mapping[str, float | None],
    now: Mapping[str, float | None],
    tolerance: float,
) -> Iterator[Finding]:
    """Yield the shares that fell by more than the tolerance, of those that both runs have."""
    for what, was in before.items():
        share = now.get(what)
        if was is None or share is None:
            continue
        points = f"{100 * (was - share):.1f} points"
        yield from told(
            "regression",
            when=share < was - tolerance - _ROUNDING,
            what=f"{what} fell from {was:.1%} to {share:.1%} ({points})",
        )


def _lost_layers(
    before: Mapping[str, str], now: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield that layers left FP8; layers that only got other names are still as many."""
    was_fp8 = _in_fp8(before)
    is_fp8 = _in_fp8(now)
    lost = [name for name in was_fp8 if name not in is_fp8]
    has_fewer = len(is_fp8) < len(was_fp8)
    are_there = not now.keys().isdisjoint(lost)
    counts = f"{len(was_fp8)} layers were in FP8, now {len(is_fp8)} are"
    yield from told(
        "regression",
        when=lost and (has_fewer or are_there),
        what=f"{counts}; no longer: {listed(lost)}",
        layers=lost,
    )


def _in_fp8(states: Mapping[str, str]) -> list[str]:
    """Return the names of the layers in FP8."""
    return [name for name, state in states.items() if state == "fp8"]


# ---- assertions for tests and for scripts


_ROWS = 5


def assert_fp8_active(report: Report, *, min_share: float | str = USUAL_SHARE) -> None:
    """Assert that FP8 GEMMs ran on every rank and step and took `min_share` of GEMM time.

    Args:
        report: what `fp8verify.inspect` returned.
        min_share: the FP8 share of GEMM time, 0.8 or "80%", that every rank must reach.

    Raises:
        AssertionError: with the reason, the share and the findings.
        ValueError: `min_share` is not a share.
    """
    __tracebackhide__ = True
    policy = Policy(min_share=min_share)
    judged = judge(report, policy)
    if judged.verdict is not Verdict.ACTIVE:
        raise AssertionError("\n".join(_message(judged, policy.share)))


def assert_gemm_precision(
    report: Report,
    precision: str | Iterable[str] = "fp8",
    *,
    leg: str | None = None,
    op: str | None = None,
) -> None:
    """Assert that every GEMM of a leg or of an operator ran in the given precision.

    Args:
        report: what `fp8verify.inspect` returned.
        precision: one class of `fp8verify.terms.Precision`, or several that are all right.
        leg: only these GEMMs: fprop, dgrad, wgrad or recompute.
        op: only those of this operator, such as "aten::_grouped_mm".

    Raises:
        AssertionError: with the longest kernels that ran otherwise; or no such GEMM ran.
        ValueError: no such precision class, or no such leg; the message lists them.
    """
    __tracebackhide__ = True
    names = [precision] if isinstance(precision, str) else list(precision)
    _check_words("precision", names, Precision)
    what = "GEMM"
    if leg is not None:
        _check_words("leg", [leg], Leg)
        what = f"{leg} {what}"
    if op is not None:
        what = f"{what} of {op}"
    wanted = set(map(Precision, names))
    rows = []
    for rank in report.ranks:
        for row in rank.kernels:
            is_asked = leg in (None, row.leg) and op in (None, row.op)
            if row.role.is_gemm and is_asked:
                rows.append(row)
    if not rows:
        raise AssertionError(f"no {what} ran: {report.reason}")
    others = [row for row in rows if row.precision not in wanted]
    if others:
        share = _time_us(others) / (_time_us(rows) or 1)
        formats = " or ".join(names)
        head = f"{share:.1%} of {what} time ran in something other than {formats}:"
        longest = sorted(others, key=lambda row: -row.time_us)[:_ROWS]
        raise AssertionError("\n".join([head, *map(_line, longest)]))


def _time_us(rows: Iterable[KernelRow]) -> float:
    time_us = 0.0
    for row in rows:
        time_us += row.time_us
    return time_us


def assert_no_regression(
    report: Report,
    baseline: str | Path | Baseline,
    *,
    tolerance: float = 0.02,
) -> None:
    """Assert that FP8 share, legs and layers are no worse than in a baseline.

    Args:
        report: what `fp8verify.inspect` returned.
        baseline: a file of `fp8verify inspect --save-baseline`, or what `read_baseline` made of it.
        tolerance: how far a share may fall, in points: 0.02 allows 93% where 95% was.

    Raises:
        AssertionError: with each difference, or why the two cannot be compared.
        InputError: the file is no baseline.
    """
    __tracebackhide__ = True
    if isinstance(baseline, (str, Path)):
        known = read_baseline(Path(baseline))
    else:
        known = baseline
    found = regressions(report, known, tolerance)
    fell = [one for one in found if one.severity is Severity.ERROR]
    if fell:
        raise AssertionError("\n".join(finding.message for finding in fell))


def _check_words(what: str, words: Iterable[str], kind: type[Precision | Leg]) -> None:
    known = [member.value for member in kind]
    for word in words:
        if word not in known:
            raise ValueError(f"unknown {what} {word!r}: one of {', '.join(known)}")


def _message(report: Report, min_share: float) -> Iterator[str]:
    lowest = report.lowest_rank
    alone = len(report.ranks) == 1
    yield f"FP8 is {report.verdict.value}: {report.reason}"
    ran = "no GEMM ran"
    if lowest is not None:
        where = optional(f" on {lowest.label}, which has least,", when=not alone)
        ran = f"{lowest.layer_share or 0.0:.1%} of GEMM time{where} ran in FP8"
    yield f"share: {ran}, {min_share:.1%} required"
    for shown in report.findings:
        yield f"{shown.severity.value} [{shown.code}] {shown.sentence(alone=alone)}"
        if shown.hint:
            yield f"    {shown.hint}"


def _line(row: KernelRow) -> str:
    where = f"{row.leg.value if row.leg else '-'} {row.op or 'no operator'}"
    return f"    {row.time_us / 1000:.2f} ms in {row.precision.value}, {where}: {row.name[:100]}"
