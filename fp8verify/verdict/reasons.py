"""Why the evidence of a rank cannot decide, and why no GEMM of it, or not all, ran in FP8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fp8verify.analysis.gemms import GemmRow, gemm_totals
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.files import missed_window
from fp8verify.capture.schema import StorageRecord
from fp8verify.model.claims import Claim
from fp8verify.terms import Precision
from fp8verify.text import counted, listed
from fp8verify.thresholds import MANY_OPAQUE, NEGLIGIBLE, USUAL_SHARE
from fp8verify.trace.tables import Health
from fp8verify.verdict.expected import CONVERTED, Promises


def undecidable(rank: RankEvidence) -> str | None:
    """Say why the kernels cannot decide, or None if they can."""
    if rank.unreadable is not None:
        return f"its trace cannot be read ({rank.unreadable})"
    if not rank.trace.health.kernels:
        window = missed_window(rank.recorded.meta)
        if window is not None:
            return f"{window.reason}; the window {window.name} left no trace"
        return without_kernels(rank)[1]
    steps = rank.trace.steps
    if rank.trace.health.rows_are_sums and rank.trace.health.truncated:
        return _listed_share(rank)
    if rank.trace.health.truncated and not any(step.whole for step in steps):
        none = f"none of its {len(steps)} steps is whole" if steps else "has no steps"
        return f"the trace is cut off, and {none}"
    if rank.trace.health.too_damaged:
        return _unread(rank.trace.health)
    if not rank.trace.trained:
        return "no matrix multiplication ran in the window"
    return _untimed(rank) or _unlogged(rank) if rank.ran_low else _hidden(rank)


def _unread(health: Health) -> str:
    skipped = health.skipped_events
    kind = "rows of the table" if health.rows_are_sums else "events of the trace"
    return f"{skipped} of {health.events + skipped} {kind} cannot be read"


def _listed_share(rank: RankEvidence) -> str:
    """Say what a table shows that does not say that it is whole."""
    whole = "and the table may not list all kernels"
    if not rank.trace.trained:
        return "the table lists no known matrix multiplication, and may not list all kernels"
    low = f"{rank.share:.1%} of the listed GEMM time is in low precision"
    unknown = rank.linear.unknown_share_of_time
    if unknown >= NEGLIGIBLE:
        return f"{low}, {unknown:.1%} in kernels of unknown precision, {whole}"
    return f"{low}, {whole}"


_RAN_OUTSIDE = (
    "ran outside any operator, as in CUDA graphs: they may be part of the training or"
)
_NOT_LOGGED = (
    "kernels of other libraries (CUTLASS, Triton) are not in the log of a BLAS library"
)


def _unlogged(rank: RankEvidence) -> str | None:
    """Say that FP8 may have run beside the products of a log whose share is small."""
    if rank.trace.in_flops and rank.share < USUAL_SHARE:
        return f"{rank.share:.1%} of the logged FLOPs are in low precision, but {_NOT_LOGGED}"
    return None


def _untimed(rank: RankEvidence) -> str | None:
    """Say that GEMMs have no times, where a share of their time would depend on those."""
    rows = [row for row in rank.trace.trained if not row.kind.classification.split_k]
    total = sum(row.calls for row in rows)
    untimed = sum(row.untimed for row in rows)
    mixed = not all(row.precision.is_low for row in rows)
    if untimed == total or (mixed and untimed > NEGLIGIBLE * total):
        return f"the trace has no valid duration for {untimed} of {total} GEMM kernels"
    return None


def _hidden(rank: RankEvidence) -> str | None:
    """Say where FP8 may have run although no GEMM shows it."""
    low = sum(row.time_ns for row in rank.trace.unexplained if row.precision.is_low)
    if low > NEGLIGIBLE * (low + rank.linear.total_ns):
        return f"FP8 GEMMs {_RAN_OUTSIDE} of a rollout"
    if not rank.trace.health.complete:
        return "the trace is incomplete, and what was read shows no FP8"
    if rank.trace.in_flops:
        return f"no product in the log is FP8, but {_NOT_LOGGED}"
    if not rank.has_fp8_units:
        return None
    upcast = sum(row.time_ns for row in rank.upcast)
    unknown = rank.linear.unknown_share_of_time - upcast / (rank.linear.total_ns or 1)
    if unknown > NEGLIGIBLE:
        work = f"{unknown:.1%} of GEMM {rank.measure.name}"
        return f"{work} ran in kernels whose precision is unknown"
    opaque = opaque_share(rank)
    if opaque >= MANY_OPAQUE:
        where = (
            f"{opaque:.1%} of the time of possible GEMMs was in unrecognized kernels"
        )
        return f"no recognized GEMM ran in FP8, and {where}"
    return None


def opaque_share(rank: RankEvidence) -> float:
    """Time of unrecognized kernels over theirs and that of the layers' GEMMs."""
    return rank.opaque_ns / (rank.opaque_ns + rank.linear.total_ns or 1)


