"""Why the evidence of a rank cannot decide, and why no GEMM of it, or not all, ran in FP8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.gemms import GemmRow, gemm_totals
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.files import missed_window
from fp8verify.capture.schema import StorageRecord
from fp8verify.logs.statements import LayerClaim
from fp8verify.model.claims import Claim
from fp8verify.terms import Precision
from fp8verify.text import counted, enumerated, listed
from fp8verify.thresholds import MANY_OPAQUE, NEGLIGIBLE, USUAL_SHARE
from fp8verify.trace.tables import Health
from fp8verify.verdict.clauses import (
    Row,
    by_number,
    first_said,
    first_that_holds,
    optional,
)
from fp8verify.verdict.expected import CONVERTED, Requested
from fp8verify.verdict.selection import amount_of, calls_of, high_of, low_of


def undecidable(rank: RankEvidence) -> str:
    """Say why the kernels cannot decide, nothing if they can."""
    return first_said(_why_undecidable(rank))


def _why_undecidable(rank: RankEvidence) -> Iterator[Row]:
    """Yield what keeps kernels from deciding, what weighs most first."""
    health = rank.trace.health
    steps = rank.trace.steps
    trained = rank.trace.trained
    no_kernels = _lost_window(rank) or without_kernels(rank)[1]
    low = f"{rank.share:.1%} of the listed GEMM time is in low precision"
    unknown = rank.linear.unknown_share_of_time
    in_unknown = f"{unknown:.1%} in kernels of unknown precision"
    may_lack_rows = health.rows_are_sums and health.truncated
    no_whole = health.truncated and not any(step.whole for step in steps)
    yield rank.unreadable, f"its trace cannot be read ({rank.unreadable})"
    yield not health.kernels, no_kernels
    yield may_lack_rows and not trained, _LISTS_NONE
    yield may_lack_rows and unknown >= NEGLIGIBLE, f"{low}, {in_unknown}, {_MAY_LACK}"
    yield may_lack_rows, f"{low}, {_MAY_LACK}"
    yield no_whole and not steps, "the trace is cut off, and has no steps"
    yield no_whole, f"the trace is cut off, and none of its {len(steps)} steps is whole"
    yield health.too_damaged, _unread(health)
    is_listed_in_part = health.rows_are_sums and not health.complete
    yield is_listed_in_part and not trained, _LISTS_NONE
    has_opaque = rank.opaque_ns > 0
    yield has_opaque and not trained, "no known matrix multiplication ran in the window"
    yield not trained, "no matrix multiplication ran in the window"
    yield rank.ran_low, first_said(_why_low_is_open(rank))
    yield True, first_said(_why_low_is_hidden(rank))


# Layers that are named one by one.
_NAMED = 2
# Columns of a kernel's name in a sentence.
_NAME = 60
# What a table shows that does not say that it is whole.
_LISTS_NONE = (
    "the table lists no known matrix multiplication, and may not list all kernels"
)
_MAY_LACK = "and the table may not list all kernels"
_RAN_OUTSIDE = (
    "ran outside any operator, as in CUDA graphs: they may be part of the training or"
)
_NOT_LOGGED = (
    "kernels of other libraries (CUTLASS, Triton) are not in the log of a BLAS library"
)
_NO_RECOGNIZED = "no recognized GEMM ran in FP8, and "
_OF_POSSIBLE = "of the time of possible GEMMs was in unrecognized kernels"


def _lost_window(rank: RankEvidence) -> str:
    window = missed_window(rank.recorded.meta)
    if window is None:
        return ""
    return f"{window.reason}; the window {window.name} left no trace"


def _unread(health: Health) -> str:
    skipped = health.skipped_events
    if health.rows_are_sums:
        return f"{counted(skipped, 'row')} of the table cannot be read"
    return f"{skipped} of {health.events + skipped} events of the trace cannot be read"


def _why_low_is_open(rank: RankEvidence) -> Iterator[Row]:
    """Yield why it is open how much of a rank ran in FP8, where some did."""
    rows = [row for row in rank.trace.trained if row.calls]
    total = calls_of(rows)
    untimed = sum(row.untimed for row in rows)
    is_mixed = bool(high_of(rows))
    # What ran in one format has that share whatever its times are.
    is_material = is_mixed and untimed > NEGLIGIBLE * total
    is_small = rank.trace.in_flops and rank.share < USUAL_SHARE
    yield (
        untimed == total or is_material,
        f"the trace has no valid duration for {untimed} of {total} GEMM kernels",
    )
    yield (
        is_small,
        f"{rank.share:.1%} of the logged FLOPs are in low precision, but {_NOT_LOGGED}",
    )


def _why_low_is_hidden(rank: RankEvidence) -> Iterator[Row]:
    """Yield where FP8 may have run although no GEMM shows it."""
    linear = rank.linear
    low = amount_of(low_of(rank.trace.unexplained))
    upcast = amount_of(rank.upcast)
    unknown = linear.unknown_share_of_time - upcast / (linear.total_ns or 1)
    opaque = opaque_share(rank)
    yield (
        low > NEGLIGIBLE * (low + linear.total_ns),
        f"FP8 GEMMs {_RAN_OUTSIDE} of a rollout",
    )
    yield (
        not rank.trace.health.complete,
        "the trace is incomplete, and what was read shows no FP8",
    )
    yield rank.trace.in_flops, f"no product in the log is FP8, but {_NOT_LOGGED}"
    yield not rank.has_fp8_units, ""
    yield unknown > NEGLIGIBLE, unknown_work(rank)
    yield opaque >= MANY_OPAQUE, f"{_NO_RECOGNIZED}{opaque:.1%} {_OF_POSSIBLE}"


def unknown_rows(rank: RankEvidence) -> list[GemmRow]:
    """Return the GEMMs whose precision nothing shows, no format that is widened first."""
    unknown = (row for row in rank.trace.gemms if row.precision is Precision.UNKNOWN)
    return [row for row in unknown if not row.kind.classification.upcast_from]


def longest(rows: Iterable[GemmRow]) -> GemmRow:
    """Return the GEMMs that took most of the work of some."""
    return max(rows, key=lambda row: row.amount)


def longest_name(rows: Iterable[GemmRow]) -> str:
    """Return the name of the kernel that took most of the work of some GEMMs."""
    return longest(rows).kind.name


def unknown_work(rank: RankEvidence) -> str:
    """Say how much of the GEMM time is in kernels of unknown precision; nothing if none is."""
    rows = unknown_rows(rank)
    if not rows:
        return ""
    share = amount_of(rows) / (rank.gemm.total_ns or 1)
    where = (
        f"{share:.1%} of GEMM {rank.measure.name} is in kernels of unknown precision"
    )
    names = {row.kind.name for row in rows}
    how_much = by_number(names, "all", "most")
    return f"{where}, {how_much} of it in {short_name(longest_name(rows))}"


def short_name(name: str) -> str:
    """Return a kernel's name as sentences have room for it."""
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}…"


