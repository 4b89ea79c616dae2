"""Why no GEMM ran in FP8, or not all: layers left out, an autocast that does not reach, a pass."""

from __future__ import annotations

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.promises import CONVERTED, Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.terms import Precision
from fp8verify.text import counted, listed

# The autograd functions of Transformer Engine's layers, in the forward pass.
_TE_FUNCTIONS = frozenset({"_Linear", "_LayerNormLinear", "_LayerNormMLP", "_GroupedLinear"})


def ran_high(rank: RankEvidence) -> str:
    """Say in what the GEMMs of a rank without FP8 ran."""
    linear, main = rank.linear, rank.main_precision()
    total, same = linear.launches, linear.kernels[main.value]
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


def logged_cause(promises: Promises) -> str | None:
    """Say why not all GEMMs ran in FP8, as the log counts the layers or keeps some out."""
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
