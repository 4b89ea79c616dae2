"""The rules: each looks for one kind of fact and yields findings.

A rule is a public function of a module of this folder that takes the evidence of a rank, or that
of all ranks, and the promises, and yields findings; its row in `RANK_RULES` or `RUN_RULES`
registers it. A finding has the verdict that it makes of its ranks, if it makes one; the judge
depends on nothing else of it. Findings stand in the order of `findings.toml`: the first with
a verdict gives the reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.verdict import Finding
from fp8verify.text import label_of_ranks
from fp8verify.verdict.expected import Promises
from fp8verify.verdict.findings import kernels, layers, recorded, scales, speed, tensors
from fp8verify.verdict.findings_table import place_of, viewed

RankRule: TypeAlias = Callable[[RankEvidence, Promises], Iterator[Finding]]
RunRule: TypeAlias = Callable[[Sequence[RankEvidence], Promises], Iterator[Finding]]

# Of findings of one code, those of the first rule stand first.
RANK_RULES: Final[tuple[RankRule, ...]] = (
    layers.recomputed_outside_fp8, layers.other_than_promised, layers.recipe_mismatch,
    layers.all_gather_not_fp8, layers.mxfp8_e5m2_gradients,
    layers.pinned_layers_low, layers.layers_left_out, layers.left_out_of_one_block,
    layers.sizes_left_out, layers.head_in_fp8,
    layers.outside_autocast,
    kernels.emulated_or_contradicted, kernels.stored_only,
    kernels.no_fp8_units, kernels.grouped_high_precision, kernels.unknown_gemms,
    kernels.opaque_kernels, kernels.conflicts, kernels.beyond_bf16_peak,
    kernels.of_older_gpus,
    recorded.no_kernels, recorded.damaged, recorded.window_not_whole, recorded.no_backward,
    recorded.fp8_forward_only, recorded.steps_without_gemms, recorded.no_optimizer_step,
    recorded.operators_missing,
    scales.kept_scales_off, scales.history_unused, scales.loss_scales_off, scales.growing_amax,
    speed.fp8_not_paying, speed.fp8_gemm_slow, speed.attention_unfused,
    speed.scalar_all_reduces, speed.weight_recast,
    tensors.measured_tensors, tensors.not_finite, tensors.outlier_layers,
)  # fmt: skip
RUN_RULES: Final[tuple[RunRule, ...]] = (
    recorded.ranks_of_other_runs, recorded.ranks_not_observed,
    scales.scales_differ, scales.loss_not_finite, speed.not_compiled,
    speed.known_warnings,
)  # fmt: skip


def rank_findings(rank: RankEvidence, promises: Promises) -> list[Finding]:
    """Return what the evidence of one rank shows, most severe first."""
    findings = (finding for rule in RANK_RULES for finding in rule(rank, promises))
    about = (
        replace(finding, ranks=rank.numbers, per_rank=True) for finding in findings
    )
    return sorted(about, key=place_of)


def join_findings(
    ranks: Sequence[RankEvidence],
    of_ranks: Sequence[Sequence[Finding]],
    promises: Promises,
) -> tuple[Finding, ...]:
    """Return all findings on a run, most severe first.

    Args:
        ranks: the evidence of all ranks.
        of_ranks: what `rank_findings` returned for each.
        promises: what the log and the model promised.
    """
    of_run = (finding for rule in RUN_RULES for finding in rule(ranks, promises))
    merged = merge_findings(of_ranks)
    slowest = _of_the_slowest(ranks, of_ranks)
    if slowest is not None:
        merged = [
            _with_words_of(slowest, found) if viewed(found, "joined") else found
            for found in merged
        ]
    return tuple(sorted([*of_run, *merged], key=place_of))


def _of_the_slowest(
    ranks: Sequence[RankEvidence], of_ranks: Sequence[Sequence[Finding]]
) -> Finding | None:
    """Return what the rank that gains least says of its speed, as the line of the speed does."""
    found: list[tuple[float, Finding]] = []
    for rank, findings in zip(ranks, of_ranks, strict=True):
        figures = rank.gain.payoff
        for finding in findings:
            if viewed(finding, "joined") and figures is not None:
                gain = figures.step_speedup_estimate or figures.speedup_estimate
                found.append((gain or 0.0, finding))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _with_words_of(words: Finding, merged: Finding) -> Finding:
    """Return a finding on several ranks with the words of one of them, and its label."""
    if words.message == merged.message or not words.ranks:
        return merged
    whose = label_of_ranks(words.ranks)
    return replace(merged, message=f"{words.message} ({whose})", hint=words.hint)


def merge_findings(of_ranks: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Join the findings of each rank to one list.

    Of findings that differ only in figures the first stays and takes the ranks and layers of all;
    its message says whose figures it has.
    """
    alike: dict[tuple[object, int], list[Finding]] = defaultdict(list)
    for findings in of_ranks:
        seen: Counter[object] = Counter()
        for finding in findings:
            # Ranks of one program have one cause, though their figures may be near a threshold.
            cause = "" if viewed(finding, "joined") else finding.hint
            kind = (finding.code, finding.severity, cause)
            alike[kind, seen[kind]].append(finding)
            seen[kind] += 1
    return list(map(_merged, alike.values()))


def _merged(group: Sequence[Finding]) -> Finding:
    first = group[0]
    whose = f" ({label_of_ranks(first.ranks)})" if first.ranks else ""
    message = first.message + whose * (len({finding.message for finding in group}) > 1)
    ranks = dict.fromkeys(rank for finding in group for rank in finding.ranks)
    layers = dict.fromkeys(layer for finding in group for layer in finding.layers)
    return replace(first, message=message, ranks=tuple(ranks), layers=tuple(layers))
