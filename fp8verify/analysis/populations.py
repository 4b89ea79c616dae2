"""The GEMMs that train, grouped into populations, and groups that fall short of the others.

A population is all GEMMs of one layer size (experts count as one size), of one pass (fprop, dgrad,
wgrad), of one forward and backward pass within a step. A part of a run (a step, a micro-batch, a
pass) falls short if its low-precision share is less than half of the same layers' share elsewhere.

Unknown GEMMs are counted both ways: as low precision to accuse, as high precision to acquit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import permutations
from math import prod
from typing import NamedTuple, TypeAlias, TypeVar

from fp8verify.analysis.gemms import GemmRow, KindTotal, Survey, gemm_totals, known_flops
from fp8verify.analysis.gpus import PEAKS, peak_of
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.reclassify import is_unrecognized, may_multiply
from fp8verify.terms import CERTAIN_LEGS, LEGS, VAGUE_LEGS, Leg, OpContext, Precision, Role

HALF = 0.5
# Parts of less than this of all GEMM work, as adapters are, accuse nothing.
_LITTLE = 0.01
# Slower kernels than this are no GEMMs of layers.
_LEAST_OF_PEAK = 0.05
# A layer has its inputs and weight among the first tensors, and no side this long.
_INPUTS, _DIMS, _LARGEST = 16, 8, 1 << 32
Key: TypeAlias = "tuple[int, ...] | None"
_Part = TypeVar("_Part", bound=Hashable)
_Amounts: TypeAlias = "Mapping[Hashable, Amount]"  # by layer
_GRADIENTS = (Leg.DGRAD, Leg.WGRAD)


class Amount(NamedTuple):
    """FLOPs, or ns, of GEMMs in low precision, in high precision and in an unknown one."""

    low: float = 0.0
    high: float = 0.0
    unknown: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)

    @property
    def known(self) -> float:
        """The amount of known precision."""
        return self.low + self.high

    @property
    def share(self) -> float:
        """The share of low precision in what is known, 0 of nothing."""
        return self.low / self.known if self.known else 0.0

    def __add__(self, other: tuple[float, ...]) -> Amount:  # type: ignore[override]
        """Add up two amounts."""
        return Amount(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


_NONE = Amount()


class Shortfall(NamedTuple):
    """A part compared with the same layers elsewhere, which predict `expected` in low precision.

    `accused`: it falls short even if all unknown GEMMs are low precision. `acquitted`: it does not
    fall short even if all unknown GEMMs are high precision.
    """

    part: Amount
    others: Amount
    accused: bool
    acquitted: bool


class Populations:
    """The GEMMs of one rank that train."""

    def __init__(self, survey: Survey) -> None:
        """Sort the GEMMs by layer.

        Weights are FLOPs if those of all GEMMs are known, else time.
        """
        self.rows = [row for row in survey.linear if row.kind.multiplies]
        self.by_flops = known_flops(gemm_totals(self.rows)) is not None
        forward = {size for row in self.rows if row.leg is Leg.FPROP for size in row.layer_sizes}
        keys: list[Key] = [_key(row, forward) for row in self.rows]
        self.total = sum(map(self.weigh, self.rows))
        nameless = sum(
            self.weigh(row) for row, key in zip(self.rows, keys, strict=True) if key is None
        )
        if nameless > _LITTLE * self.total:  # then sizes tell nothing of the rest either
            keys = [None if key != EXPERTS else EXPERTS for key in keys]
        self.keys = keys

    def weigh(self, row: GemmRow) -> float:
        """Return the FLOPs or ns of a row."""
        return (row.flops or 0) if self.by_flops else row.time_ns

    def sums(
        self, part_of: Callable[[GemmRow], _Part], layer_of: Callable[[GemmRow, Key], Hashable]
    ) -> dict[tuple[_Part, Hashable], Amount]:
        """Add up the rows by part of the run and by layer."""
        found: dict[tuple[_Part, Hashable], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for row, key in zip(self.rows, self.keys, strict=True):
            place = 2 if row.precision is Precision.UNKNOWN else int(not row.precision.is_low)
            found[part_of(row), layer_of(row, key)][place] += self.weigh(row)
        return {name: Amount(*amounts) for name, amounts in found.items()}

    def short_parts(self, part_of: Callable[[GemmRow], _Part]) -> dict[_Part, Shortfall]:
        """Return the parts of the run that fall short of the rest, layer by layer.

        Their `others` are the same layers in the parts that do not.
        """
        cells = self.sums(part_of, lambda row, key: (key, row.leg is Leg.FPROP))
        parts: dict[_Part, dict[Hashable, Amount]] = defaultdict(dict)
        whole: dict[Hashable, Amount] = defaultdict(Amount)
        for (part, layer), amount in cells.items():
            parts[part][layer] = amount
            whole[layer] += amount
        found = {}
        for part, own in parts.items():
            others = {
                layer: Amount(*(a - b for a, b in zip(whole[layer], amount, strict=True)))
                for layer, amount in own.items()
            }
            short = self.compare(own, others)
            if short.accused:
                found[part] = short
        usual: dict[Hashable, Amount] = defaultdict(Amount)
        for (part, layer), amount in cells.items():
            if part not in found:
                usual[layer] += amount
        return {
            part: short._replace(others=total_amount(usual[layer] for layer in parts[part]))
            for part, short in found.items()
        }

    def compare(
        self,
        own: _Amounts,
        others: _Amounts,
        filled: tuple[float, float] = (0.0, 0.0),
        lacking: float = 0.0,
    ) -> Shortfall:
        """Compare a part with the same layers elsewhere.

        Args:
            own: the part, by layer.
            others: the rest, by layer.
            filled: low precision that GEMMs of an uncertain part may add to this part: at most, at
                least.
            lacking: low precision that the layers lack here, compared with elsewhere.
        """
        part, rest, expected = Amount(), Amount(), 0.0
        for layer, amount in own.items():
            other = others.get(layer, _NONE)
            if other.known:
                part, rest = part + amount, rest + other
                expected += amount.total * other.share
        most, least = filled
        enough = HALF * expected
        counts = expected - part.low - part.unknown > _LITTLE * self.total
        accused = counts and part.known > 0 and part.low + part.unknown + most < enough
        acquitted = part.low + least >= HALF * (expected + lacking)
        little = expected + lacking - part.low - least <= _LITTLE * self.total
        return Shortfall(part, rest, accused, acquitted or little)


def _key(row: GemmRow, forward: set[tuple[int, int]]) -> Key:
    """Return (outputs, inputs) of the layer of a GEMM; None if the shapes do not show it."""
    if row.kind.classification.role is Role.GROUPED_GEMM:
        return EXPERTS
    sizes = row.layer_sizes
    return next((size for size in sizes if size in forward), sizes[0] if sizes else None)


class PassReading(NamedTuple):
    """A pass (fprop, dgrad or wgrad) compared with the other passes of the same layers.

    `missing`: the pass has no known GEMM and no GEMM that may belong to it.
    """

    leg: Leg
    found: Shortfall
    rows: list[GemmRow]
    missing: bool


def read_passes(survey: Survey, leaves_high: Callable[[str], bool]) -> list[PassReading]:
    """Read each pass both ways.

    GEMMs of a backward pass that may be dgrad or wgrad, and unrecognized kernels, count for
    a pass only as far as it has fewer GEMMs than the other passes of its layers.

    Args:
        survey: the GEMMs of a rank.
        leaves_high: whether the recipe keeps a pass in high precision; such a pass is not compared
            with the others.
    """
    table = Populations(survey)
    cells = table.sums(lambda row: row.leg, lambda _, key: key)
    by_leg: dict[Leg, dict[Hashable, Amount]] = defaultdict(dict)
    for (leg, key), amount in cells.items():
        by_leg[leg][key] = amount
    if not any(by_leg[leg] for leg in LEGS):
        return []
    keys = {key for leg in LEGS for key in by_leg[leg]}
    whole = {key: max(by_leg[leg].get(key, _NONE).total for leg in LEGS) for key in keys}
    # GEMMs of the backward pass are wgrad or dgrad, if the layer lacks only that pass.
    settled: dict[Hashable, Leg] = {}
    for key in list(by_leg[Leg.BACKWARD]):
        there = [by_leg[leg].get(key, _NONE).total > HALF * whole.get(key, 0) for leg in _GRADIENTS]
        if key is not None and any(there) and not all(there):
            settled[key] = only = _GRADIENTS[there.index(False)]
            by_leg[only][key] = by_leg[only].get(key, _NONE) + by_leg[Leg.BACKWARD].pop(key)
    compared = {leg: found for leg, found in by_leg.items() if not leaves_high(leg.value)}
    lacks = {leg: _lack(by_leg, compared, leg, whole) for leg in LEGS}
    linear_ns = max(1, gemm_totals(survey.linear).total_ns)
    readings = []
    for leg in LEGS:
        own, lack, backward = by_leg[leg], lacks[leg], leg is not Leg.FPROP
        vague = VAGUE_LEGS if backward else (Leg.UNKNOWN,)
        may_be = total_amount(amount for other in vague for amount in by_leg[other].values())
        hidden_ns = sum(
            total.time_ns
            for total in survey.others
            if (is_unrecognized(total.kind) or may_multiply(total.kind))
            and (total.kind.op is None or total.kind.op.backward is backward)
        )
        hidden = hidden_ns * table.total / linear_ns
        # What the forward pass leaves in high precision explains as much of the gradients.
        sharing = _GRADIENTS if backward else (leg,)
        explained = sum(lacks[other].high for other in sharing)
        disguised = max(0.0, may_be.high + may_be.unknown + hidden - explained)
        is_filled = may_be.total + hidden > HALF * lack.total
        least = lack.low - min(lack.low, disguised) if is_filled or not own else 0.0
        others = _others(compared, leg, tuple(compared))
        most = min(lack.total, may_be.low + may_be.unknown)
        # Frozen layers have no wgrad: what is neither there nor hidden did not run.
        expected = lack.low if is_filled or not own else 0.0
        found = table.compare(own, others, (most, least), expected)
        rows = [
            row
            for row, key in zip(table.rows, table.keys, strict=True)
            if (settled.get(key, row.leg) if row.leg is Leg.BACKWARD else row.leg) is leg
        ]
        readings.append(PassReading(leg, found, rows, not own and not is_filled and lack.total > 0))
    return readings


def _lack(
    by_leg: Mapping[Leg, _Amounts],
    compared: Mapping[Leg, _Amounts],
    leg: Leg,
    whole: Mapping[Hashable, float],
) -> Amount:
    """Return the work that a pass lacks compared with its layers' other passes."""
    low = total = 0.0
    others = _others(compared, leg, CERTAIN_LEGS)
    for key, work in whole.items():
        own = by_leg[leg].get(key, _NONE)
        like = own if leg is Leg.FPROP else by_leg[Leg.FPROP].get(key, _NONE)
        share = like.share if like.known else others.get(key, _NONE).share
        gap = max(0.0, work - own.total)
        total += gap
        low += min(gap, max(0.0, work * share - own.low)) if leg in compared else 0.0
    return Amount(low, total - low)


