"""The rules: each looks for one kind of fact and yields findings.

A rule reads the facts and what was promised, and yields findings. A finding has the verdict that it
makes of its ranks, if it makes one; `fp8verify.verdict.verdict` depends on nothing else of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.report.model import Finding, Severity
from fp8verify.text import label_of_ranks
from fp8verify.verdict.findings import (
    formats,
    kernels,
    layers,
    ranks,
    recorded,
    scales,
    speed,
    tensors,
)

RankRule = Callable[[RankFacts, Promises], Iterator[Finding]]
RunRule = Callable[[Sequence[RankFacts], Promises], Iterator[Finding]]

# In this order: the first finding with a verdict gives the reason of the rank's.
_RANK_RULES: tuple[RankRule, ...] = (
    recorded.no_kernels,
    recorded.damaged,
    recorded.window_not_whole,
    recorded.no_backward,
    recorded.operators_missing,
    kernels.no_fp8_units,
    kernels.emulated_or_contradicted,
    recorded.steps_without_fp8,
    recorded.fp8_forward_only,
    recorded.steps_without_gemms,
    recorded.no_optimizer_step,
    formats.legs_not_fp8,
    formats.legs_undecided,
    formats.other_than_promised,
    formats.recompute_not_fp8,
    formats.mxfp8_e5m2_gradients,
    layers.converted_not_executed,
    layers.partly_executed,
    layers.pinned_layers_low,
    layers.named_not_fp8,
    recorded.passes_without_fp8,
    formats.all_gather_not_fp8,
    kernels.grouped_high_precision,
    kernels.unknown_gemms,
    kernels.opaque_kernels,
    speed.attention_unfused,
    kernels.conflicts,
    formats.recipe_mismatch,
    speed.fp8_not_paying,
    speed.scalar_all_reduces,
    kernels.beyond_bf16_peak,
    tensors.measured_tensors,
    scales.weight_stale,
    speed.weight_recast,
    scales.kept_scales_off,
    scales.loss_scales_off,
    scales.growing_amax,
    scales.history_unused,
)
# What shows only in all ranks together: before the findings of ranks, and after.
_RUN_RULES: tuple[RunRule, ...] = (
    ranks.ranks_of_other_runs,
    ranks.ranks_without_fp8,
    ranks.ranks_unreadable,
    ranks.ranks_not_observed,
    ranks.windows_differ,
    ranks.shares_differ,
    ranks.slower_rank,
    scales.scales_differ,
    scales.loss_not_finite,
)
_LAYER_RULES: tuple[RunRule, ...] = (
    layers.layers_left_out,
    layers.head_in_fp8,
    layers.outside_autocast,
)


def rank_findings(facts: RankFacts, promises: Promises) -> list[Finding]:
    """Return what the facts of one rank show, in the order of the rules."""
    numbers = facts.rank.numbers
    return [
        replace(finding, ranks=numbers, per_rank=True)
        for rule in _RANK_RULES
        for finding in rule(facts, promises)
    ]


def join_findings(
    facts: Sequence[RankFacts], found: Sequence[Sequence[Finding]], promises: Promises
) -> tuple[Finding, ...]:
    """Return all findings on a run; those of ranks begin with the gravest.

    Args:
        facts: of all ranks.
        found: what `rank_findings` returned for each.
        promises: what the log and the model promised.
    """
    by_severity = [sorted(findings, key=_severity) for findings in found]
    before, after = (
        [finding for rule in rules for finding in rule(facts, promises)]
        for rules in (_RUN_RULES, _LAYER_RULES)
    )
    return (*before, *merge_findings(by_severity), *after)


def _severity(finding: Finding) -> int:
    return list(Severity).index(finding.severity)


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