def opaque_share(rank: RankEvidence) -> float:
    """Time of unrecognized kernels over theirs and that of the layers' GEMMs."""
    return rank.opaque_ns / (rank.opaque_ns + rank.linear.total_ns or 1)


def without_kernels(rank: RankEvidence) -> tuple[str | None, str]:
    """Return what keeps a rank without kernels from being judged: its case, if any, and why."""
    health = rank.trace.health
    saw_none = rank.recorded.meta.environment.sees_gpu is False
    no_gpu = optional(", torch saw no GPU", when=saw_none)
    rows: tuple[tuple[object, tuple[str | None, str]], ...] = (
        (
            health.log_alone,
            ("log-alone", "only a log was given, and it shows no kernels"),
        ),
        (health.truncated, (None, "the trace is cut off before its first GPU kernel")),
        (
            health.events and saw_none,
            ("no-gpu", f"no GPU kernels in the trace{no_gpu}"),
        ),
        (health.events, ("", "no GPU kernels in the trace")),
        (health.no_events, ("empty", "the trace holds no events")),
        (health.skipped_events, (None, "no event of the trace can be read")),
    )
    return first_that_holds(rows, (None, f"no trace was made{no_gpu}"))


# ---- layers left out, an autocast that does not reach

# The autograd functions of Transformer Engine's layers, in the forward pass.
_TE_FUNCTIONS = frozenset(
    {"_Linear", "_LayerNormLinear", "_LayerNormMLP", "_GroupedLinear"}
)


