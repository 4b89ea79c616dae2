"""The calls of layers: each forward product with the gradients that autograd made of it.

A call is one time that a layer multiplied. Autograd's numbers say which launches belong to one,
without any size. Where nothing is numbered, a gradient belongs to the forward product of its size
that it was paired with. What belongs to no call, as in a replayed graph, is a call of its own, of
one launch whose leg is as vague as what is known of it.

The calls of one forward pass through the model, with its backward pass, are an execution. Those of
equal executions are one object, so a thousand steps take little room.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import EXPERTS, Gemm, Node
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, Leg, Precision, Role
from fp8verify.trace import Trace

# (outputs, inputs) of a layer, `EXPERTS`, or None where no size is recorded.
LayerSize: TypeAlias = "tuple[int, ...] | None"
# A layer by its name, else by its size.
Layer: TypeAlias = "str | LayerSize"

# A graph of torch.compile is one function of autograd, whose GEMMs are of many layers.
_GRAPH: Final = "CompiledFunction"


class Tie(IntEnum):
    """What ties the launches of a call to each other."""

    NUMBER = 0
    """Autograd's number of the node of one layer."""
    GRAPH = 1
    """That of a graph of several layers: among these the sizes, and the order among equal ones."""
    SIZE = 2
    """The sizes, and the order among equal ones."""
    NOTHING = 3
    """It is a launch alone."""
    DELAYED = 4
    """That nodes lack as much work as ran outside of any, in other sizes."""


class Ran(NamedTuple):
    """What ran: launches, and their work in FLOPs, 0 where no shape is recorded."""

    launches: int
    low: int
    unknown: int
    work: float
    precision: Precision

    @property
    def high(self) -> int:
        """Launches in high precision."""
        return self.launches - self.low - self.unknown


class Call(NamedTuple):
    """One time that a layer multiplied.

    Attributes:
        layer: its name in the trace, None if that names none.
        size: of the layer.
        legs: what ran for each leg, in the order of `Leg`.
        tie: what ties these to each other.
    """

    layer: str | None
    size: LayerSize
    legs: tuple[tuple[Leg, Ran], ...]
    tie: Tie


class Execution(NamedTuple):
    """One forward pass through the model, with its backward pass.

    Attributes:
        step: its place among the steps, -1 for none.
        micro_batch: its number within the step.
        calls: in the order in which they began.
        times: by layer and leg the ns of all launches, and of those in no low precision.
    """

    step: int
    micro_batch: int
    calls: tuple[Call, ...]
    times: tuple[tuple[Layer, Leg, int, int], ...]


class _Open:
    """A call that is being put together."""

    def __init__(self, first: Gemm, tie: Tie, size: LayerSize, layer: str) -> None:
        self.tie = tie
        self.size = size
        self.layer = layer
        self.step = first.step
        self.micro_batch = first.micro_batch
        self.legs: dict[Leg, list[Gemm]] = defaultdict(list)

    def add(self, gemm: Gemm, leg: Leg) -> None:
        self.legs[leg].append(gemm)

    def close(self) -> Call:
        self._settle_vague()
        legs = tuple((leg, _sum(self.legs[leg])) for leg in Leg if leg in self.legs)
        return Call(self.layer or None, self.size, legs, self.tie)

    def _settle_vague(self) -> None:
        """Let what may be dgrad or wgrad be the one that the call lacks, if it has the other."""
        vague = self.legs.get(Leg.BACKWARD, [])
        known = [leg for leg in GRADIENT_LEGS if leg in self.legs]
        if len(known) == 1 and len(vague) == len(self.legs[known[0]]):
            lacking = Leg.WGRAD if known[0] is Leg.DGRAD else Leg.DGRAD
            self.legs[lacking] = self.legs.pop(Leg.BACKWARD)


def executions_of(
    trace: Trace, gemms: Iterable[Gemm], nodes: Mapping[int, Node]
) -> list[Execution]:
    """Return the executions of a rank's window, in their order.

    Args:
        trace: the window.
        gemms: launches of layers that train, in the order in which they started, with their legs.
        nodes: those of autograd, by their numbers.
    """
    products = [gemm for gemm in gemms if gemm.kind.multiplies and gemm.trained]
    names = _names_of(trace)
    forward_sizes = {
        size
        for gemm in products
        if gemm.leg is Leg.FPROP and gemm.shape is not None
        for size in gemm.shape.layer_sizes(gemm.leg)
    }
    sites = trace.kernels.site
    nodes_of_sites = [site.node for site in trace.sites]
    # Where some may be of any leg, those that may be dgrad or wgrad are no leg of their own: only
    # their formats tell them, which others need not have.
    any_unknown = any(gemm.leg is Leg.UNKNOWN for gemm in products)
    opened: dict[object, _Open] = {}
    of_forward: dict[int, _Open] = {}  # by the place of the forward launch
    in_order: list[_Open] = []
    for gemm in products:
        size = layer_size(gemm, forward_sizes)
        call = None
        if gemm.leg in BACKWARD_LEGS:
            call = _of_node(gemm, size, opened)
            if call is None and gemm.forward is not None:
                call = of_forward.get(gemm.forward.place)
        key, tie = _key_of(gemm, size, nodes)
        if call is None:
            call = opened.get(key)
        if call is None:
            call = _Open(gemm, tie, size, names(gemm))
            opened[key] = call
            if tie is Tie.NUMBER:
                opened.setdefault((gemm.makes,), call)
            in_order.append(call)
        if nodes_of_sites[sites[gemm.place]] != gemm.node and not _fits(gemm, size):
            call.tie = Tie.DELAYED
        is_vague = any_unknown and gemm.leg is Leg.BACKWARD
        call.add(gemm, Leg.UNKNOWN if is_vague else gemm.leg)
        of_forward[gemm.place] = call
    return _in_executions(in_order, trace.kernels.duration_ns)


