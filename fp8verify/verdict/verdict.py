"""From shares, and from what findings settled, to the verdicts and the exit code: rules only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fp8verify.report.model.parts import ExpectedReport, Finding, Proof
from fp8verify.terms import Precision, Severity, Verdict
from fp8verify.text import enumerated, listed
from fp8verify.thresholds import TOLERANCE
from fp8verify.verdict import headline
from fp8verify.verdict.headline import RankSummary
from fp8verify.verdict.policy import EXPECTED, Policy

EXIT_CODES: dict[Verdict, int] = {
    Verdict.ACTIVE: 0,
    Verdict.PARTIAL: 0,
    Verdict.INACTIVE: 1,
    Verdict.CONTRADICTED: 1,
    Verdict.EMULATED: 1,
    Verdict.INCONCLUSIVE: 3,
}
# Most severe first.
WITHOUT_FP8 = (Verdict.EMULATED, Verdict.CONTRADICTED, Verdict.INACTIVE)


class Opinion(NamedTuple):
    """A verdict, the sentence that gives its reason, and the code of the finding that says it."""

    verdict: Verdict
    reason: str
    cause: str | None = None


class Outcome(NamedTuple):
    """The exit code, whether the run fails whatever that is, and why in a few words."""

    exit_code: int
    fails: bool
    exit_reason: str


def outcome(
    verdict: Verdict, summaries: Iterable[RankSummary], findings: Iterable[Finding], policy: Policy
) -> Outcome:
    """Return the exit code under a policy."""
    errors = list(
        dict.fromkeys(finding.code for finding in findings if finding.severity is Severity.ERROR)
    )
    share = EXPECTED if policy.expected else policy.min_share
    short = share is not None and any(summary.falls_short(policy) for summary in summaries)
    code, why = EXIT_CODES[verdict], f"the verdict is {verdict.value}"
    if not code:
        asked = share if isinstance(share, str) else f"{share or 0:.0%}"
        reasons = {
            f"{listed(errors, 2)} {'is an error' if len(errors) == 1 else 'are errors'}": errors,
            f"--min-share {asked} is not met": short,
            "--strict does not accept PARTIAL": policy.strict and verdict is Verdict.PARTIAL,
        }
        why = next((reason for reason, holds in reasons.items() if holds), "")
        code = int(bool(why))
    if policy.exit_zero and code:
        return Outcome(0, True, f"--exit-zero; without it {code}: {why}")
    if not why and verdict is Verdict.PARTIAL:
        why = "PARTIAL passes without --strict"
    return Outcome(code, code != 0, why)


# ---- one rank


def judge_rank(summary: RankSummary, policy: Policy, proof: Proof | None = None) -> Opinion:
    """Judge one rank: by what settles it, else by its share and by what it falls short of.

    Args:
        summary: the rank.
        policy: the share that is asked for.
        proof: the table that decides, if it is of this rank alone.
    """
    rank = summary.rank
    if rank.settled:
        return Opinion(rank.verdict, rank.reason, rank.cause)
    expected = summary.expectation(policy)
    known = expected or rank.expected
    if expected is not None and not expected.is_met:
        return _short_of(expected, summary, proof)
    if expected is None:
        least, most = summary.bounds()
        short, doubts = summary.share < policy.share, summary.doubts()
        is_cut = short and summary.is_cut and rank.shortfall is None
        if doubts and (least < policy.share <= most or is_cut):
            said = f"{headline.ran(summary)}, but {enumerated(doubts)}"
            return Opinion(Verdict.INCONCLUSIVE, said)
        if short and (rank.shortfall is None or proof is None):
            asked = policy.min_share
            limit = "less than half" if asked is None else f"below --min-share {asked:.0%}"
            return Opinion(Verdict.PARTIAL, headline.below(summary, limit, known))
    if rank.shortfall is not None:
        return Opinion(Verdict.PARTIAL, headline.short(summary, proof, rank.shortfall), rank.cause)
    if summary.is_cut:
        return Opinion(Verdict.INCONCLUSIVE, headline.too_few_whole(summary))
    return Opinion(Verdict.ACTIVE, headline.active(summary, known))


def _short_of(expected: ExpectedReport, summary: RankSummary, proof: Proof | None) -> Opinion:
    """Judge a rank of which less ran in low precision than was to."""
    shortfall = summary.rank.shortfall
    missing = expected.share_of_flops - TOLERANCE - expected.measured_share_of_flops
    hidden = summary.time[Precision.UNKNOWN.value] + summary.opaque_us
    if shortfall is not None:
        said = headline.short(summary, proof, shortfall)
        return Opinion(Verdict.PARTIAL, said, summary.rank.cause)
    said = headline.missed(expected, summary)
    if hidden >= missing * summary.total or summary.is_cut:
        return Opinion(Verdict.INCONCLUSIVE, f"{said}, but {enumerated(summary.doubts())}")
    return Opinion(Verdict.PARTIAL, said)


# ---- all ranks


def judge_run(
    summaries: Sequence[RankSummary], opinions: Sequence[Opinion], policy: Policy
) -> Opinion:
    """Join the opinions on all ranks into the verdict on the run."""
    if len(opinions) == 1:
        return opinions[0]
    ranks = [pair for pair in zip(summaries, opinions, strict=True) if pair[0].rank.judged]
    low = [rank for rank, _ in ranks if rank.low_kernels]
    without = [rank.label for rank, opinion in ranks if opinion.verdict in WITHOUT_FP8]
    if low and without:
        return Opinion(Verdict.PARTIAL, headline.without_low(low, without), "rank-without-fp8")
    # Ranks that cannot be judged come after what no judgment of them could change.
    for verdict in (Verdict.PARTIAL, Verdict.INCONCLUSIVE):
        for rank, opinion in ranks:
            if opinion.verdict is verdict:
                return opinion._replace(reason=f"{rank.label}: {opinion.reason}")
    if not low:
        first = min(ranks, key=lambda pair: WITHOUT_FP8.index(pair[1].verdict))
        said = headline.on_all(
            [rank for rank, _ in ranks], [summary.reason for _, summary in ranks]
        )
        return first[1]._replace(reason=said or f"{first[0].label}: {first[1].reason}")
    # Ranks without FP8 that train count, though no other rank runs layers of their sizes.
    training = [summary for summary in summaries if summary.rank.judged or summary.trains]
    whole = sum(summary.total for summary in training) or 1
    share = sum(summary.share * summary.total for summary in training) / whole
    said = headline.active_ranks(low, training, share)
    verdict = Verdict.ACTIVE if share >= policy.share else Verdict.PARTIAL
    return Opinion(verdict if len(low) < len(training) else Verdict.ACTIVE, said)