def main_high(rows: Iterable[GemmRow]) -> str:
    """Name the class of high precision in which most of the time of some GEMMs went."""
    for row in gemm_totals(high_of(rows)).rows:
        if row.precision != Precision.UNKNOWN.value:
            return row.precision.upper()
    return "high precision"


def ran_high(rank: RankEvidence) -> str:
    """Say in what the GEMMs of a rank without FP8 ran."""
    main = rank.linear.rows[0]
    total = rank.linear.launches
    apart = rank.trace.attention or rank.trace.untrained
    kernels = f"{total} {optional('linear-layer ', when=apart)}GEMMs"
    formats = main.precision.upper()
    rows = (
        (
            main.precision == Precision.UNKNOWN.value,
            f"none of the {kernels} is known to have run in FP8",
        ),
        (main.kernels == total, f"all {kernels} ran in {formats}"),
        (True, f"none of the {kernels} ran in FP8 ({main.kernels} in {formats})"),
    )
    return first_said(rows)


# ---- what shows why no FP8 ran

# The kind of cause, which is a case of `claimed-not-active`, and a sentence.
Cause: TypeAlias = tuple[str, str]


def cause_without_fp8(rank: RankEvidence, requested: Requested) -> Cause:
    """Say why no FP8 ran, as far as module list, log and operators show it.

    Returns:
        The cause; kind and sentence are empty where nothing shows it.
    """
    return first_that_holds(_causes(rank, requested), ("", ""))


def _causes(rank: RankEvidence, requested: Requested) -> Iterator[tuple[object, Cause]]:
    """Yield what shows why no FP8 ran: the module list first, then the log, then operators.

    A GPU without FP8 units needs no other cause.
    """
    yield not rank.has_fp8_units, ("no-units", "")
    total = counted(rank.linears, "linear layer")
    states = Counter(module.state for module in rank.linears)
    converted = sum(states[state] for state in CONVERTED)
    off = states["fp8_module_off"]
    stored = _only_stored(rank)
    yield (
        converted,
        (
            "converted",
            f"{converted} of {total} were converted, and ran in high precision",
        ),
    )
    yield stored, ("storage", stored)
    yield (
        off,
        (
            "outside-autocast",
            f"{off} of {total} are Transformer Engine's, last run outside its FP8 autocast",
        ),
    )
    if states.keys() == {"high_precision"}:
        yield from _causes_of_no_conversion(rank, requested)
    none_counted = first_said(
        (
            claim.converted == 0 and claim.total,
            f"0 of {claim.total} layers were converted (log {claim.place})",
        )
        for claim in requested.claims
    )
    yield none_counted, ("not-converted", none_counted)
    yield (
        _ran_in_engine(rank),
        (
            "outside-autocast",
            "their operators are Transformer Engine's, outside its FP8 autocast",
        ),
    )


def _causes_of_no_conversion(
    rank: RankEvidence, requested: Requested
) -> Iterator[tuple[object, Cause]]:
    """Yield why a list has linear layers, and none that was converted."""
    none = f"0 of {counted(rank.linears, 'linear layer')} were converted"
    because = _shared_reason(rank)
    other, those, besides = _class_that_is_no_linear(rank)
    no_linear = f"{those} {other}, not torch.nn.Linear{besides}"
    filtered, auto = _filter(requested)
    yield because, ("not-converted", f"{none}{because}")
    yield other, ("other-class", f"{none} ({no_linear})")
    yield auto, ("auto-filter", f"{none}{auto}")
    yield filtered, ("filtered", f"{none}{filtered}")
    yield True, ("not-converted", none)