def _others(compared: Mapping[Leg, _Amounts], leg: Leg, legs: Iterable[Leg]) -> _Amounts:
    """Add up other passes by layer, without passes that the recipe keeps in high precision."""
    found: dict[Hashable, Amount] = defaultdict(Amount)
    for other in legs:
        if other not in (leg, Leg.UNKNOWN):
            for key, amount in compared.get(other, {}).items():
                found[key] += amount
    return found


def total_amount(amounts: Iterable[Amount]) -> Amount:
    """Add up amounts."""
    return sum(amounts, Amount())


def possible_products(survey: Survey, gpu: str | None) -> list[KindTotal]:
    """Return kernels of functions in high precision that took as long as a product of their inputs.

    Such a function may be a layer of the script's own. Its backward node records no weight: all
    kernels of the node count, and those of the same name in other functions.

    Args:
        survey: the kernels of a rank.
        gpu: name of the GPU, None if not known.
    """
    peak = (peak_of(gpu) or PEAKS["H100"]).bf16 * 1e12
    found, names = [total for total in survey.others if may_multiply(total.kind)], set()
    for total in found:
        op = total.kind.op
        if op is not None and total.time_ns:
            per_second = 1e9 * total.calls / total.time_ns
            if any(_LEAST_OF_PEAK * peak <= n * per_second <= peak for n in _layer_flops(op)):
                names |= {op.name, f"{op.name}Backward", total.kind.name}
    return [
        total
        for total in found
        if total.kind.op is not None and not names.isdisjoint((total.kind.op.name, total.kind.name))
    ]


def _layer_flops(op: OpContext) -> Iterator[float]:
    """Yield the FLOPs of each product that inputs, as activation and weight, may make."""
    # A trace may hold any number of inputs, of any size.
    shapes = [dims for dims in op.dims[:_INPUTS] if 2 <= len(dims) <= _DIMS]
    matrices = [dims for dims in shapes if all(0 < side < _LARGEST for side in dims)]
    for weight, x in permutations(matrices, 2):
        if len(weight) == 2 and x[-1] in weight:
            yield 2.0 * prod(x) * prod(weight) / x[-1]
