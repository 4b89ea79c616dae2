"""The figures of a report in the order in which every form shows them; layers as a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from fp8verify.capture.schema import TensorRecord
from fp8verify.model.kernels import KernelRow
from fp8verify.model.layers import (
    LayerRow,
    LayersReport,
    NamedLayerRow,
    NamedLayersReport,
)
from fp8verify.model.report import RankReport, Report
from fp8verify.model.verdict import Finding
from fp8verify.report.page import Grid, columns
from fp8verify.terms import LEGS, Leg, Severity, low_precision_count
from fp8verify.text import indexed, pattern, patterns, shorten

DEAD = (
    0.999  # share of values that the cast makes zero: the dB of the others mean nothing
)


def merge_kernels(report: Report) -> list[KernelRow]:
    """Return the kernels of all ranks by time, those alike in name, operator and leg added up."""
    alike: dict[tuple[object, ...], list[KernelRow]] = defaultdict(list)
    for row in (row for rank in report.ranks for row in rank.kernels):
        alike[row.name, row.precision, row.leg, row.op].append(row)
    return sorted(map(_merged, alike.values()), key=lambda row: -row.time_us)


def _merged(rows: Sequence[KernelRow]) -> KernelRow:
    """Add launches of perhaps other shapes: rates are weighted by time, which is exact."""
    first, *others = rows
    if not others:
        return first
    return replace(
        first,
        time_us=sum(row.time_us for row in rows),
        kernels=sum(row.kernels for row in rows),
        dims=first.dims if all(row.dims == first.dims for row in others) else None,
        shape=first.shape if all(row.shape == first.shape for row in others) else None,
        tflops=_mean([(row.tflops, row.time_us) for row in rows]),
        percent_of_peak=_mean([(row.percent_of_peak, row.time_us) for row in rows]),
    )


def _mean(rates: Sequence[tuple[float | None, float]]) -> float | None:
    """Average rates over times; None unless all are known."""
    known = [(rate, us) for rate, us in rates if rate is not None]
    time_us = sum(us for _, us in known)
    if len(known) < len(rates) or not time_us:
        return None
    return round(sum(rate * us for rate, us in known) / time_us, 1)


def amax_of(row: TensorRecord) -> str:
    """Return the largest magnitude of a tensor, or that it is not finite."""
    if row.nan or row.inf:
        if row.nan:
            return "NaN"
        return "inf"
    return figure(row.amax, ".3g")


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings by severity, in their order otherwise."""
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def shown_findings(report: Report) -> list[Finding]:
    """Return the findings with messages that say which ranks they are about."""
    alone = len(report.ranks) == 1
    return [
        replace(finding, message=finding.sentence(alone=alone))
        for finding in report.findings
    ]


def figure(value: float | None, form: str) -> str:
    """Return a figure in a format of Python's, or "-" if it is not known."""
    if value is None:
        return "-"
    return format(value, form)


def percent(share: float | None) -> str:
    """Return a share as "93.1%", or "-" for None."""
    return figure(share, ".1%")


def millis(time_us: float | None) -> str:
    """Return microseconds as milliseconds with two decimals, or "-" for None."""
    if time_us is None:
        return "-"
    return f"{time_us / 1000:.2f}"


def times(speedup: float | None) -> str:
    """Return a speed-up as "1.38x", or "-" for None."""
    if speedup is None:
        return "-"
    return f"{speedup:.2f}x"


# ---- layers: those that are called alike and ran the same are one row


LayerGroup = tuple[str, list[NamedLayerRow]]
SHOWN_LAYERS = 12


def layer_table(report: Report, *, verbose: bool) -> Grid | None:
    """Lay out layers by name, else by size, else the module list; None if nothing is known.

    Of several ranks the first one is shown that has any. Names come last, where text cuts them;
    what leaves no room for them is for those who ask for more.
    """
    for rank in report.ranks:
        if rank.named_layers is not None and rank.named_layers.rows:
            return _by_name(rank.named_layers, _of_rank(report, rank), verbose)
    for rank in report.ranks:
        if rank.layers is not None and rank.layers.rows:
            return _by_size(rank.layers, _of_rank(report, rank))
    states = report.layer_states
    kinds = sorted(dict.fromkeys(states.values()), key=lambda state: state == "fp8")
    rows = [
        (kind.replace("_", " "), name)
        for kind in kinds
        for name in shorten(
            [name for name, state in states.items() if state == kind], states
        )
    ]
    if rows:
        return Grid("Layers", ("<configured", "<layer"), rows, stretch=True)
    return None


