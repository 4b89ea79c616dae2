"""The rules: each looks for one kind of fact and yields findings.

A rule is a public function of a module of this folder that takes the evidence of a rank, or that
of all ranks, and what was requested, and yields findings; its row in `RANK_RULES` or `RUN_RULES`
registers it. A finding has the verdict that it makes of its ranks, if it makes one; the judge
depends on nothing else of it. Findings stand in the order of `findings.toml`: the first with
a verdict gives the reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from msgspec.structs import replace

from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.verdict import Finding
from fp8verify.text import label_of_ranks
from fp8verify.verdict.clauses import optional
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.findings import (
    formats,
    kernels,
    layers,
    operators,
    scales,
    speed,
    tensors,
    traces,
)
from fp8verify.verdict.findings_table import place_of, viewed

RankRule: TypeAlias = Callable[[RankEvidence, Requested], Iterator[Finding]]
RunRule: TypeAlias = Callable[[Sequence[RankEvidence], Requested], Iterator[Finding]]

# Of findings of one code, those of the first rule stand first.
RANK_RULES: Final[tuple[RankRule, ...]] = (
    layers.recomputed_outside_fp8,
    formats.other_than_requested,
    formats.recipe_mismatch,
    formats.all_gather_not_fp8,
    formats.mxfp8_e5m2_gradients,
    layers.pinned_layers_low,
    layers.layers_left_out,
    layers.left_out_of_one_block,
    layers.sizes_left_out,
    layers.head_in_fp8,
    layers.outside_autocast,
    kernels.without_fp8,
    kernels.no_fp8_units,
    kernels.grouped_high_precision,
    kernels.unknown_gemms,
    kernels.opaque_kernels,
    kernels.conflicts,
    kernels.beyond_bf16_peak,
    kernels.of_older_gpus,
    traces.no_kernels,
    traces.damaged,
    traces.window_not_whole,
    traces.no_backward,
    traces.fp8_forward_only,
    traces.steps_without_gemms,
    traces.no_optimizer_step,
    operators.operators_missing,
    scales.kept_scales_off,
    scales.history_unused,
    scales.loss_scales_off,
    scales.growing_amax,
    speed.fp8_not_paying,
    speed.fp8_gemm_slow,
    speed.attention_unfused,
    speed.scalar_all_reduces,
    speed.weight_recast,
    tensors.measured_tensors,
    tensors.not_finite,
    tensors.outlier_layers,
)
RUN_RULES: Final[tuple[RunRule, ...]] = (
    traces.ranks_of_other_runs,
    traces.ranks_not_observed,
    scales.scales_differ,
    scales.loss_not_finite,
    speed.not_compiled,
    speed.known_warnings,
)


def rank_findings(rank: RankEvidence, requested: Requested) -> list[Finding]:
    """Return what the evidence of one rank shows, most severe first."""
    found: list[Finding] = []
    for rule in RANK_RULES:
        for finding in rule(rank, requested):
            found.append(replace(finding, ranks=rank.numbers, per_rank=True))
    return sorted(found, key=place_of)


def join_findings(
    ranks: Sequence[RankEvidence],
    of_ranks: Sequence[Sequence[Finding]],
    requested: Requested,
) -> tuple[Finding, ...]:
    """Return all findings on a run, most severe first.

    Args:
        ranks: the evidence of all ranks.
        of_ranks: what `rank_findings` returned for each.
        requested: what the log and the model request.
    """
    found: list[Finding] = []
    for rule in RUN_RULES:
        found += rule(ranks, requested)
    slowest = _of_the_slowest(ranks, of_ranks)
    for merged in merge_findings(of_ranks):
        found.append(_with_words_of(slowest, merged))
    return tuple(sorted(found, key=place_of))


def _of_the_slowest(
    ranks: Sequence[RankEvidence], of_ranks: Sequence[Sequence[Finding]]
) -> Finding | None:
    """Return what the rank that gains least says of its speed, as the line of the speed does."""
    found: list[tuple[float, Finding]] = []
    has_training = any(rank.trace.backward for rank in ranks)
    for rank, findings in zip(ranks, of_ranks, strict=True):
        figures = rank.gain.payoff
        if has_training and not rank.trace.backward:
            continue  # a worker that generates
        for finding in filter(_is_joined, findings):
            if figures is not None:
                gain = figures.step_speedup_estimate or figures.speedup_estimate
                found.append((gain or 0.0, finding))
    if not found:
        return None
    _, slowest = min(found, key=itemgetter(0))
    return slowest


def _is_joined(found: Finding) -> bool:
    return viewed(found, "joined")


def _with_words_of(slowest: Finding | None, merged: Finding) -> Finding:
    """Return a finding on the speed of several ranks with the words of the slowest, and its label.

    Any other stays as it is.
    """
    if slowest is None or not slowest.ranks or not _is_joined(merged):
        return merged
    if slowest.message == merged.message:
        return merged
    whose = label_of_ranks(slowest.ranks)
    return replace(merged, message=f"{slowest.message} ({whose})", hint=slowest.hint)


def merge_findings(of_ranks: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Join the findings of each rank to one list.

    Of findings that differ only in figures the first stays and takes the ranks and layers of all;
    its message says whose figures it has.
    """
    alike: dict[tuple[object, int], list[Finding]] = defaultdict(list)
    for findings in of_ranks:
        seen: Counter[object] = Counter()
        for finding in findings:
            kind = (finding.code, finding.severity, _cause_of(finding))
            alike[kind, seen[kind]].append(finding)
            seen[kind] += 1
    return list(map(_merged, alike.values()))


def _cause_of(found: Finding) -> str:
    """Return what findings of one code and one cause share.

    Ranks of one program have one cause of their speed, though figures may be near a threshold.
    """
    return optional(found.hint, when=not _is_joined(found))


def _merged(group: Sequence[Finding]) -> Finding:
    first = group[0]
    ranks: dict[int, None] = {}
    layers: dict[str, None] = {}
    messages = set()
    for finding in group:
        ranks.update(dict.fromkeys(finding.ranks))
        layers.update(dict.fromkeys(finding.layers))
        messages.add(finding.message)
    whose = f" ({label_of_ranks(first.ranks)})"
    has_figures = first.ranks and len(messages) > 1
    message = first.message + optional(whose, when=has_figures)
    return replace(first, message=message, ranks=tuple(ranks), layers=tuple(layers))