def _shared_reason(rank: RankEvidence) -> str:
    """Return the reason that the list gives for all linear layers, nothing if there are several."""
    reason, *others = {module.reason for module in rank.linears}
    return optional(f", because {reason}", when=reason and not others)


class _NoLinear(NamedTuple):
    """A class that torchao does not convert.

    Attributes:
        name: of the class, empty where there is none.
        those: how many layers are of it: "they are", "16 are".
        besides: the other layers, which were not converted either.
    """

    name: str
    those: str
    besides: str


def _class_that_is_no_linear(rank: RankEvidence) -> _NoLinear:
    """Return the class of most linear layers where torchao, which converts nn.Linear, passed it."""
    classes = Counter(module.class_name for module in rank.linears)
    name, count = classes.most_common(1)[0]
    is_torchao = any(
        call.startswith("torchao.") for call in rank.recorded.meta.api_calls
    )
    is_most = 2 * count > len(rank.linears)
    those = optional("they", when=count == len(rank.linears)) or str(count)
    is_other = is_torchao and is_most and name != "Linear"
    others = [module.fqn for module in rank.linears if module.class_name != name]
    left_out = (
        f"; {enumerated(others, _NAMED)} {by_number(others, 'was', 'were')} left out"
    )
    return _NoLinear(
        name=optional(name, when=is_other),
        those=f"{those} are",
        besides=optional(left_out, when=others),
    )


def _filter(requested: Requested) -> tuple[str, str]:
    """Say that a filter which the log names accepted no layer, and the same of torchtitan's own."""
    claim = requested.filter
    if claim is None:
        return "", ""
    said = f" (the filter of log {claim.place} accepted none)"
    # torchtitan/components/quantization/float8.py: only "auto_filter_small_kn" prints the line.
    return said, optional(said, when="_auto_filter_for_recipe" in claim.text)


def _ran_in_engine(rank: RankEvidence) -> bool:
    """Whether layers of Transformer Engine launched all GEMMs."""
    trained = rank.trace.trained
    return bool(trained) and all(map(_is_of_engine, trained))


def _is_of_engine(row: GemmRow) -> bool:
    around = {name.removesuffix("Backward") for name in row.kind.op.around}
    return not _TE_FUNCTIONS.isdisjoint(around)


def _only_stored(rank: RankEvidence) -> str:
    stored = stored_weights(rank)
    if stored is None:
        return ""
    layers = counted(stored.count, "linear layer")
    return f"the weights of {layers} are only stored in FP8 ({stored.dtype})"


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


def counted_cause(requested: Requested) -> str:
    """Say how many layers the log counts as left out of the conversion."""
    return first_said(
        (_left_out(claim), _left_out_cause(claim)) for claim in requested.claims
    )


def logged_cause(requested: Requested) -> str:
    """Say why not all GEMMs ran in FP8, as the log counts most layers or keeps some out."""
    most = first_said(
        (2 * _left_out(claim) > (claim.total or 0), _left_out_cause(claim))
        for claim in requested.claims
    )
    return most or first_said((pin.is_pin, _kept(pin)) for pin in requested.layers)


def _kept(pin: LayerClaim) -> str:
    """Say which layers the log keeps in high precision."""
    plural = optional("s", when=len(pin.names) != 1)
    blocks = optional(f"block{plural} ", when=pin.select == "blocks")
    names = f"{blocks}{listed(pin.names)}"
    return f"{pin.framework} keeps {names} in high precision ({_place_of(pin)})"


def _place_of(pin: LayerClaim) -> str:
    """Say where the log keeps layers: of a dump of settings, by which of them."""
    setting, of_dump, _ = pin.text.partition(" of the dump around ")
    if of_dump:
        return f"{setting}, around log line {pin.line}"
    return f"log line {pin.line}"
