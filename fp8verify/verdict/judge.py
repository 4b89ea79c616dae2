"""The verdict of a rank and of a run under a policy: that of the first rule that holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from fp8verify.model.report import AnyReport
from fp8verify.model.verdict import Proof
from fp8verify.terms import Severity, Verdict
from fp8verify.text import enumerated, listed
from fp8verify.verdict import headline
from fp8verify.verdict.assessment import TRAINING, WITHOUT_FP8, Opinion
from fp8verify.verdict.clauses import Row, first_said, first_that_holds, optional
from fp8verify.verdict.headline import RankSummary
from fp8verify.verdict.policy import Policy

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
    summaries = [
        RankSummary(rank, report.measure, alone=alone) for rank in report.ranks
    ]
    proof = report.proof if len(summaries) == 1 else None
    opinions = [judge_rank(summary, policy, proof) for summary in summaries]
    ranks = zip(report.ranks, opinions, strict=True)
    judged = replace(
        report,
        **judge_run(summaries, opinions, policy)._asdict(),
        ranks=tuple(replace(rank, **opinion._asdict()) for rank, opinion in ranks),
    )
    return with_exit_code(judged, summaries, policy)


def with_exit_code(
    report: AnyReport,
    summaries: Iterable[RankSummary],
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
    passes = optional(
        "PARTIAL passes without --strict", when=verdict is Verdict.PARTIAL
    )
    return replace(report, exit_code=code, fails=fails, exit_reason=why or passes)


def _why_it_fails(
    report: AnyReport,
    summaries: Iterable[RankSummary],
    policy: Policy,
) -> Iterator[Row]:
    """Yield why a run fails whose verdict passes."""
    grave = (x for x in report.findings if x.severity is Severity.ERROR)
    errors = list(dict.fromkeys(finding.code for finding in grave))
    are_errors = optional("is an error", when=len(errors) == 1) or "are errors"
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
Rules: TypeAlias = tuple[tuple[Callable[[T], bool], Callable[[T], Opinion]], ...]


def _opinion(case: T, rules: Rules[T]) -> Opinion:
    """Return the opinion of the first rule that holds of a case, else of the last."""
    *others, (_, last) = rules
    rows = ((holds(case), opine) for holds, opine in others)
    return first_that_holds(rows, last)(case)


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
        self._known = self._expected or summary.rank.expected
        self._has_shortfall = summary.rank.shortfall is not None

    def is_settled(self) -> bool:
        """Whether its findings settle it, whatever share is required."""
        return self._rank.settled

    def settled(self) -> Opinion:
        """As its findings say."""
        return Opinion(self._rank.verdict, self._rank.reason, self._rank.cause)

    def is_open(self) -> bool:
        """Whether what is not known of it decides whether its share suffices."""
        least, most = self._summary.bounds(self._policy)
        may_suffice = least < self._policy.share <= most
        is_cut = self._is_below_share() and self._summary.is_cut
        is_told = self._expected is not None or self._has_shortfall
        is_doubted = not is_told and bool(self._summary.doubts())
        return is_doubted and (may_suffice or is_cut)

    def open(self) -> Opinion:
        """Neither ACTIVE nor PARTIAL."""
        doubts = enumerated(self._summary.doubts())
        said = f"{headline.ran(self._summary)}, but {doubts}"
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
        if asked is None:
            limit = self._summary.less_than_half()
        else:
            limit = f"below --min-share {asked:.0%}"
        said = headline.below(self._summary, limit, self._known)
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
        said = headline.active(self._summary, self._known)
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
        self._training = [one for one in summaries if _counts(one)]
        self._forward_only = [one for one in summaries if one not in self._training]
        self._not_counted = headline.that_do_not_count(self._forward_only)
        pairs = zip(summaries, opinions, strict=True)
        self._ranks = [pair for pair in pairs if pair[0].rank.judged]
        self._low = [rank for rank, _ in self._ranks if rank.low_kernels]

    def is_one(self) -> bool:
        """Whether it has one rank alone."""
        return len(self._opinions) == 1

    def as_its_rank(self) -> Opinion:
        """As the opinion on that rank."""
        return self._opinions[0]

    @property
    def _without(self) -> list[str]:
        """The ranks without FP8."""
        return [
            one.rank.label
            for one, opinion in self._ranks
            if opinion.verdict in WITHOUT_FP8
        ]

    def is_split(self) -> bool:
        """Whether FP8 ran on some ranks alone."""
        return bool(self._low and self._without)

    def split(self) -> Opinion:
        """Some ranks lack all of it."""
        said = headline.without_low(self._low, self._without)
        reason = f"{said}{self._not_counted}"
        return Opinion(Verdict.PARTIAL, reason, "rank-without-fp8")

    @property
    def _open(self) -> list[tuple[RankSummary, Opinion]]:
        """The ranks that are not whole: those that cannot be judged last.

        No judgment of these could change that of the others.
        """
        return [*self._with(Verdict.PARTIAL), *self._with(Verdict.INCONCLUSIVE)]

    def _with(self, verdict: Verdict) -> list[tuple[RankSummary, Opinion]]:
        return [pair for pair in self._ranks if pair[1].verdict is verdict]

    def has_open(self) -> bool:
        """Whether a rank lacks a part, or cannot be judged."""
        return bool(self._open)

    def as_first_open(self) -> Opinion:
        """As the first of these ranks."""
        rank, opinion = self._open[0]
        said = f"{rank.rank.label}: {opinion.reason}{self._not_counted}"
        return opinion._replace(reason=said)

    def is_without(self) -> bool:
        """Whether FP8 ran on no rank."""
        return not self._low

    def without(self) -> Opinion:
        """As the gravest of the opinions."""
        ranks = self._ranks
        rank, gravest = min(ranks, key=lambda pair: WITHOUT_FP8.index(pair[1].verdict))
        where = (
            (
                len({opinion.reason for _, opinion in ranks}) == 1,
                f"on each of the {len(ranks)} ranks, ",
            ),
            (True, f"{rank.rank.label}: "),
        )
        return gravest._replace(reason=f"{first_said(where)}{gravest.reason}")

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
    return one.rank.judged or any(row.leg in TRAINING for row in one.rank.legs)


_RUN_RULES: Final[Rules[_Run]] = (
    (_Run.is_one, _Run.as_its_rank),
    (_Run.is_split, _Run.split),
    (_Run.has_open, _Run.as_first_open),
    (_Run.is_without, _Run.without),
    (_Run.is_whole, _Run.active),
)