def _of_rank(report: Report, rank: RankReport) -> list[str]:
    if len(report.ranks) > 1:
        return [f"layers of {rank.label}"]
    return []


def _by_size(layers: LayersReport, notes: list[str]) -> Grid:
    cells: dict[str, Callable[[LayerRow], str]] = {
        **{leg.value: partial(_in_fp8, leg.value) for leg in LEGS},
        "of FLOPs": lambda row: percent(row.share_of_flops),
        "<configured": lambda row: (
            f"{row.converted} of {row.modules} for FP8" if row.modules else "-"
        ),
        "<outputs x inputs": lambda row: f"{row.n} x {row.k}",
        "<layer": lambda row: ", ".join(row.names) or "-",
    }
    above = "; ".join([*notes, layers.note] if layers.note else notes)
    return Grid("Layers", *columns(layers.rows, cells), stretch=True, above=above)


def _in_fp8(leg: str, row: LayerRow) -> str:
    return _of_all(row.in_fp8.get(leg, 0), row.observed.get(leg, 0))


def _of_all(low: int, ran: int) -> str:
    """Return counts as "3/4", or "-" for none at all."""
    if ran:
        return f"{low}/{ran}"
    return "-"


def _by_name(named: NamedLayersReport, notes: list[str], verbose: bool) -> Grid:
    eager = named.source == "step"
    notes += (
        [f"from step {named.step}, which ran without torch.compile"] if eager else []
    )
    if named.unjoined:
        notes.append(
            f"{named.unjoined} of {named.gemms} GEMMs could not be joined to a layer"
        )
    notes += [named.note] if named.note else []
    seen = {leg.leg for row in named.rows for leg in row.legs}
    cells: dict[str, Callable[[LayerGroup], str]] = {
        **{
            leg.value: partial(_low_of_all, leg)
            for leg in Leg
            if leg in seen or leg in LEGS
        },
        "ms": lambda group: millis(sum(map(layer_us, group[1]))),
        "<configured": lambda group: (group[1][0].state or "-").replace("_", " "),
        "<outputs x inputs": lambda group: _size(group[1][0]),
        "<layer": lambda group: group[0],
    }
    if eager:
        del cells["ms"]
    if not verbose:
        del cells["<configured"], cells["<outputs x inputs"]
    above = "; ".join(["GEMMs in FP8 of all", *notes])
    rows = columns(layer_groups(named), cells)
    return Grid("Layers", *rows, stretch=True, shown=SHOWN_LAYERS, above=above)


def _low_of_all(leg: Leg, group: LayerGroup) -> str:
    """Return how many of the layers' GEMMs of a leg ran in FP8 or FP4, of how many there are."""
    ran = [
        row_leg.kernels
        for row in group[1]
        for row_leg in row.legs
        if row_leg.leg is leg
    ]
    low = sum(map(low_precision_count, ran))
    return _of_all(low, sum(sum(kernels.values()) for kernels in ran))


def _size(row: NamedLayerRow) -> str:
    if row.n:
        return f"{row.n} x {row.k}"
    return "-"


def layer_groups(named: NamedLayersReport) -> list[LayerGroup]:
    """Return layers that are called alike and ran the same as one, "layers.*.up (2)".

    Layers that are not all in FP8 come first. Where others of the name ran otherwise, their
    numbers say which: "layers.{0,3}.up".
    """
    alike: dict[tuple[str, object], list[NamedLayerRow]] = defaultdict(list)
    for row in named.rows:
        ran = tuple((leg.leg, tuple(sorted(leg.kernels.items()))) for leg in row.legs)
        alike[pattern(row.layer), ran].append(row)
    kinds = Counter(shape for shape, _ in alike)
    groups = []
    for (shape, _), rows in alike.items():
        names = [row.layer for row in rows]
        groups.append(
            (indexed(names) if kinds[shape] > 1 else ", ".join(patterns(names)), rows)
        )
    return sorted(groups, key=lambda group: _all_low(group[1][0]))


def _all_low(row: NamedLayerRow) -> bool:
    return all(
        low_precision_count(leg.kernels) == sum(leg.kernels.values())
        for leg in row.legs
    )


def precisions(row: NamedLayerRow) -> str:
    """Return the precision classes of a layer's GEMMs."""
    return ", ".join(dict.fromkeys(name for leg in row.legs for name in leg.kernels))


def layer_us(row: NamedLayerRow) -> float:
    """Return the µs of a layer's GEMMs."""
    return sum(time_us for leg in row.legs for time_us in leg.time_us.values())
