"""The calls of layers: each forward product with the gradients that autograd made of it.

A call is one time that a layer multiplied, as its launches were placed. What belongs to no call, as
in a replayed graph, is a call of its own, of one launch whose leg is as vague as what is known of it.

The calls of one forward pass through the model, with its backward pass, are an execution. Those of
equal executions are one object, so a thousand steps take little room.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import grouped
from fp8verify.analysis.placing import Placed
from fp8verify.analysis.placing.calls import InCall, LayerSize
from fp8verify.analysis.placing.calls import Tie as Tie
from fp8verify.terms import Leg, Precision
from fp8verify.trace import Trace

# A layer by its name, else by its size.
Layer: TypeAlias = "str | LayerSize"
# A layer, one of its legs, the ns of all launches, and of those in no low precision.
TimesRow: TypeAlias = "tuple[Layer, Leg, int, int]"
# A step and a micro-batch.
_Key: TypeAlias = "tuple[int, int]"
_Program: TypeAlias = "tuple[Call, ...]"


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


class _Part(NamedTuple):
    """What a launch is in its call."""

    leg: Leg
    is_low: bool


class _Closed(NamedTuple):
    """A call, and what each of its launches is in it."""

    call: Call
    parts: list[_Part]


class _Open:
    """A call that is being put together."""

    def __init__(
        self,
        first: Placed,
        call: InCall,
        layer: str,
    ) -> None:
        self.tie = call.tie
        self.size = call.size
        self.layer = layer
        self.step = first.gemm.step
        self.micro_batch = first.micro_batch
        self.launches: list[Placed] = []
        self._legs: list[Leg] = []

    def add(self, placed: Placed, leg: Leg) -> None:
        self.launches.append(placed)
        self._legs.append(leg)

    def made_of(self) -> object:
        """Return what it has in common with calls that are equal, in their launches too."""
        launches = [(placed.gemm.kind_id, placed.shape) for placed in self.launches]
        return (self.layer, self.size, self.tie, tuple(self._legs), tuple(launches))

    def close(self) -> _Closed:
        by_leg: dict[Leg, list[Placed]] = defaultdict(list)
        parts = []
        for placed, leg in zip(self.launches, self._settled(), strict=True):
            by_leg[leg].append(placed)
            part = _Part(leg, placed.gemm.kind.is_low)
            parts.append(part)
        legs = []
        for leg in Leg:
            if leg in by_leg:
                ran = _sum(by_leg[leg])
                legs.append((leg, ran))
        call = Call(
            layer=self.layer or None,
            size=self.size,
            legs=tuple(legs),
            tie=self.tie,
        )
        return _Closed(call, parts)

    def _settled(self) -> list[Leg]:
        """Let what may be dgrad or wgrad be the one that the call lacks, if it has the other.

        Not where only the order of the launches says that they are of one call.
        """
        legs = self._legs
        if self.size is None and self.tie is not Tie.NUMBER:
            return legs
        dgrads = legs.count(Leg.DGRAD)
        wgrads = legs.count(Leg.WGRAD)
        has_both = dgrads > 0 and wgrads > 0
        vague = legs.count(Leg.BACKWARD)
        if has_both or vague != dgrads + wgrads:
            return legs
        lacking = Leg.WGRAD if dgrads else Leg.DGRAD
        return [lacking if leg is Leg.BACKWARD else leg for leg in legs]


def executions_of(trace: Trace, gemms: Sequence[Placed]) -> list[Execution]:
    """Return the executions of a rank's window, in their order.

    Args:
        trace: the window.
        gemms: all its launches, in the order in which they started.
    """
    any_unknown = any(
        placed.leg is Leg.UNKNOWN for placed in gemms if placed.call is not None
    )
    name = _names_of(trace)
    calls: dict[int, _Open] = {}
    for placed in gemms:
        call = placed.call
        if call is None:
            continue
        if call.first not in calls:
            layer = name(placed.gemm.index)
            calls[call.first] = _Open(placed, call, layer)
        leg = placed.leg
        if any_unknown and leg is Leg.BACKWARD:
            # Where some may be of any leg, those that may be dgrad or wgrad are no leg of their
            # own: only their formats tell them, which others need not have.
            leg = Leg.UNKNOWN
        calls[call.first].add(placed, leg)
    return _in_executions(calls.values(), trace.kernels.duration_ns)


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
        self._every: dict[tuple[Layer, Leg], int] = defaultdict(int)
        self._high: dict[tuple[Layer, Leg], int] = defaultdict(int)

    def add(
        self,
        layer: Layer,
        part: _Part,
        duration: int,
    ) -> None:
        """Add a launch of a call."""
        key = (layer, part.leg)
        self._every[key] += duration
        if not part.is_low:
            self._high[key] += duration

    def rows(self) -> tuple[TimesRow, ...]:
        """Return them, in the order in which layers and legs came first."""
        rows = []
        for key, every in self._every.items():
            layer, leg = key
            high = self._high.get(key, 0)
            rows.append((layer, leg, every, high))
        return tuple(rows)


def _in_executions(
    calls: Iterable[_Open],
    durations: Sequence[int],
) -> list[Execution]:
    """Sort calls into executions; equal ones share their tuple."""
    by_execution: dict[_Key, list[Call]] = defaultdict(list)
    times: dict[_Key, _Times] = defaultdict(_Times)
    closed: dict[object, _Closed] = {}
    known: dict[Call, Call] = {}
    for opened in calls:
        made_of = opened.made_of()
        if made_of not in closed:
            closed[made_of] = opened.close()
        call, parts = closed[made_of]
        call = known.setdefault(call, call)
        key = (opened.step, opened.micro_batch)
        by_execution[key].append(call)
        layer = call.layer or call.size
        of_execution = times[key]
        for placed, part in zip(opened.launches, parts, strict=True):
            duration = durations[placed.gemm.index]
            of_execution.add(layer, part, duration)
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
