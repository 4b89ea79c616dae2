"""The GEMMs of one rank as sums: of what differs only in time, and by precision."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fp8verify.analysis.code_word import NO_WORDS, Words
from fp8verify.analysis.inputs import settle_by_inputs
from fp8verify.analysis.kinds import GemmShape, Kind, Kinds, KindTotal
from fp8verify.analysis.placing import Placed
from fp8verify.analysis.purpose import QUANTIZING, purpose_of
from fp8verify.model.kernels import GemmSummary
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import (
    Leg,
    Precision,
    Role,
    Scaling,
    fp8_share,
    low_precision_share,
)
from fp8verify.thresholds import WITHOUT_SHAPES
from fp8verify.trace import Trace


class GemmRow(NamedTuple):
    """GEMM launches that differ only in time: a row of the table that gives the verdict.

    Attributes:
        kernels: launches.
        amount: the work of all launches as the trace measures it: in ns, or in MFLOPs where it is
            the log of a BLAS library, which has no times.
        flops: of all launches, None if unknown.
        untimed: launches without a possible duration in the trace.
        trained: whether their layer has gradients; forward-only layers are not judged.
        micro_batch: its number within the step.
        layer: the name of its layer, "" if it certainly belongs to none, None if the trace has no
            layer names.
    """

    kind: Kind
    step: int
    leg: Leg
    kernels: int
    amount: int
    flops: int | None
    shape: GemmShape | None = None
    untimed: int = 0
    trained: bool = True
    micro_batch: int = 0
    layer: str | None = None

    @property
    def calls(self) -> int:
        """How many GEMMs they are: none, if they add up the parts of a split one.

        Their time is that of the GEMM that they finish.
        """
        return self.kernels if self.kind.multiplies else 0

    @property
    def scaling(self) -> Scaling | None:
        """How the low-precision operands were scaled, None for high precision or unknown."""
        return self.kind.classification.scaling

    @property
    def precision(self) -> Precision:
        """The precision class of the operands."""
        return self.kind.precision

    @property
    def layer_sizes(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) that its layer may have."""
        return () if self.shape is None else self.shape.layer_sizes(self.leg)


# TorchInductor records the launch of each Triton kernel that it generates under the kernel's own
# name (torch/_inductor/runtime/triton_heuristics.py); ATen's operators launch none of these.
_GENERATED: Final = lazy_pattern(
    r"triton_(?:poi|red|per|tem|for|spl|split_scan)_fused_"
)


def is_generated(kernel: str) -> bool:
    """Whether a kernel has a name that TorchInductor gives to those that it generates."""
    return _GENERATED.match(kernel) is not None


def name_conflicts(
    gemms: Iterable[GemmRow],
    others: Iterable[KindTotal],
) -> tuple[int, int]:
    """Count the launches whose names contradict their operators, and all that were compared.

    It is also a contradiction if an ATen operator launched a compiler's kernel.
    """
    compared = 0
    conflicts = 0
    for row in gemms:
        if not row.kind.op.name:
            continue
        compared += row.kernels
        is_disputed = row.kind.classification.conflict is not None
        if is_disputed and row.precision is Precision.UNKNOWN:
            conflicts += row.kernels
    for total in others:
        is_atens = total.kind.op.name.startswith("aten::")
        if is_atens and is_generated(total.kind.name):
            compared += total.kernels
            conflicts += total.kernels
    return conflicts, compared


def classify_kernels(trace: Trace, words: Words = NO_WORDS) -> Kinds:
    """Return the kinds of kernel of a trace, classified by code, names, operators and GPU."""
    kinds = Kinds(trace, words)
    settle_by_inputs(trace, kinds)
    return kinds


class _RowKey(NamedTuple):
    """What the launches of one row have in common."""

    kind_id: int
    step: int
    leg: Leg
    shape: GemmShape | None
    trained: bool
    micro_batch: int
    layer: str | None