def layer_size(gemm: Gemm, forward: Iterable[tuple[int, int]] = ()) -> LayerSize:
    """Return the size of the layer of a launch; of several possible ones that of the forward pass."""
    found = gemm.kind.classification
    if found.role is Role.GROUPED_GEMM:
        return EXPERTS
    if gemm.shape is None:  # what is only a possible product may be of experts
        return EXPERTS if found.hidden else None
    sizes = gemm.shape.layer_sizes(gemm.leg)
    known = (size for size in sizes if size in forward)
    return next(known, sizes[0] if sizes else None)


def _key_of(
    gemm: Gemm, size: LayerSize, nodes: Mapping[int, Node]
) -> tuple[object, Tie]:
    """Return what the launches of one call have in common, and what ties its gradients to it."""
    if gemm.leg not in (Leg.FPROP, Leg.RECOMPUTE):
        return (gemm.place, "alone"), Tie.NOTHING
    is_graph = any(name.startswith(_GRAPH) for name in gemm.kind.op.around)
    if gemm.makes not in nodes:
        return (gemm.place, "alone"), Tie.SIZE
    if is_graph:
        return (gemm.place, "alone"), Tie.GRAPH
    return (gemm.makes, size), Tie.NUMBER


def _of_node(
    gemm: Gemm, size: LayerSize, opened: Mapping[object, _Open]
) -> _Open | None:
    """Return the call that a gradient's node was made by, None if none has a number."""
    by_size = opened.get((gemm.node, size))
    if by_size is not None:
        return by_size
    return opened.get((gemm.node,))


def _fits(gemm: Gemm, size: LayerSize) -> bool:
    """Whether a delayed gradient has the size of the layer that it was counted to."""
    if gemm.forward is None or gemm.forward.shape is None or size is None:
        return True
    return set(size) == set(gemm.forward.size[1:])


def _names_of(trace: Trace) -> Callable[[Gemm], str]:
    """Return a function from a launch to the name of its layer."""
    layers = trace.kernels.layer
    names = [*trace.layers, ""]
    if not layers:
        return lambda _: ""
    return lambda gemm: names[layers[gemm.place]]


def _sum(gemms: Sequence[Gemm]) -> Ran:
    """Add up launches of one leg of a call."""
    low = sum(gemm.kind.classification.precision.is_low for gemm in gemms)
    unknown = 0
    work = 0.0
    counts: dict[Precision, int] = defaultdict(int)
    for gemm in gemms:
        precision = gemm.kind.classification.precision
        counts[precision] += 1
        unknown += precision is Precision.UNKNOWN
        work += gemm.shape.flops if gemm.shape is not None else 0
    return Ran(len(gemms), low, unknown, work, _main(counts))


def _main(counts: Mapping[Precision, int]) -> Precision:
    """Return the class of most launches: of those in no low precision, if there are any."""
    high = {one: count for one, count in counts.items() if not one.is_low}
    return max(high or counts, key=counts.__getitem__)


def _in_executions(calls: Iterable[_Open], durations: Sequence[int]) -> list[Execution]:
    """Sort calls into executions; equal ones share their tuple."""
    grouped: dict[tuple[int, int], list[Call]] = defaultdict(list)
    times: dict[tuple[int, int], dict[tuple[Layer, Leg], list[int]]]
    times = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    known: dict[Call, Call] = {}
    for opened in calls:
        place = opened.step, opened.micro_batch
        call = opened.close()
        grouped[place].append(known.setdefault(call, call))
        for leg, gemms in opened.legs.items():
            spent = times[place][call.layer or call.size, leg]
            for gemm in gemms:
                duration = durations[gemm.place]
                spent[0] += duration
                is_low = gemm.kind.classification.precision.is_low
                spent[1] += 0 if is_low else duration
    programs: dict[tuple[Call, ...], tuple[Call, ...]] = {}
    found = []
    for place in sorted(grouped):
        program = tuple(grouped[place])
        program = programs.setdefault(program, program)
        spent_by = tuple(
            (layer, leg, spent[0], spent[1])
            for (layer, leg), spent in times[place].items()
        )
        found.append(Execution(*place, program, spent_by))
    return found


def of_rows(rows: Iterable[GemmRow]) -> Execution:
    """Return sums of GEMMs by layer as one execution: what an eager step shows of names."""
    by_layer: dict[str, dict[Leg, list[GemmRow]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        if row.layer and row.kind.multiplies and row.trained:
            by_layer[row.layer][row.leg].append(row)
    calls = []
    times = []
    for layer, by_leg in by_layer.items():
        legs = tuple((leg, _sum_rows(by_leg[leg])) for leg in Leg if leg in by_leg)
        calls.append(Call(layer, None, legs, Tie.NUMBER))
        for leg, found in by_leg.items():
            high = sum(row.time_ns for row in found if not row.precision.is_low)
            times.append((layer, leg, sum(row.time_ns for row in found), high))
    return Execution(-1, 0, tuple(calls), tuple(times))


def _sum_rows(rows: Sequence[GemmRow]) -> Ran:
    counts: Counter[Precision] = Counter()
    for row in rows:
        counts[row.precision] += row.calls
    return Ran(
        launches=counts.total(),
        low=sum(count for precision, count in counts.items() if precision.is_low),
        unknown=counts[Precision.UNKNOWN],
        work=float(sum(row.flops or 0 for row in rows)),
        precision=_main(counts),
    )