def without_kernels(rank: RankEvidence) -> tuple[str | None, str]:
    """Return what keeps a rank without kernels from being judged: its case, if any, and why."""
    if rank.recorded.meta.environment.sees_gpu is False:
        no_gpu = ", torch saw no GPU"
    else:
        no_gpu = ""
    if rank.trace.health.log_alone:
        return "log-alone", "only a log was given, and it shows no kernels"
    if rank.trace.health.truncated:
        return None, "the trace is cut off before its first GPU kernel"
    if rank.trace.health.events:
        return "no-gpu" if no_gpu else "", f"no GPU kernels in the trace{no_gpu}"
    if rank.trace.health.no_events:
        return "empty", "the trace holds no events"
    if rank.trace.health.skipped_events:
        return None, "no event of the trace can be read"
    return None, f"no trace was made{no_gpu}"


# ---- layers left out, an autocast that does not reach

# The autograd functions of Transformer Engine's layers, in the forward pass.
_TE_FUNCTIONS = frozenset(
    {"_Linear", "_LayerNormLinear", "_LayerNormMLP", "_GroupedLinear"}
)


def main_high(rows: Iterable[GemmRow]) -> str:
    """Name the class of high precision in which most of the time of some GEMMs went."""
    high = gemm_totals(row for row in rows if not row.precision.is_low).rows
    names = [
        row.precision.upper()
        for row in high
        if row.precision != Precision.UNKNOWN.value
    ]
    return names[0] if names else "high precision"


def ran_high(rank: RankEvidence) -> str:
    """Say in what the GEMMs of a rank without FP8 ran."""
    main = rank.linear.rows[0]
    total = rank.linear.launches
    apart = rank.trace.attention or rank.trace.untrained
    kernels = f"{total} {'linear-layer ' if apart else ''}GEMMs"
    if main.precision == Precision.UNKNOWN.value:
        return f"none of the {kernels} is known to have run in FP8"
    if main.kernels == total:
        return f"all {kernels} ran in {main.precision.upper()}"
    return (
        f"none of the {kernels} ran in FP8 ({main.kernels} in {main.precision.upper()})"
    )


def _class_that_is_no_linear(rank: RankEvidence) -> str:
    """Return the class of most linear layers where torchao, which converts nn.Linear, passed it."""
    classes = Counter(module.class_name for module in rank.linears)
    name, count = classes.most_common(1)[0]
    is_torchao = any(
        call.startswith("torchao.") for call in rank.recorded.meta.api_calls
    )
    is_most = 2 * count > len(rank.linears)
    return name if is_torchao and is_most and name != "Linear" else ""


