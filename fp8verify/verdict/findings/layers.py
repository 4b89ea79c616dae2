"""Findings on layers: converted ones that ran in high precision, left-out ones, pinned ones.

Layers with names (`run --layers`) are judged one by one. Without names, layers of one size cannot
be distinguished; how many of their GEMMs ran in FP8 can.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.report.model.parts import Claim, Finding
from fp8verify.terms import Leg, Precision, Role
from fp8verify.text import abridged, counted, in_sentences, of_flops, patterns
from fp8verify.thresholds import LAYER_FLOPS, NEGLIGIBLE, SHOWN, VOCABULARY
from fp8verify.verdict.expected import Promises
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.reasons import cause_without_fp8

_UNKNOWN = Precision.UNKNOWN
# Names of output heads in Hugging Face, torchtitan, Megatron-LM and nanoGPT.
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|head|output|output_layer|embed_out|classifier)$")
_BACKWARD = (Leg.DGRAD, Leg.WGRAD, Leg.BACKWARD)


def _names(modules: Iterable[ModuleRecord]) -> str:
    return abridged(in_sentences(patterns(module.fqn for module in modules)), SHOWN)


# ---- fewer than the log counts


def fewer_than_claimed(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """Fewer layers in FP8 than a line of the log says were converted, without a module list."""
    for claim in () if rank.modules or not rank.ran_low else promises.claims:
        missing, wanted, which = _missing_by_claim(claim, rank)
        if missing > NEGLIGIBLE * wanted:
            yield finding(
                "layer-not-fp8",
                "counted",
                missing=missing,
                wanted=wanted,
                format=promises.name,
                which=which,
            )
            return


def _missing_by_claim(claim: Claim, rank: RankEvidence) -> tuple[int, int, str]:
    """Return how many forward GEMMs of how many that a line counts did not run in FP8."""
    which = f"log {claim.place} says that {claim.converted} of {claim.total} layers were converted"
    rows = [row for row in rank.trace.trained if row.kind.classification.role is Role.GEMM]
    calls = sum(row.calls for row in rows if row.leg is Leg.FPROP)
    each = (claim.total or 0) * _steps(rank)
    known = all(row.precision is not _UNKNOWN and row.leg is not Leg.UNKNOWN for row in rows)
    if claim.says != "fp8" or not claim.converted or not each or calls % each or not known:
        return 0, 0, which
    wanted = calls // (claim.total or 1) * claim.converted
    low = sum(row.calls for row in rows if row.leg is Leg.FPROP and row.precision.is_low)
    high = [row for row in rows if row.leg in _BACKWARD and not row.precision.is_low]
    # The layers that were left out run two GEMMs of the backward pass each.
    explained = sum(row.calls for row in high) <= 2 * (calls - wanted)
    return 0 if explained else max(0, wanted - low), wanted, which


def _steps(rank: RankEvidence) -> int:
    return len({row.step for row in rank.trace.gemms if row.step >= 0})


def pinned_layers_low(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """Layers that the log pins to high precision, and that ran in low precision."""
    named = rank.trace.named.by_layer() if rank.trace.named is not None else {}
    names = dict.fromkeys([*(module.fqn for module in rank.modules), *named])
    pins = {name: pin for name in names if (pin := promises.pin(name)) is not None}
    low = [n for n in pins if any(gemms.precision.is_low for gemms in named.get(n, ()))]
    for layer in rank.layers.classes if not named else ():
        here = [module.fqn for module in layer.modules if module.fqn in pins]
        free = (layer.passes or 0) * sum(m.fqn not in pins for m in layer.converted)
        alone = len(here) == len(layer.modules) and any(layer.in_fp8.values())
        if here and (alone or (layer.passes and layer.in_fp8.get(Leg.FPROP, 0) > free)):
            low += here
    if low:
        yield finding(
            "pinned-layer-low",
            names=abridged(in_sentences(patterns(low)), SHOWN),
            them="it" if len(low) == 1 else "them",
            line=pins[low[0]].line,
            format=promises.name,
            layers=low,
        )


# ---- left out of the conversion


def layers_left_out(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """Layers that the configuration left in high precision, mostly by design."""
    linears = [module for module in rank.modules if module.kind == "linear"]
    left = [module for module in linears if module.state == "high_precision"]
    if 0 < len(left) < len(linears) and (promises.converted or rank.ran_low):
        reasons = [module.reason for module in left if module.reason]
        because = f" ({len(reasons)} because {reasons[0]})" if reasons else ""
        names, flops = [module.fqn for module in left], rank.layers.flops
        yield finding(
            "layer-not-fp8",
            "left-out",
            count=counted(left, "linear module"),
            share=of_flops(rank.layers.flops_of(names) / flops if flops else None),
            names=f"{_names(left)}{because}",
            layers=names,
        )


def sizes_left_out(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """Without a census: layer sizes that ran only in high precision, where others ran in FP8."""
    rows = [row for row in rank.trace.trained if row.precision.is_low]
    low = {size for row in rows for size in row.layer_sizes}  # of any library
    without = [layer for layer in rank.layers.classes if layer.never_in_fp8 and not layer.modules]
    left = [layer for layer in without if layer.size[:2] not in low]
    share = rank.layers.share(left)
    if rows and (share or 0) >= LAYER_FLOPS and not promises.converted:
        sizes = abridged([f"{layer.size.n}x{layer.size.k}" for layer in left], SHOWN)
        yield finding("layer-not-fp8", "sizes", sizes=sizes, share=of_flops(share))


def head_in_fp8(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """A language model's head, which recipes mostly leave in high precision.

    It is named so, or is as wide as a vocabulary and runs less often than any other layer.
    """
    classes = rank.layers.classes if rank.ran_low else ()
    wide = [layer for layer in classes if layer.size.n >= VOCABULARY]
    named = [x for x in wide if len(x.modules) == 1 and _HEAD.search(x.modules[0].fqn)]
    runs = sorted(layer.observed.get(Leg.FPROP, 0) for layer in classes)
    least = runs[0] if len(runs) > 1 and runs[0] < runs[1] else -1
    rarest = [x for x in wide if not x.modules and x.observed.get(Leg.FPROP, 0) == least]
    for head in (named or rarest)[:1]:
        if len(classes) > 1 and any(head.in_fp8.values()):
            yield finding(
                "lm-head-fp8",
                name=head.modules[0].fqn if head.modules else "the layer",
                outputs=head.size.n,
                layers=[module.fqn for module in head.modules],
            )


def outside_autocast(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """Transformer Engine's layers where none of them ran inside its FP8 autocast."""
    case, what = cause_without_fp8(rank, promises)
    if case == "outside-autocast" and not promises.any and not rank.ran_low:
        off = [module.fqn for module in rank.modules if module.state == "fp8_module_off"]
        yield finding("layer-not-fp8", "outside-autocast", what=what, layers=off)
