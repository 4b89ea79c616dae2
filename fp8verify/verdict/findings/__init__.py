"""The rules: each looks for one kind of fact and yields findings.

A rule reads the facts and what was promised, and yields findings. It gives a finding the verdict
that it makes of its ranks, if it makes one; `fp8verify.verdict.verdict` needs no other word of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.report.model import Finding, Severity
from fp8verify.text import label_of_ranks
from fp8verify.verdict.findings.attention import attention_unfused
from fp8verify.verdict.findings.communication import all_gather_not_fp8, scalar_all_reduces
from fp8verify.verdict.findings.formats import (
    gradients_in_e5m2,
    higher_than_promised,
    lower_than_promised,
    recompute_not_fp8,
)
from fp8verify.verdict.findings.kernels import (
    beyond_bf16_peak,
    conflicts,
    no_fp8_units,
    opaque_kernels,
    unknown_gemms,
)
from fp8verify.verdict.findings.layers import (
    converted_not_executed,
    head_in_fp8,
    layers_left_out,
    outside_autocast,
)
from fp8verify.verdict.findings.legs import legs_not_fp8, legs_undecided
from fp8verify.verdict.findings.named import named_layers_not_fp8, named_legs_not_fp8
from fp8verify.verdict.findings.numerics.loss import loss_not_finite
from fp8verify.verdict.findings.numerics.scales import (
    amax_spikes,
    delayed_saturates,
    history_unused,
    mxfp8_e5m2_gradients,
    scale_stuck,
    scale_unstable,
    scales_differ,
)
from fp8verify.verdict.findings.numerics.tensors import measured_tensors
from fp8verify.verdict.findings.numerics.weights import weight_recast, weight_stale
from fp8verify.verdict.findings.partial_conversion import (
    converted_partly_executed,
    counted_partly_executed,
    pinned_layers_low,
)
from fp8verify.verdict.findings.payoff import fp8_not_paying, gpu_waits, small_gemms
from fp8verify.verdict.findings.promised import (
    emulated_or_contradicted,
    grouped_high_precision,
    recipe_mismatch,
)
from fp8verify.verdict.findings.ranks import (
    ranks_not_observed,
    ranks_of_other_runs,
    ranks_unreadable,
    ranks_without_fp8,
    shares_differ,
    slower_rank,
    windows_differ,
)
from fp8verify.verdict.findings.trace import damaged, no_gpu_kernels, no_trace, window_not_whole
from fp8verify.verdict.findings.windows import (
    fp8_forward_only,
    no_backward,
    no_optimizer_step,
    passes_without_fp8,
    steps_without_fp8,
    steps_without_gemms,
)
from fp8verify.verdict.findings.without_operators import operators_missing

__all__ = ["join_findings", "rank_findings"]

RankRule = Callable[[RankFacts, Promises], Iterator[Finding]]
RunRule = Callable[[Sequence[RankFacts], Promises], Iterator[Finding]]

# In this order: the first finding with a verdict gives the reason of the rank's.
_RANK_RULES: tuple[RankRule, ...] = (
    no_trace,
    no_gpu_kernels,
    damaged,
    window_not_whole,
    no_backward,
    operators_missing,
    no_fp8_units,
    emulated_or_contradicted,
    steps_without_fp8,
    fp8_forward_only,
    steps_without_gemms,
    no_optimizer_step,
    legs_not_fp8,
    legs_undecided,
    higher_than_promised,
    lower_than_promised,
    recompute_not_fp8,
    gradients_in_e5m2,
    converted_not_executed,
    converted_partly_executed,
    counted_partly_executed,
    pinned_layers_low,
    named_layers_not_fp8,
    named_legs_not_fp8,
    passes_without_fp8,
    all_gather_not_fp8,
    grouped_high_precision,
    unknown_gemms,
    opaque_kernels,
    attention_unfused,
    conflicts,
    recipe_mismatch,
    fp8_not_paying,
    gpu_waits,
    small_gemms,
    scalar_all_reduces,
    beyond_bf16_peak,
    measured_tensors,
    weight_stale,
    weight_recast,
    scale_stuck,
    mxfp8_e5m2_gradients,
    delayed_saturates,
    amax_spikes,
    scale_unstable,
    history_unused,
)
# What shows only when all ranks are looked at together: before the findings of ranks, and after.
_RUN_RULES: tuple[RunRule, ...] = (
    ranks_of_other_runs,
    ranks_without_fp8,
    ranks_unreadable,
    ranks_not_observed,
    windows_differ,
    shares_differ,
    slower_rank,
    scales_differ,
    loss_not_finite,
)
_LAYER_RULES: tuple[RunRule, ...] = (layers_left_out, head_in_fp8, outside_autocast)


def rank_findings(facts: RankFacts, promises: Promises) -> list[Finding]:
    """Return what the facts of one rank show, in the order of the rules."""
    ranks = facts.rank.numbers
    return [
        replace(finding, ranks=ranks, per_rank=True)
        for rule in _RANK_RULES
        for finding in rule(facts, promises)
    ]


def join_findings(
    ranks: Sequence[RankFacts], found: Sequence[Sequence[Finding]], promises: Promises
) -> tuple[Finding, ...]:
    """Return all findings on a run; those of ranks begin with the gravest.

    Args:
        ranks: the facts of all ranks.
        found: what `rank_findings` returned for each.
        promises: what the log and the model promised.
    """
    by_severity = [sorted(findings, key=_severity) for findings in found]
    before, after = (
        [finding for rule in rules for finding in rule(ranks, promises)]
        for rules in (_RUN_RULES, _LAYER_RULES)
    )
    return (*before, *merge_findings(by_severity), *after)


_Kind = tuple[str, Severity, str]
# Ranks of one program have one cause, though their figures may be near a threshold.
_ONE_CAUSE = frozenset({"fp8-not-paying"})


def merge_findings(found: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Join the findings of each rank to one list.

    Of findings that differ only in figures the first stays and takes the ranks and layers of all;
    its message says whose figures it has.
    """
    alike: dict[tuple[_Kind, int], list[Finding]] = defaultdict(list)
    for findings in found:
        seen: Counter[_Kind] = Counter()
        for finding in findings:
            cause = "" if finding.code in _ONE_CAUSE else finding.hint
            kind = (finding.code, finding.severity, cause)
            alike[kind, seen[kind]].append(finding)
            seen[kind] += 1
    return list(map(_merged, alike.values()))


def _merged(group: Sequence[Finding]) -> Finding:
    first = group[0]
    whose = f" ({label_of_ranks(first.ranks)})" if first.ranks else ""
    return replace(
        first,
        message=first.message + whose * (len({one.message for one in group}) > 1),
        ranks=tuple(rank for finding in group for rank in finding.ranks),
        layers=tuple(dict.fromkeys(layer for finding in group for layer in finding.layers)),
    )


def _severity(finding: Finding) -> int:
    return list(Severity).index(finding.severity)