def cause_without_fp8(rank: RankEvidence, promises: Promises) -> tuple[str, str]:
    """Say why no FP8 ran, as far as module list, log and operators show it.

    Returns:
        The kind of cause, which is a case of `claimed-not-active`, and a sentence; both are empty
        where nothing shows it.
    """
    total = counted(rank.linears, "linear layer")
    converted = sum(module.state in CONVERTED for module in rank.linears)
    if converted:
        return (
            "converted",
            f"{converted} of {total} were converted, and ran in high precision",
        )
    stored = stored_weights(rank)
    if stored is not None:
        layers = counted(stored.count, "linear layer")
        return (
            "storage",
            f"the weights of {layers} are only stored in FP8 ({stored.dtype})",
        )
    off = sum(module.state == "fp8_module_off" for module in rank.linears)
    if off:
        ran = f"{off} of {total} are Transformer Engine's and ran outside its FP8 autocast"
        return "outside-autocast", ran
    if rank.linears and all(
        module.state == "high_precision" for module in rank.linears
    ):
        reasons = {module.reason for module in rank.linears}
        if len(reasons) == 1 and None not in reasons:
            because = f", because {reasons.pop()}"
        else:
            because = ""
        other = _class_that_is_no_linear(rank)
        if other and not because:
            return (
                "other-class",
                f"0 of {total} were converted: they are {other}, not torch.nn.Linear",
            )
        return _not_converted(promises, f"0 of {total} were converted", because)
    none = next(
        (claim for claim in promises.claims if claim.converted == 0 and claim.total),
        None,
    )
    if none is not None:
        return (
            "not-converted",
            f"0 of {none.total} layers were converted (log {none.place})",
        )
    functions = (
        {x.removesuffix("Backward") for x in y.kind.op.around}
        for y in rank.trace.trained
    )
    if rank.trace.trained and all(
        not _TE_FUNCTIONS.isdisjoint(around) for around in functions
    ):
        return (
            "outside-autocast",
            "Transformer Engine's layers ran outside its FP8 autocast",
        )
    return "", ""


def _not_converted(promises: Promises, fact: str, because: str) -> tuple[str, str]:
    """Return the case of a model without a converted layer; a filter that the log names is why."""
    filtered = promises.filter
    if filtered is None or because:
        return "not-converted", f"{fact}{because}"
    # torchtitan/components/quantization/float8.py: only "auto_filter_small_kn" prints the line.
    case = "auto-filter" if "_auto_filter_for_recipe" in filtered.text else "filtered"
    return case, f"{fact} (the filter of log {filtered.place} accepted none)"


def stored_weights(rank: RankEvidence) -> StorageRecord | None:
    """Return the weights of linear layers that the process keeps in FP8; None if there are none."""
    found = (
        one for one in rank.recorded.meta.storage if one.what == "weights" and one.count
    )
    return max(found, key=lambda one: one.elements, default=None)


def _left_out(claim: Claim) -> int:
    """Return how many layers a line of the log counts as not converted."""
    if claim.converted is None or not claim.total:
        return 0
    return max(0, claim.total - claim.converted)


def _left_out_cause(claim: Claim) -> str:
    of = f"{_left_out(claim)} of {claim.total} layers"
    return f"{of} were left out of the conversion (log {claim.place})"


def counted_cause(promises: Promises) -> str | None:
    """Say how many layers the log counts as left out of the conversion."""
    counted_out = (claim for claim in promises.claims if _left_out(claim))
    return next(map(_left_out_cause, counted_out), None)


def logged_cause(promises: Promises) -> str | None:
    """Say why not all GEMMs ran in FP8, as the log counts most layers or keeps some out."""
    for claim in promises.claims:
        if 2 * _left_out(claim) > (claim.total or 0):
            return _left_out_cause(claim)
    for pin in promises.layers:
        if pin.is_pin:
            if pin.select == "blocks":
                blocks = f"block{'' if len(pin.names) == 1 else 's'} "
            else:
                blocks = ""
            names = f"{blocks}{listed(pin.names)}"
            return (
                f"{pin.framework} keeps {names} in high precision (log line {pin.line})"
            )
    return None
