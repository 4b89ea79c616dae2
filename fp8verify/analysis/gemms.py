"""From the kernels of one rank to its GEMMs: role, precision, leg, step and FLOPs of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fp8verify.analysis.flops import GemmShape, gemm_shape
from fp8verify.analysis.gemm_owner import owners_of
from fp8verify.analysis.gemm_passes import place_in_passes
from fp8verify.analysis.kinds import GemmLabel, Kind, Kinds
from fp8verify.analysis.layer_functions import GemmSite
from fp8verify.analysis.legs import Placed, place_gemms
from fp8verify.analysis.unrecognized import settle_by_inputs
from fp8verify.analysis.unsupported_formats import settle_unsupported_formats
from fp8verify.report.model import Leg, Precision, Scaling
from fp8verify.trace import Trace


class GemmRow(NamedTuple):
    """GEMM launches alike in all but time: a row of the table that a run is judged by.

    Attributes:
        flops: of all launches, None if unknown.
        untimed: launches of which the record holds no possible duration.
        trained: whether their layer has gradients; what only runs forward is not judged.
        number: of the forward and backward pass within the step.
    """

    kind: Kind
    step: int
    leg: Leg
    calls: int
    time_ns: int
    flops: int | None
    shape: GemmShape | None = None
    untimed: int = 0
    trained: bool = True
    number: int = 0

    @property
    def scaling(self) -> Scaling | None:
        """How the low-precision operands were scaled, None for high precision or unknown."""
        return self.kind.classification.scaling

    @property
    def precision(self) -> Precision:
        """The precision class of the operands."""
        return self.kind.classification.precision


class KindTotal(NamedTuple):
    """All launches of a kind that is no GEMM."""

    kind: Kind
    calls: int
    time_ns: int


class Survey(NamedTuple):
    """What the kernels of one rank did: the model's GEMMs, all else by kind, the optimizer's GEMMs.

    The model's are those of its linear layers and, where no fused kernel computes attention, the
    products of attention, whose leg is ATTENTION.
    """

    gemms: list[GemmRow]
    others: list[KindTotal]
    optimizer: Sequence[GemmRow] = ()

    @property
    def linear(self) -> list[GemmRow]:
        """The GEMMs of layers that train, by which a run is judged."""
        return [row for row in self.gemms if row.trained and row.leg is not Leg.ATTENTION]

    @property
    def linear_ns(self) -> int:
        """Their time."""
        return sum(row.time_ns for row in self.linear)

    @property
    def untrained(self) -> list[GemmRow]:
        """The GEMMs of layers that only run forward, or that nothing shows to be the training's."""
        return [row for row in self.gemms if not row.trained and row.leg is not Leg.ATTENTION]

    @property
    def attention(self) -> list[GemmRow]:
        """The products of attention."""
        return [row for row in self.gemms if row.leg is Leg.ATTENTION]


def classify_kernels(trace: Trace) -> Kinds:
    """Return the kinds of kernel of a trace, and what names, operators and the GPU say of them."""
    kinds = Kinds(trace)
    settle_by_inputs(trace, kinds)
    settle_unsupported_formats(trace, kinds)
    return kinds


def survey(trace: Trace, kinds: Kinds, labels: Iterable[GemmLabel]) -> Survey:
    """Sum the GEMMs of a trace by kind, step and leg, and its other kernels by kind."""
    rows = _gemm_rows(trace, kinds, labels)
    return Survey(
        [row for row in rows if row.leg is not Leg.OPTIMIZER],
        _other_totals(trace, kinds),
        [row for row in rows if row.leg is Leg.OPTIMIZER],
    )


def _launch_order(trace: Trace, kinds: Kinds) -> list[int]:
    """Return the places of the GEMM kernels, in the order in which they started."""
    gemm = [kind.classification.role.is_gemm for kind in kinds.kinds]
    start = trace.kernels.start_ns
    places = [place for place, number in enumerate(kinds.numbers) if gemm[number]]
    places.sort(key=start.__getitem__)
    return places


def label_gemms(trace: Trace, kinds: Kinds) -> list[GemmLabel]:
    """Return the label of each GEMM kernel, in the order in which they started."""
    order = _launch_order(trace, kinds)
    launches = _settle_reductions(trace, kinds, order)
    others = owners_of(trace, kinds)
    placed = _placed(kinds, [number for number in launches if number not in others])
    of_others, of_layers = [], []
    for place, number in zip(order, launches, strict=True):
        if number in others:
            shape = gemm_shape(kinds.kinds[number].op)
            of_others.append(GemmLabel(place, number, others[number], shape))
        else:
            of_layers.append(GemmLabel(place, number, *next(placed[number])))
    labels = [*of_others, *place_in_passes(trace, kinds, of_layers)]
    labels.sort(key=lambda label: trace.kernels.start_ns[label.place])
    return labels


def _placed(kinds: Kinds, launches: Sequence[int]) -> dict[int, Iterator[Placed]]:
    """Return what the launches of each kind of layers' GEMMs compute, in their order."""
    counts = Counter(launches)
    site_of = {number: site for site, number in enumerate(counts)}
    sites = [
        GemmSite(kinds.kinds[n].name, kinds.kinds[n].classification, kinds.kinds[n].op, count)
        for n, count in counts.items()
    ]
    placed = place_gemms(sites, [site_of[number] for number in launches])
    return {number: iter(placed[site]) for number, site in site_of.items()}


def _gemm_rows(trace: Trace, kinds: Kinds, labels: Iterable[GemmLabel]) -> list[GemmRow]:
    totals: dict[tuple[int, int, Leg, GemmShape | None, bool, int], list[int]]
    totals = defaultdict(lambda: [0, 0, 0])
    columns = trace.kernels
    for place, number, leg, shape, trained, in_step in labels:
        total = totals[number, columns.step[place], leg, shape, trained, in_step]
        total[0] += 1
        total[1] += columns.duration_ns[place]
        total[2] += not columns.duration_ns[place]
    rows = []
    for (number, step, leg, shape, trained, in_step), (calls, time_ns, untimed) in totals.items():
        kind = kinds.kinds[number]
        flops = None if shape is None else shape.flops * calls
        if kind.classification.split_k:
            flops = 0
        rows.append(
            GemmRow(kind, step, leg, calls, time_ns, flops, shape, untimed, trained, in_step)
        )
    return rows


def _settle_reductions(trace: Trace, kinds: Kinds, order: list[int]) -> list[int]:
    """Give split-K reductions whose operator says no type the precision of their GEMM."""
    columns = trace.kernels
    last: dict[int, Precision] = {}
    launches = []
    for place in order:
        name, op, stream = columns.name[place], columns.op[place], columns.stream[place]
        number = kinds.number(name, op)
        kind = kinds.kinds[number]
        precision = kind.classification.precision
        if not kind.classification.split_k:
            last[stream] = precision
        elif precision is Precision.UNKNOWN and stream in last:
            number = kinds.number(name, op, last[stream])
        launches.append(number)
    return launches


def _other_totals(trace: Trace, kinds: Kinds) -> list[KindTotal]:
    totals: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for number, time_ns in zip(kinds.numbers, trace.kernels.duration_ns, strict=True):
        total = totals[number]
        total[0] += 1
        total[1] += time_ns
    return [
        KindTotal(kinds.kinds[number], count, time_ns)
        for number, (count, time_ns) in totals.items()
        if not kinds.kinds[number].classification.role.is_gemm
    ]
