"""What the verdict on one rank depends on: its counts and shares, and what was expected of it."""

from __future__ import annotations

from fp8verify.model.report import RankReport
from fp8verify.model.verdict import CountedGemms, ExpectedReport
from fp8verify.terms import Precision, low_precision_count
from fp8verify.text import MEASURES
from fp8verify.thresholds import HALF, NEGLIGIBLE
from fp8verify.verdict.clauses import all_that_hold
from fp8verify.verdict.policy import Policy


class RankSummary:
    """What the verdict on one rank depends on, apart from the share that is required.

    Attributes:
        rank: its report; the verdict in it is believed only if it is settled.
        alone: whether the run has no other rank.
        measure: what the work of its kernels is measured as: time or FLOPs.
        time: µs in GEMMs of layers by precision class.
        kernels: launches of GEMMs of layers by precision class.
        low_kernels: those in FP8 or FP4.
        high_us: µs of what ran in no low precision.
        share: share of the time of the layers' GEMMs in FP8 or FP4.
        flops: share of their FLOPs, where the verdict rests on it.
        is_met: whether as much ran so as was expected, where that is known.
        left_out: the layers that were to stay in high precision.
        counted: how many of its GEMMs were to run in FP8 or FP4, and how many of these did not;
            none where that is not known.
        has_others: whether GEMMs ran that the verdict is not about.
        opaque_us: µs in unrecognized kernels; 0 for little.
        cut_steps: steps that a damaged trace does not show whole.
        is_cut: whether they are half of all steps or more.
    """

    def __init__(self, rank: RankReport, measure: str, *, alone: bool = True) -> None:
        """Subtract from all GEMMs those that the verdict is not about.

        Args:
            rank: its report.
            measure: time or FLOPs.
            alone: whether the run has no other rank.
        """
        self.alone = alone
        layers = rank.layer_gemm
        self.rank = rank
        self.measure = MEASURES[measure].name
        self.time = layers.time_us
        self.kernels = layers.kernels
        self.total = sum(self.time.values())
        self.low_kernels = low_precision_count(self.kernels)
        self.share = round(layers.low_precision_share_of_time or 0.0, 6)
        self.high_us = self.total * (1 - self.share)
        others_ns = rank.attention_gemm.total_ns + rank.untrained_gemm.total_ns
        self.has_others = others_ns > 0
        possible_us = self.total + rank.opaque_us
        is_little = rank.opaque_us < NEGLIGIBLE * possible_us
        self.opaque_us = 0.0 if is_little else rank.opaque_us
        self.cut_steps = sum(not step.whole for step in rank.steps)
        steps = max(1, len(rank.steps))
        self.is_cut = 2 * self.cut_steps >= steps
        self._compare()

    def _compare(self) -> None:
        """Keep what was expected of it, and what of that did not run."""
        rank = self.rank
        low = rank.low_share
        is_less_in_flops = low is not None and low < HALF <= self.share
        self.flops = low if is_less_in_flops else None
        self.is_met = False
        self.left_out: tuple[str, ...] = ()
        if rank.expected is not None:
            self.flops = rank.expected.measured_share_of_flops
            self.is_met = rank.expected.is_met
            self.left_out = rank.expected.left_out
        self.counted = rank.counted or _NOT_COUNTED

    @property
    def lacks_most(self) -> bool:
        """Whether most lacks of what was expected, so far as it is counted."""
        return self.counted.lacking > HALF * self.counted.expected

    def share_of(self, policy: Policy) -> float:
        """Return the share that a policy is about: of time if it asks for one, else of work."""
        return self._shares(policy)[0]

    def _shares(self, policy: Policy) -> tuple[float, float]:
        """Return the shares in low and in unknown precision: of what a policy is about."""
        low = self.rank.low_share
        if policy.min_share is None and low is not None:
            return low, self.rank.unknown_share
        return self.share, self._unknown_share

    @property
    def _unknown_share(self) -> float:
        return self._of_total(self.time[Precision.UNKNOWN.value])

    def bounds(self, policy: Policy) -> tuple[float, float]:
        """Return the share if all that is not known is in high precision, and if it is in low."""
        low, unknown = self._shares(policy)
        opaque = self._of_total(self.opaque_us)
        # All that may be GEMMs of layers, without what may be others'.
        most_gemms = 1 + opaque
        least_gemms = most_gemms - self._of_total(self.rank.unplaced_us)
        most = 1.0
        if least_gemms > 0:
            most = round((low + unknown + opaque) / least_gemms, 6)
        return low / most_gemms, most

    def _of_total(self, time_us: float) -> float:
        """Return a time over that of all GEMMs of layers."""
        return time_us / (self.total or 1)

    def expectation(self, policy: Policy) -> ExpectedReport | None:
        """Return what was to run in low precision, if the rank is judged by it."""
        expected = self.rank.expected
        if expected is None or policy.min_share is not None:
            return None
        if expected.decides or policy.expected:
            return expected
        return None

    def falls_short(self, policy: Policy) -> bool:
        """Whether less ran in low precision than was expected, or required, or else than half."""
        expected = self.expectation(policy)
        if expected is not None:
            return not expected.is_met
        return self.share_of(policy) < policy.share

    def doubts(self) -> list[str]:
        """Say what of the rank is not known."""
        unknown = self._unknown_share
        times = self._of_total(self.opaque_us)
        rows = (
            (unknown, f"kernels of unknown precision took {unknown:.0%} of it"),
            (
                times,
                f"unrecognized kernels took {times:.2g} times as long as all GEMMs",
            ),
            (self.rank.unplaced_us, _MAY_BE_OTHERS),
            (self.is_cut, "the trace is cut off"),
        )
        return list(all_that_hold(rows))


_NOT_COUNTED = CountedGemms(expected=0, lacking=0)
_MAY_BE_OTHERS = (
    "the others may be the optimizer's or attention's (the trace has no operators)"
)
