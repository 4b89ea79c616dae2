"""Why no GEMM ran in FP8, or not all: layers left out, an autocast that does not reach, a pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.layers import LayerClass, Layers
from fp8verify.analysis.promises import CONVERTED, Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.terms import LEGS, Leg, Precision
from fp8verify.text import abridged, counted, in_sentences, listed, patterns

# Names of output heads in Hugging Face, torchtitan, Megatron-LM and nanoGPT.
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|head|output|output_layer|embed_out|classifier)$")
_VOCABULARY = 16384
# What explains this much of the time in high precision is the reason.
_MOST = 0.5
_SIZES = 3
# The autograd functions of Transformer Engine's layers, in the forward pass.
_TE_FUNCTIONS = frozenset({"_Linear", "_LayerNormLinear", "_LayerNormMLP", "_GroupedLinear"})


def ran_high(rank: RankEvidence) -> str:
    """Say in what the GEMMs of a rank without FP8 ran."""
    linear, main = rank.linear, rank.main_precision()
    total, same = linear.kernels.total(), linear.kernels[main]
    of = " of linear layers" if rank.survey.attention else ""
    kernels = f"{total} GEMM kernels{' of layers that train' if rank.survey.untrained else of}"
    if main is Precision.UNKNOWN:
        return f"none of the {kernels} is known to have run in FP8"
    if same == total:
        return f"all {kernels} ran in {main.value.upper()}"
    return f"none of the {kernels} ran in FP8 ({same} in {main.value.upper()})"


def cause_without_fp8(rank: RankEvidence, promises: Promises) -> tuple[str, str]:
    """Say why no FP8 ran, as far as module list, log and operators show it.

    Returns:
        The kind of cause, which is a case of `claimed-not-active`, and a sentence; both are empty
        where nothing shows it.
    """
    linears = [module for module in rank.modules if module.kind == "linear"]
    total = counted(linears, "linear layer")
    converted = sum(module.state in CONVERTED for module in linears)
    if converted:
        ran = f"{converted} of {total} were converted, and ran in high precision"
        return "converted", ran
    off = sum(module.state == "fp8_module_off" for module in linears)
    if off:
        ran = f"{off} of {total} are Transformer Engine's and ran outside its FP8 autocast"
        return "outside-autocast", ran
    if linears and all(module.state == "high_precision" for module in linears):
        reasons = {module.reason for module in linears}
        because = f", because {reasons.pop()}" if len(reasons) == 1 and None not in reasons else ""
        return "not-converted", f"0 of {total} were converted{because}"
    none = next((claim for claim in promises.claims if claim.converted == 0 and claim.total), None)
    if none is not None:
        return "not-converted", f"0 of {none.total} layers were converted (log {none.place})"
    layers = sum(row.calls for row in rank.survey.linear if runs_transformer_engine(row))
    if layers and layers == sum(row.calls for row in rank.survey.linear):
        return "outside-autocast", "Transformer Engine's layers ran outside its FP8 autocast"
    return "", ""


def runs_transformer_engine(row: GemmRow) -> bool:
    """Whether a GEMM was launched by one of Transformer Engine's functions."""
    op = row.kind.op
    around = () if op is None else (op.name, *op.parents)
    return any(name.removesuffix("Backward") in _TE_FUNCTIONS for name in around)


def high_precision_cause(facts: RankFacts, promises: Promises) -> str | None:
    """Say what most of the GEMMs in high precision are for; None where nothing shows it."""
    high = [
        row
        for row in facts.rank.survey.linear
        if not row.precision.is_low and row.precision is not Precision.UNKNOWN
    ]
    if not facts.rank.ran_low or not high:
        return None
    return _logged(promises) or _left_out(facts, high) or _sizes(facts, high) or _leg(high)


def _left_out(facts: RankFacts, high: Sequence[GemmRow]) -> str | None:
    """By the census: layers that were not converted, if they are most of what ran high."""
    linears = [module for module in facts.rank.modules if module.kind == "linear"]
    left = [module.fqn for module in linears if module.state == "high_precision"]
    least = _MOST * sum(row.flops or 0 for row in high)
    if not left or len(left) == len(linears) or facts.layers.flops_of(left) < least:
        return None
    return f"left out of the conversion: {abridged(in_sentences(patterns(left)), _SIZES)}"


def _logged(promises: Promises) -> str | None:
    """By the log: a line that counts the converted layers, or that keeps some in high precision."""
    for claim in promises.claims:
        if claim.converted is not None and claim.total and 2 * claim.converted < claim.total:
            of = f"{claim.total - claim.converted} of {claim.total} layers"
            return f"{of} were left out of the conversion (log {claim.place})"
    for pin in promises.layers:
        if pin.is_pin:
            blocks = f"block{'' if len(pin.names) == 1 else 's'} " if pin.match == "blocks" else ""
            names = f"{blocks}{listed(pin.names)}"
            return f"{pin.framework} keeps {names} in high precision (log line {pin.line})"
    return None


def _sizes(facts: RankFacts, high: Iterable[GemmRow]) -> str | None:
    """Without a census: the sizes of layers that never ran in low precision."""
    never = [layer for layer in facts.layers.classes if layer.never_in_fp8]
    total = sum(row.flops or 0 for row in high)
    if not total or sum(layer.flops for layer in never) < _MOST * total:
        return None
    precision = facts.rank.main_high.value.upper()
    head = head_of(facts.layers)
    if head is not None and head in never and head.flops >= _MOST * total:
        return f"the head, {_size(head)}, ran in {precision}"
    return f"layers of {abridged(list(map(_size, never)), _SIZES)} ran in {precision}"


def _size(layer: LayerClass) -> str:
    return f"{layer.size.n}x{layer.size.k}"


def _leg(high: Sequence[GemmRow]) -> str | None:
    total = sum(row.time_ns for row in high)
    for leg in LEGS:
        rows = [row for row in high if row.leg is leg]
        if sum(row.time_ns for row in rows) > _MOST * total:
            return f"most of the rest is {leg.value} in {rows[0].precision.value.upper()}"
    return None


def head_of(known: Layers) -> LayerClass | None:
    """The output head: named so, or as wide as a vocabulary, the widest and run least often."""
    for layer in known.classes:
        if len(layer.modules) == 1 and _HEAD.search(layer.modules[0].fqn):
            return layer if layer.size.n >= _VOCABULARY else None
    wide = [layer for layer in known.classes if layer.size.n >= _VOCABULARY]
    head = max(wide, key=lambda layer: layer.size.n, default=None)
    if head is None or len(known.classes) < 2 or head.modules:
        return None
    calls = [layer.observed.get(Leg.FPROP, 0) for layer in known.classes]
    return head if head.observed.get(Leg.FPROP, 0) == min(calls) else None
