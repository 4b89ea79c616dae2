"""The verdict of a rank and of a run under a policy: that of the first rule that holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import filterfalse
from typing import Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from fp8verify.model.report import AnyReport
from fp8verify.model.verdict import Proof
from fp8verify.terms import Severity, Verdict
from fp8verify.text import enumerated, listed
from fp8verify.verdict import headline
from fp8verify.verdict.assessment import WITHOUT_FP8, Opinion
from fp8verify.verdict.clauses import (
    Row,
    by_number,
    first_said,
    first_that_holds,
)
from fp8verify.verdict.policy import Policy
from fp8verify.verdict.rank_summary import RankSummary

T = TypeVar("T")

EXIT_CODES: dict[Verdict, int] = {
    Verdict.ACTIVE: 0,
    Verdict.PARTIAL: 0,
    **dict.fromkeys(reversed(WITHOUT_FP8), 1),
    Verdict.INCONCLUSIVE: 3,
}


def judge(report: AnyReport, policy: Policy) -> AnyReport:
    """Return a report with the verdicts and the exit code that a policy makes of it.

    What a baseline added to the findings stays, and still fails the run.
    """
    alone = len(report.ranks) == 1
    proof = report.proof if alone else None
    summaries = []
    opinions = []
    ranks = []
    for rank in report.ranks:
        summary = RankSummary(rank, report.measure, alone=alone)
        opinion = judge_rank(summary, policy, proof)
        summaries.append(summary)
        opinions.append(opinion)
        judged_rank = replace(rank, **opinion._asdict())
        ranks.append(judged_rank)
    of_run = judge_run(summaries, opinions, policy)
    judged = replace(report, **of_run._asdict(), ranks=tuple(ranks))
    return with_exit_code(judged, summaries, policy)


def with_exit_code(
    report: AnyReport,
    summaries: Sequence[RankSummary],
    policy: Policy,
) -> AnyReport:
    """Return a report with the exit code of its verdict and findings under a policy."""
    verdict = report.verdict
    code = EXIT_CODES[verdict]
    why = f"the verdict is {verdict.value}"
    if not code:
        why = first_said(_why_it_fails(report, summaries, policy))
        code = int(bool(why))
    fails = code != 0
    if policy.exit_zero and fails:
        why = f"--exit-zero; without it {code}: {why}"
        code = 0
    if verdict is Verdict.PARTIAL and not why:
        why = headline.passes(summaries)
    return replace(report, exit_code=code, fails=fails, exit_reason=why)


def _why_it_fails(
    report: AnyReport,
    summaries: Iterable[RankSummary],
    policy: Policy,
) -> Iterator[Row]:
    """Yield why a run fails whose verdict passes."""
    codes = [x.code for x in report.findings if x.severity is Severity.ERROR]
    errors = list(dict.fromkeys(codes))
    are_errors = by_number(errors, "is an error", "are errors")
    yield errors, f"{listed(errors, 2)} {are_errors}"
    if policy.asked:
        is_short = any(summary.falls_short(policy) for summary in summaries)
        yield is_short, f"--min-share {policy.asked} is not met"
    is_strict = policy.strict and report.verdict is Verdict.PARTIAL
    yield is_strict, "--strict does not accept PARTIAL"


# ---- one rank


def judge_rank(
    summary: RankSummary,
    policy: Policy,
    proof: Proof | None = None,
) -> Opinion:
    """Judge one rank: by what settles it, else by its share and by what it falls short of.

    Args:
        summary: the rank.
        policy: the share that is asked for.
        proof: the table that decides, if it is of this rank alone.
    """
    return _opinion(_Case(summary, policy, proof), _RANK_RULES)


# What may hold of a case, and the opinion that it gives.
Rule: TypeAlias = tuple[Callable[[T], bool], Callable[[T], Opinion]]
Rules: TypeAlias = tuple[Rule[T], ...]


def _opinion(case: T, rules: Rules[T]) -> Opinion:
    """Return the opinion of the first rule that holds of a case, else of the last."""
    *others, (_, last) = rules
    rows = ((holds(case), opinion_of) for holds, opinion_of in others)
    opinion_of = first_that_holds(rows, last)
    return opinion_of(case)


class _Case:
    """One rank under a policy: what holds of it, and the opinion that each of that gives."""

    def __init__(
        self, summary: RankSummary, policy: Policy, proof: Proof | None
    ) -> None:
        self._summary = summary
        self._policy = policy
        self._proof = proof
        self._rank = summary.rank
        self._expected = summary.expectation(policy)
        self._has_shortfall = summary.rank.shortfall is not None

    def is_settled(self) -> bool:
        """Whether its findings settle it, whatever share is required."""
        return self._rank.settled

    def settled(self) -> Opinion:
        """As its findings say."""
        rank = self._rank
        return Opinion(rank.verdict, rank.reason, rank.cause)

    def is_open(self) -> bool:
        """Whether what is not known of it decides whether its share suffices."""
        if self._expected is not None or self._has_shortfall:
            return False
        least, most = self._summary.bounds(self._policy)
        may_suffice = least < self._policy.share <= most
        is_cut = self._is_below_share() and self._summary.is_cut
        doubts = self._summary.doubts()
        return bool(doubts) and (may_suffice or is_cut)

    def open(self) -> Opinion:
        """Neither ACTIVE nor PARTIAL."""
        doubts = enumerated(self._summary.doubts())
        said = f"{headline.ran(self._summary, in_time=True)}, but {doubts}"
        return Opinion(Verdict.INCONCLUSIVE, said)

    def _is_below_share(self) -> bool:
        share = self._summary.share_of(self._policy)
        return self._expected is None and share < self._policy.share

    def is_below(self) -> bool:
        """Whether its share does not suffice, and no table says more of that."""
        has_proof = self._has_shortfall and self._proof is not None
        return self._is_below_share() and not has_proof

    def below(self) -> Opinion:
        """As its share says."""
        asked = self._policy.min_share
        limit = "less than half"
        if asked is not None:
            limit = f"below --min-share {asked:.0%}"
        in_time = asked is not None
        said = headline.below(self._summary, limit, in_time=in_time)
        return Opinion(Verdict.PARTIAL, said)

    def is_short(self) -> bool:
        """Whether a part of it lacks low precision."""
        return self._has_shortfall

    def short(self) -> Opinion:
        """As what it falls short of says."""
        shortfall = self._rank.shortfall or ""
        said = headline.short(self._summary, self._proof, shortfall)
        return Opinion(Verdict.PARTIAL, said, self._rank.cause)

    def is_cut(self) -> bool:
        """Whether too few of its steps are whole."""
        return self._summary.is_cut

    def cut(self) -> Opinion:
        """Too little of it is known."""
        said = headline.too_few_whole(self._summary)
        return Opinion(Verdict.INCONCLUSIVE, said)

    def misses(self) -> bool:
        """Whether less ran in low precision than was expected, and nothing says where.

        Nothing known leads here: the part that lacks it, or the count of its layers, is
        a shortfall.
        """
        return self._expected is not None and not self._expected.is_met

    def missed(self) -> Opinion:
        """As the shares say."""
        assert self._expected is not None  # noqa: S101 - else nothing was missed
        said = headline.missed(self._summary, self._expected)
        return Opinion(Verdict.INCONCLUSIVE, said)

    def is_met(self) -> bool:
        """Whether it ran what was asked of it: so does what no other rule holds of."""
        return True

    def active(self) -> Opinion:
        """Nothing is short."""
        in_time = self._policy.min_share is not None
        said = headline.active(self._summary, in_time=in_time)
        return Opinion(Verdict.ACTIVE, said)


_RANK_RULES: Final[Rules[_Case]] = (
    (_Case.is_settled, _Case.settled),
    (_Case.is_open, _Case.open),
    (_Case.is_below, _Case.below),
    (_Case.is_short, _Case.short),
    (_Case.is_cut, _Case.cut),
    (_Case.misses, _Case.missed),
    (_Case.is_met, _Case.active),
)


# ---- all ranks


def judge_run(
    summaries: Sequence[RankSummary],
    opinions: Sequence[Opinion],
    policy: Policy,
) -> Opinion:
    """Join the opinions on all ranks into the verdict on the run."""
    return _opinion(_Run(summaries, opinions, policy), _RUN_RULES)


class _JudgedRank(NamedTuple):
    """A rank, and the opinion on it."""

    summary: RankSummary
    opinion: Opinion


def _is_judged(one: _JudgedRank) -> bool:
    """Whether the verdict on the run is about a rank."""
    return one.summary.rank.judged


def _gravity(one: _JudgedRank) -> int:
    """Return where a verdict without FP8 stands, the gravest first."""
    return WITHOUT_FP8.index(one.opinion.verdict)


class _Run:
    """All ranks: what holds of them, and the opinion on the run that each of that gives."""

    def __init__(
        self,
        summaries: Sequence[RankSummary],
        opinions: Sequence[Opinion],
        policy: Policy,
    ) -> None:
        self._opinions = opinions
        self._policy = policy
        # Ranks without FP8 that train count, though something excuses them.
        self._training = list(filter(_counts, summaries))
        self._forward_only = list(filterfalse(_counts, summaries))
        self._not_counted = headline.that_do_not_count(self._forward_only)
        ranks = map(_JudgedRank, summaries, opinions)
        self._ranks = list(filter(_is_judged, ranks))
        judged = [one.summary for one in self._ranks]
        self._low = [summary for summary in judged if summary.low_kernels]

    def is_one(self) -> bool:
        """Whether it has one rank alone."""
        return len(self._opinions) == 1

    def as_its_rank(self) -> Opinion:
        """As the opinion on that rank."""
        return self._opinions[0]

    @property
    def _without(self) -> list[str]:
        """The ranks without FP8."""
        labels = []
        for one in self._ranks:
            if one.opinion.verdict in WITHOUT_FP8:
                labels.append(one.summary.rank.label)
        return labels

    def is_split(self) -> bool:
        """Whether FP8 ran on some ranks alone."""
        return bool(self._low and self._without)

    def split(self) -> Opinion:
        """Some ranks lack all of it."""
        said = headline.without_low(self._low, self._without)
        reason = f"{said}{self._not_counted}"
        return Opinion(Verdict.PARTIAL, reason, "rank-without-fp8")

    @property
    def _open(self) -> list[_JudgedRank]:
        """The ranks that are not whole: those that cannot be judged last.

        No judgment of these could change that of the others.
        """
        lacking = self._with(Verdict.PARTIAL)
        unjudged = self._with(Verdict.INCONCLUSIVE)
        return [*lacking, *unjudged]

    def _with(self, verdict: Verdict) -> list[_JudgedRank]:
        return [one for one in self._ranks if one.opinion.verdict is verdict]

    def has_open(self) -> bool:
        """Whether a rank lacks a part, or cannot be judged."""
        return bool(self._open)

    def as_first_open(self) -> Opinion:
        """As the first of these ranks."""
        first = self._open[0]
        label = first.summary.rank.label
        said = f"{label}: {first.opinion.reason}{self._not_counted}"
        return first.opinion._replace(reason=said)

    def is_without(self) -> bool:
        """Whether FP8 ran on no rank."""
        return not self._low

    def without(self) -> Opinion:
        """As the gravest of the opinions."""
        gravest = min(self._ranks, key=_gravity)
        reasons = {one.opinion.reason for one in self._ranks}
        where = f"{gravest.summary.rank.label}: "
        if len(reasons) == 1:
            where = f"on each of the {len(self._ranks)} ranks, "
        reason = f"{where}{gravest.opinion.reason}"
        return gravest.opinion._replace(reason=reason)

    def is_whole(self) -> bool:
        """Whether nothing is short: of what no other rule holds of."""
        return True

    def active(self) -> Opinion:
        """Nothing is short, unless ranks that something excuses take most of the time."""
        training = self._training
        whole = 0.0
        low = 0.0
        for one in training:
            whole += one.total
            low += one.share * one.total
        share = low / (whole or 1)
        has_excused = len(self._low) < len(training)
        is_short = has_excused and share < self._policy.share
        said = headline.active_ranks(self._low, training, self._forward_only, share)
        return Opinion(Verdict.PARTIAL if is_short else Verdict.ACTIVE, said)


def _counts(one: RankSummary) -> bool:
    """Whether a rank is judged, or trains."""
    return one.rank.judged or one.rank.may_train


_RUN_RULES: Final[Rules[_Run]] = (
    (_Run.is_one, _Run.as_its_rank),
    (_Run.is_split, _Run.split),
    (_Run.has_open, _Run.as_first_open),
    (_Run.is_without, _Run.without),
    (_Run.is_whole, _Run.active),
)
