"""From the kernels of one rank to its GEMMs: role, precision, leg, step and FLOPs of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from fp8verify.analysis import legs, pairing
from fp8verify.analysis.code_word import NO_WORDS, Words
from fp8verify.analysis.inputs import settle_by_inputs
from fp8verify.analysis.kinds import Gemm, GemmShape, Kind, Kinds, KindTotal, gemm_shape
from fp8verify.analysis.purpose import QUANTIZING, purpose_of
from fp8verify.analysis.replays import attention_without_operators
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
        if is_atens and _GENERATED.match(total.kind.name):
            compared += total.calls
            conflicts += total.calls
    return conflicts, compared


def classify_kernels(trace: Trace, words: Words = NO_WORDS) -> Kinds:
    """Return the kinds of kernel of a trace, classified by code, names, operators and GPU."""
    kinds = Kinds(trace, words)
    settle_by_inputs(trace, kinds)
    return kinds


def label_gemms(trace: Trace, kinds: Kinds) -> list[Gemm]:
    """Return each launch of a GEMM and what it computes, in the order in which they started."""
    gemms = _launches(trace, kinds)
    owners = legs.owners_of(trace, kinds)
    _settle_owners(gemms, owners, attention_without_operators(trace, kinds))
    of_layers = [gemm for gemm in gemms if gemm.of_layer]
    legs.place_gemms(of_layers)
    nodes = pairing.nodes_of(of_layers)
    last_updates = pairing.last_updates(trace, kinds)
    pairing.settle_delayed(_before(last_updates, gemms), nodes)
    of_layers = [gemm for gemm in gemms if gemm.of_layer]
    pairing.settle_by_node(of_layers, nodes)
    forward = legs.surely_forward(trace, kinds)
    legs.settle_by_shape(_before(last_updates, of_layers), nodes, forward)
    if trace.in_flops:
        legs.doubt(of_layers)
    ran_nodes = pairing.functions_of_nodes(trace, kinds)
    if pairing.number_fused_losses(of_layers, kinds, ran_nodes):
        nodes = pairing.nodes_of(of_layers)
    pairing.pair(
        of_layers,
        nodes,
        ran_nodes,
        whole=bool(trace.steps),
        in_graphs=trace.health.kernels_in_graphs,
    )
    pairing.settle_outside(trace, of_layers, nodes)
    pairing.number_micro_batches(trace, kinds, of_layers)
    pairing.settle_fused_losses(nodes, ran_nodes)
    return gemms


def _before(updates: pairing.LastUpdates, gemms: Iterable[Gemm]) -> list[Gemm]:
    """Return the launches before the last update of their step: only these are gradients."""
    before = []
    for gemm in gemms:
        if not updates.is_before(gemm):
            before.append(gemm)
    return before


def _settle_owners(
    gemms: Iterable[Gemm],
    owners: Mapping[int, Leg],
    attention: Set[int],
) -> None:
    """Mark the GEMMs of attention and of the optimizer.

    A product whose call made a node that has gradients is a layer's, as inside a closure.

    Args:
        gemms: all launches.
        owners: those of kinds, by their numbers.
        attention: the indices of further products of attention.
    """
    calls: dict[int, int] = {}
    ran: set[int] = set()
    for gemm in gemms:
        calls[gemm.makes] = gemm.call
        ran.add(gemm.node)
    ran.discard(-1)
    for gemm in gemms:
        owner = owners.get(gemm.kind_id)
        has_gradients = gemm.makes in ran and gemm.call == calls[gemm.makes]
        if owner is not None and not (owner is Leg.OPTIMIZER and has_gradients):
            gemm.leg = owner
        if gemm.index in attention:
            gemm.leg = Leg.ATTENTION


def _launches(trace: Trace, kinds: Kinds) -> list[Gemm]:
    """Return the launches; reductions of unknown type have the precision of the GEMM before."""
    columns = trace.kernels
    last: dict[int, Precision] = {}
    shapes: list[GemmShape | None] = []
    for kind in kinds.rows:
        shapes.append(gemm_shape(kind.op) if kind.is_gemm else None)
    found = []
    for index in kinds.started(lambda kind: kind.is_gemm):
        number = kinds.ids[index]
        stream = columns.stream[index]
        kind = kinds.rows[number]
        shape = shapes[number]
        if kind.multiplies:
            last[stream] = kind.precision
        elif kind.precision is Precision.UNKNOWN and stream in last:
            number = kinds.inherit(number, last[stream])
            kind = kinds.rows[number]
        site = trace.sites[columns.site[index]]
        found.append(Gemm(index, columns.step[index], number, kind, shape, *site))
    return found


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
    kinds: Kinds,
    gemms: Iterable[Gemm],
) -> list[GemmRow]:
    """Sum the GEMMs of a trace by kind, step, leg, shape, micro-batch and layer."""
    times: dict[_RowKey, list[int]] = defaultdict(list)
    columns = trace.kernels
    names = [*trace.layers, ""]
    for gemm in gemms:
        key = _RowKey(
            kind_id=gemm.kind_id,
            step=gemm.step,
            leg=gemm.leg,
            shape=gemm.shape,
            trained=gemm.trained,
            micro_batch=gemm.micro_batch,
            layer=names[columns.layer[gemm.index]] if columns.layer else None,
        )
        times[key].append(columns.duration_ns[gemm.index])
    rows = []
    for key, durations in times.items():
        rows.append(_gemm_row(key, kinds.rows[key.kind_id], durations))
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
        flops_by_class = {p.value: float(flops[p]) for p in Precision}
    return GemmSummary(
        time_us={p.value: micros(time_ns[p]) for p in Precision},
        kernels={p.value: kernels[p] for p in Precision},
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