def gemm_rows(
    trace: Trace,
    gemms: Iterable[Placed],
) -> list[GemmRow]:
    """Sum the GEMMs of a trace by kind, step, leg, shape, micro-batch and layer."""
    times: dict[_RowKey, list[int]] = defaultdict(list)
    kinds: dict[int, Kind] = {}
    columns = trace.kernels
    names = [*trace.layers, ""]
    for placed in gemms:
        gemm = placed.gemm
        kinds[gemm.kind_id] = gemm.kind
        key = _RowKey(
            kind_id=gemm.kind_id,
            step=gemm.step,
            leg=placed.leg,
            shape=placed.shape,
            trained=placed.trained,
            micro_batch=placed.micro_batch,
            layer=names[columns.layer[gemm.index]] if columns.layer else None,
        )
        times[key].append(columns.duration_ns[gemm.index])
    rows = []
    for key, durations in times.items():
        rows.append(_gemm_row(key, kinds[key.kind_id], durations))
    return rows


def _gemm_row(
    key: _RowKey,
    kind: Kind,
    durations: Sequence[int],
) -> GemmRow:
    launches = len(durations)
    flops: int | None
    if not kind.multiplies:
        flops = 0
    elif key.shape is None:
        flops = None
    else:
        flops = key.shape.flops * launches
    return GemmRow(
        kind=kind,
        step=key.step,
        leg=key.leg,
        kernels=launches,
        amount=sum(durations),
        flops=flops,
        shape=key.shape,
        untimed=durations.count(0),
        trained=key.trained,
        micro_batch=key.micro_batch,
        layer=key.layer,
    )


def _gpu_time_key(role: Role) -> str:
    if role.is_gemm:
        return "gemm"
    return "quantize" if role in QUANTIZING else role.value


# What a kernel's time is shown under.
GPU_TIME_KEYS: dict[Role, str] = {role: _gpu_time_key(role) for role in Role}
# Each precision class beside its name in reports.
_PRECISIONS: Final = [(precision.value, precision) for precision in Precision]


def gemm_totals(rows: Iterable[GemmRow]) -> GemmSummary:
    """Add up GEMMs by precision class, all classes in their order.

    What adds up the parts of a split GEMM belongs to it: its time counts, and it does not.

    Shares are rounded as the report shows them, so a verdict never rests on hidden digits.
    """
    time_ns = Counter[Precision]()
    kernels = Counter[Precision]()
    flops = Counter[Precision]()
    covered_ns = 0
    for row in rows:
        precision = row.precision
        time_ns[precision] += row.amount
        kernels[precision] += row.calls
        if row.flops is not None:
            flops[precision] += row.flops
            covered_ns += row.amount
    total_ns = time_ns.total()
    divisor = total_ns or 1
    knows_flops = 0 < total_ns <= covered_ns + total_ns * WITHOUT_SHAPES
    flops_by_class = None
    if covered_ns:
        flops_by_class = {name: float(flops[p]) for name, p in _PRECISIONS}
    return GemmSummary(
        time_us={name: micros(time_ns[p]) for name, p in _PRECISIONS},
        kernels={name: kernels[p] for name, p in _PRECISIONS},
        flops=flops_by_class,
        fp8_share_of_time=rounded(fp8_share(time_ns)),
        low_precision_share_of_time=rounded(low_precision_share(time_ns)),
        fp8_share_of_flops=rounded(fp8_share(flops)) if knows_flops else None,
        unknown_share_of_time=round(time_ns[Precision.UNKNOWN] / divisor, 6),
        flops_coverage=round(covered_ns / divisor, 6),
    )


def known_flops(totals: GemmSummary) -> float | None:
    """Return the FLOPs of all GEMMs; None unless those of (nearly) all GEMM time are known."""
    if totals.fp8_share_of_flops is None or not totals.flops:
        return None
    return sum(totals.flops.values())


def gpu_time_key(kind: Kind, *, casts: bool) -> str:
    """Return what the time of a kernel that is no GEMM was for.

    Args:
        kind: the kernel's.
        casts: whether the rank ran or cast low precision. Then `purpose_of` says what was for that,
            as in FP8's overhead, and a cast of the optimizer or of a codec is elementwise work.
    """
    key = GPU_TIME_KEYS[kind.role]
    if not casts:
        return key
    purpose = purpose_of(kind)
    if purpose == "transpose":
        return "transpose"
    if purpose is not None:
        return "quantize"
    return "elementwise" if key in ("quantize", "transpose") else key


def micros(time_ns: int) -> float:
    """Return nanoseconds as the report's µs, which keep three decimals."""
    return round(time_ns / 1000, 3)


def rounded(figure: float | None) -> float | None:
    """Return a share or ratio as the report keeps it, with six decimals; None stays None."""
    return None if figure is None else round(figure, 6)
