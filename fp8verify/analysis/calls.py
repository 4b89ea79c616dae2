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
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import EXPERTS, grouped, is_of_graph
from fp8verify.analysis.placing import Placed
from fp8verify.terms import BACKWARD_LEGS, Leg, Precision, Role
from fp8verify.trace import Trace

# (outputs, inputs) of a layer, `EXPERTS`, or None where no size is recorded.
LayerSize: TypeAlias = "tuple[int, ...] | None"
# A layer by its name, else by its size.
Layer: TypeAlias = "str | LayerSize"
# A layer, one of its legs, the ns of all launches, and of those in no low precision.
TimesRow: TypeAlias = "tuple[Layer, Leg, int, int]"
# A step and a micro-batch.
_Key: TypeAlias = "tuple[int, int]"
_Program: TypeAlias = "tuple[Call, ...]"


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
        step: its index among the steps, -1 for none.
        micro_batch: its number within the step.
        calls: in the order in which they began.
        times: by layer and leg the ns of all launches, and of those in no low precision.
    """

    step: int
    micro_batch: int
    calls: tuple[Call, ...]
    times: tuple[TimesRow, ...]


class _Open:
    """A call that is being put together."""

    def __init__(
        self,
        first: Placed,
        tie: Tie,
        size: LayerSize,
        layer: str,
    ) -> None:
        self.tie = tie
        self.size = size
        self.layer = layer
        self.step = first.gemm.step
        self.micro_batch = first.micro_batch
        self.legs: dict[Leg, list[Placed]] = defaultdict(list)

    def add(self, placed: Placed, leg: Leg) -> None:
        self.legs[leg].append(placed)

    def close(self) -> Call:
        self._settle_vague()
        legs = []
        for leg in Leg:
            if leg in self.legs:
                ran = _sum(self.legs[leg])
                legs.append((leg, ran))
        return Call(
            layer=self.layer or None,
            size=self.size,
            legs=tuple(legs),
            tie=self.tie,
        )

    def _settle_vague(self) -> None:
        """Let what may be dgrad or wgrad be the one that the call lacks, if it has the other.

        Not where only the order of the launches says that they are of one call.
        """
        if self.size is None and self.tie is not Tie.NUMBER:
            return
        has_dgrad = Leg.DGRAD in self.legs
        has_wgrad = Leg.WGRAD in self.legs
        if has_dgrad == has_wgrad or Leg.BACKWARD not in self.legs:
            return
        known = Leg.DGRAD if has_dgrad else Leg.WGRAD
        lacking = Leg.WGRAD if has_dgrad else Leg.DGRAD
        vague = self.legs[Leg.BACKWARD]
        if len(vague) == len(self.legs[known]):
            del self.legs[Leg.BACKWARD]
            self.legs[lacking] = vague


class _Calls:
    """The calls of a window, found by their launches."""

    def __init__(self, trace: Trace) -> None:
        self.in_order: list[_Open] = []
        self._name = _names_of(trace)
        self._by_key: dict[object, _Open] = {}
        self._by_forward: dict[int, _Open] = {}  # by the index of the forward launch

    def add(
        self,
        placed: Placed,
        size: LayerSize,
        leg: Leg,
    ) -> None:
        """Add a launch to its call, which may be new.

        Args:
            placed: the launch.
            size: of its layer.
            leg: what it counts as.
        """
        gemm = placed.gemm
        key, tie = _key_of(placed, size)
        call = self._of_gradient(placed, size) or self._by_key.get(key)
        if call is None:
            call = _Open(
                placed,
                tie,
                size,
                self._name(gemm.index),
            )
            self._by_key[key] = call
            if tie is Tie.NUMBER:
                of_node = (gemm.makes,)
                self._by_key.setdefault(of_node, call)
            self.in_order.append(call)
        if placed.is_delayed and not _fits(placed, size):
            call.tie = Tie.DELAYED
        call.add(placed, leg)
        self._by_forward[gemm.index] = call

    def _of_gradient(self, placed: Placed, size: LayerSize) -> _Open | None:
        """Return the call of a gradient: that of its node, else that of its forward launch."""
        if placed.leg not in BACKWARD_LEGS:
            return None
        by_size = self._by_key.get((placed.node, size))
        if by_size is not None:
            return by_size
        of_node = self._by_key.get((placed.node,))
        if of_node is not None:
            return of_node
        if placed.forward is not None:
            return self._by_forward.get(placed.forward.index)
        return None


def executions_of(trace: Trace, gemms: Iterable[Placed]) -> list[Execution]:
    """Return the executions of a rank's window, in their order.

    Args:
        trace: the window.
        gemms: all its launches, in the order in which they started.
    """
    products = [placed for placed in gemms if placed.trains]
    forward_sizes: set[tuple[int, int]] = set()
    any_unknown = False
    has_experts = False
    for placed in products:
        leg = placed.leg
        any_unknown |= leg is Leg.UNKNOWN
        has_experts |= placed.gemm.kind.role is Role.GROUPED_GEMM
        if leg is Leg.FPROP and placed.shape is not None:
            sizes = placed.shape.layer_sizes(leg)
            forward_sizes.update(sizes)
    calls = _Calls(trace)
    for placed in products:
        leg = placed.leg
        if any_unknown and leg is Leg.BACKWARD:
            # Where some may be of any leg, those that may be dgrad or wgrad are no leg of their
            # own: only their formats tell them, which others need not have.
            leg = Leg.UNKNOWN
        size = layer_size(placed, forward_sizes)
        is_hidden = placed.gemm.kind.classification.hidden
        if has_experts and placed.shape is None and is_hidden:
            size = EXPERTS  # what is only a possible product may be of these
        calls.add(placed, size, leg)
    return _in_executions(calls.in_order, trace.kernels.duration_ns)


def layer_size(
    placed: Placed,
    forward: Iterable[tuple[int, int]] = (),
) -> LayerSize:
    """Return the size of the layer of a launch; of several possible ones that of the forward pass."""
    if placed.gemm.kind.role is Role.GROUPED_GEMM:
        return EXPERTS
    if placed.shape is None:
        return None
    sizes = placed.shape.layer_sizes(placed.leg)
    for size in sizes:
        if size in forward:
            return size
    return sizes[0] if sizes else None


def _key_of(placed: Placed, size: LayerSize) -> tuple[object, Tie]:
    """Return what the launches of one call have in common, and what ties its gradients to it."""
    gemm = placed.gemm
    if placed.leg not in (Leg.FPROP, Leg.RECOMPUTE):
        tie = Tie.NOTHING
    elif gemm.makes < 0:
        tie = Tie.SIZE
    elif is_of_graph(gemm.kind.op):
        tie = Tie.GRAPH
    else:
        return (gemm.makes, size), Tie.NUMBER
    return (gemm.index, "alone"), tie


def _fits(placed: Placed, size: LayerSize) -> bool:
    """Whether a delayed gradient has the size of the layer that it was counted to."""
    forward = placed.forward
    if forward is None or forward.shape is None or size is None:
        return True
    _, n, k = forward.size
    return set(size) == {n, k}


def _names_of(trace: Trace) -> Callable[[int], str]:
    """Return a function from the index of a launch to the name of its layer."""
    layers = trace.kernels.layer
    names = [*trace.layers, ""]
    if not layers:
        return lambda _: ""
    return lambda index: names[layers[index]]


def _sum(gemms: Iterable[Placed]) -> Ran:
    """Add up launches of one leg of a call."""
    work = 0.0
    counts: dict[Precision, int] = defaultdict(int)
    for placed in gemms:
        counts[placed.gemm.kind.precision] += 1
        if placed.shape is not None:
            work += placed.shape.flops
    return _ran(counts, work)


def _ran(counts: Mapping[Precision, int], work: float) -> Ran:
    """Return what ran, by its launches of each precision class."""
    low = 0
    for precision, count in counts.items():
        if precision.is_low:
            low += count
    return Ran(
        launches=sum(counts.values()),
        low=low,
        unknown=counts.get(Precision.UNKNOWN, 0),
        work=work,
        precision=_main(counts),
    )


def _main(counts: Mapping[Precision, int]) -> Precision:
    """Return the class of most launches: of those in no low precision, if there are any."""
    high = [precision for precision in counts if not precision.is_low]
    return max(high or counts, key=counts.__getitem__)


class _Times:
    """By layer and leg the ns of all launches of an execution, and of those in no low precision."""

    def __init__(self) -> None:
        self._every = Counter[tuple[Layer, Leg]]()
        self._high = Counter[tuple[Layer, Leg]]()

    def add(
        self,
        layer: Layer,
        leg: Leg,
        gemms: Iterable[Placed],
        durations: Sequence[int],
    ) -> None:
        """Add the launches of a leg of a call."""
        key = (layer, leg)
        for placed in gemms:
            duration = durations[placed.gemm.index]
            self._every[key] += duration
            if not placed.gemm.kind.is_low:
                self._high[key] += duration

    def rows(self) -> tuple[TimesRow, ...]:
        """Return them, in the order in which layers and legs came first."""
        rows = []
        for key, every in self._every.items():
            layer, leg = key
            high = self._high[key]
            rows.append((layer, leg, every, high))
        return tuple(rows)


def _in_executions(
    calls: Iterable[_Open],
    durations: Sequence[int],
) -> list[Execution]:
    """Sort calls into executions; equal ones share their tuple."""
    by_execution: dict[_Key, list[Call]] = defaultdict(list)
    times: dict[_Key, _Times] = defaultdict(_Times)
    known: dict[Call, Call] = {}
    for opened in calls:
        key = (opened.step, opened.micro_batch)
        call = opened.close()
        call = known.setdefault(call, call)
        by_execution[key].append(call)
        layer = call.layer or call.size
        of_execution = times[key]
        for leg, gemms in opened.legs.items():
            of_execution.add(layer, leg, gemms, durations)
    programs: dict[_Program, _Program] = {}
    found = []
    for key in sorted(by_execution):
        step, micro_batch = key
        program = tuple(by_execution[key])
        program = programs.setdefault(program, program)
        execution = Execution(
            step=step,
            micro_batch=micro_batch,
            calls=program,
            times=times[key].rows(),
        )
        found.append(execution)
    return found


def of_rows(rows: Iterable[GemmRow]) -> Execution:
    """Return sums of GEMMs by layer as one execution: what an eager step shows of names."""
    by_layer: dict[str, list[GemmRow]] = defaultdict(list)
    for row in rows:
        if row.layer and row.kind.multiplies and row.trained:
            by_layer[row.layer].append(row)
    calls = []
    times: list[TimesRow] = []
    for layer, of_layer in by_layer.items():
        by_leg = grouped(of_layer, _leg_of)
        legs = []
        for leg in Leg:
            if leg in by_leg:
                ran = _sum_rows(by_leg[leg])
                legs.append((leg, ran))
        call = Call(
            layer=layer,
            size=None,
            legs=tuple(legs),
            tie=Tie.NUMBER,
        )
        calls.append(call)
        for leg, of_leg in by_leg.items():
            every = 0
            high = 0
            for row in of_leg:
                every += row.amount
                if not row.precision.is_low:
                    high += row.amount
            times.append((layer, leg, every, high))
    return Execution(
        step=-1,
        micro_batch=0,
        calls=tuple(calls),
        times=tuple(times),
    )


def _leg_of(row: GemmRow) -> Leg:
    return row.leg


def _sum_rows(rows: Sequence[GemmRow]) -> Ran:
    counts: Counter[Precision] = Counter()
    work = 0
    for row in rows:
        counts[row.precision] += row.calls
        work += row.flops or 0
    return _ran(counts, float(work))
