"""The figures of a report in the order in which every form shows them; layers as a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

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
from fp8verify.patterns import lazy_pattern
from fp8verify.report.page import Grid
from fp8verify.terms import LEGS, Leg, Severity, low_precision_count
from fp8verify.text import (
    indexed,
    label_of_ranks,
    pattern,
    patterns,
    shorten,
    shown_size,
)

# Share of values that the cast makes zero: the dB of the others mean nothing.
DEAD = 0.999
# What a module is configured for, by its state in the module list.
_CONFIGURED = {
    "fp8": "FP8",
    "fp8_emulated": "FP8, emulated",
    "fp8_module_off": "FP8 in its autocast",
    "fp4": "FP4",
    "fp4_emulated": "FP4, emulated",
}


def merge_kernels(report: Report) -> list[KernelRow]:
    """Return the kernels of all ranks by time, those alike in name, operator and leg added up."""
    alike: dict[Hashable, list[KernelRow]] = defaultdict(list)
    for rank in report.ranks:
        for row in rank.kernels:
            look = (row.name, row.precision, row.leg, row.op)
            alike[look].append(row)
    merged = list(map(_merged, alike.values()))
    merged.sort(key=_time_of_kernel, reverse=True)
    return merged


def _time_of_kernel(row: KernelRow) -> float:
    return row.time_us


def _merged(rows: Sequence[KernelRow]) -> KernelRow:
    """Add launches of perhaps other shapes: rates are weighted by time, which is exact."""
    first, *others = rows
    if not others:
        return first
    time_us = first.time_us
    kernels = first.kernels
    dims = first.dims
    shape = first.shape
    rates = []
    of_peak = []
    for row in rows:
        rates.append((row.tflops, row.time_us))
        of_peak.append((row.percent_of_peak, row.time_us))
    for row in others:
        time_us += row.time_us
        kernels += row.kernels
        if row.dims != first.dims:
            dims = None
        if row.shape != first.shape:
            shape = None
    return replace(
        first,
        time_us=time_us,
        kernels=kernels,
        dims=dims,
        shape=shape,
        tflops=_mean(rates),
        percent_of_peak=_mean(of_peak),
    )


def _mean(rates: Iterable[tuple[float | None, float]]) -> float | None:
    """Average rates over times; None unless all are known."""
    total = 0.0
    time_us = 0.0
    for rate, us in rates:
        if rate is None:
            return None
        total += rate * us
        time_us += us
    if not time_us:
        return None
    return round(total / time_us, 1)


def by_time(time_us: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return what took how many µs, the longest first."""
    items = list(time_us.items())
    items.sort(key=_second_of, reverse=True)
    return items


def _second_of(item: tuple[str, float]) -> float:
    _, us = item
    return us


def amax_of(row: TensorRecord) -> str:
    """Return the largest magnitude of a tensor, or that it is not finite."""
    if row.nan:
        return "NaN"
    if row.inf:
        return "inf"
    return figure(row.amax, ".3g")


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings by severity, in their order otherwise."""
    order = list(Severity)

    def place(finding: Finding) -> int:
        return order.index(finding.severity)

    return sorted(findings, key=place)


def shown_findings(report: Report) -> list[Finding]:
    """Return the findings with messages that say which ranks they are about."""
    alone = len(report.ranks) == 1
    shown = []
    for finding in report.findings:
        message = finding.sentence(alone=alone)
        shown.append(replace(finding, message=message))
    return shown


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


def ranks_alike(ranks: Iterable[RankReport]) -> list[list[RankReport]]:
    """Return ranks with the same verdict and share together; one without a number is alone."""
    alike: dict[Hashable, list[RankReport]] = defaultdict(list)
    for rank in ranks:
        look: Hashable = rank.source
        if rank.rank is not None:
            share = percent(rank.layer_share)
            look = (rank.verdict, share)
        alike[look].append(rank)
    return list(alike.values())


def label_of_group(ranks: Sequence[RankReport]) -> str:
    """Name ranks by their numbers, "ranks 0-6"; by the first one if some have none."""
    numbers = []
    for rank in ranks:
        if rank.rank is not None:
            numbers.append(rank.rank)
    if len(numbers) == len(ranks):
        return label_of_ranks(numbers)
    return ranks[0].label


# ---- layers: those that are called alike and ran the same are one row


LayerGroup = tuple[str, list[NamedLayerRow]]
SHOWN_LAYERS = 12
# More rows than these are joined where all layers of some blocks ran alike.
_FEW_LAYERS = 6
# A name as far as the number of its block: "layers.{0,3}." of "layers.{0,3}.mlp.up".
_TO_BLOCK = lazy_pattern(r"(?:\w+\.)*(?:\*|\{[\d,-]+\}|\d+)(?=\.)")


def layer_table(report: Report, *, verbose: bool) -> Grid | None:
    """Lay out layers by name, else by size, else the module list; None if nothing is known.

    Of several ranks the first one is shown that has any. Names come last, where text cuts them;
    what leaves no room for them is for those who ask for more.
    """
    for rank in report.ranks:
        named = rank.named_layers
        if named is not None and named.rows:
            notes = _of_rank(report, rank)
            return _by_name(named, notes, verbose)
    for rank in report.ranks:
        layers = rank.layers
        if layers is not None and layers.rows:
            notes = _of_rank(report, rank)
            return _by_size(layers, notes)
    return _by_state(report.layer_states)


def _by_state(states: dict[str, str]) -> Grid | None:
    """Lay out the module list, by what the modules are configured for."""
    converted: list[tuple[str, ...]] = []
    others: list[tuple[str, ...]] = []
    names_of: dict[str, list[str]] = defaultdict(list)
    for name, state in states.items():
        names_of[state].append(name)
    for state, names in names_of.items():
        rows = converted if state == "fp8" else others
        words = _configured_for(state)
        for name in shorten(names, states):
            rows.append((words, name))
    rows = [*others, *converted]
    if not rows:
        return None
    return Grid("Layers", ("<configured", "<layer"), rows, stretch=True)


def _configured_for(state: str | None) -> str:
    """Say for what a module is configured."""
    if state is None:
        return "-"
    return _CONFIGURED.get(state, state.replace("_", " "))


def _of_rank(report: Report, rank: RankReport) -> list[str]:
    if len(report.ranks) > 1:
        return [f"layers of {rank.label}"]
    return []


def _by_size(layers: LayersReport, notes: list[str]) -> Grid:
    """Lay out layers by the sizes of their weights, without the columns that would be empty.

    What modules are configured for is a column where some are for FP8; that none is, the source
    line of the model says better: Transformer Engine's are only inside their autocast.
    """
    is_named = any(row.names for row in layers.rows)
    has_converted = any(row.converted for row in layers.rows)
    headings = [leg.value for leg in LEGS]
    headings.append("of FLOPs")
    if has_converted:
        headings.append("<configured")
    headings.append("<outputs x inputs")
    if is_named:
        headings.append("<layer")
    rows = []
    for row in layers.rows:
        cells = _legs_of_size(row)
        cells.append(percent(row.share_of_flops))
        if has_converted:
            cells.append(_configured(row))
        cells.append(shown_size((row.n, row.k)))
        if is_named:
            cells.append(", ".join(row.names) or "-")
        rows.append(tuple(cells))
    if layers.note:
        notes = [*notes, layers.note]
    return Grid(
        "Layers",
        tuple(headings),
        rows,
        stretch=is_named,
        above="; ".join(notes),
    )


def _legs_of_size(row: LayerRow) -> list[str]:
    counts = []
    for leg in LEGS:
        low = row.in_fp8.get(leg.value, 0)
        ran = row.observed.get(leg.value, 0)
        counts.append(_of_all(low, ran))
    return counts


def _configured(row: LayerRow) -> str:
    if not row.modules:
        return "-"
    return f"{row.converted} of {row.modules} for FP8"


def _of_all(low: int, ran: int) -> str:
    """Return counts as "3/4", or "-" for none at all."""
    if ran:
        return f"{low}/{ran}"
    return "-"


def _by_name(named: NamedLayersReport, notes: list[str], verbose: bool) -> Grid:
    is_eager = named.source == "step"
    counted_in = "GEMMs in FP8 of all"
    if is_eager:
        step = f"step {named.step}, run without torch.compile"
        counted_in = f"{counted_in} in one step ({step})"
    said = [counted_in, *notes]
    if named.unjoined:
        unjoined = f"{named.unjoined} of {named.gemms} GEMMs"
        said.append(f"{unjoined} could not be joined to a layer")
    if named.note:
        said.append(named.note)
    legs = _shown_legs(named)
    headings = [leg.value for leg in legs]
    if not is_eager:
        headings.append("ms")
    if verbose:
        headings += ["<configured", "<outputs x inputs"]
    headings.append("<layer")
    rows = []
    for name, group in _shown_groups(named, verbose):
        first = group[0]
        cells = [_low_of_all(leg, group) for leg in legs]
        if not is_eager:
            cells.append(millis(sum(map(layer_us, group))))
        if verbose:
            cells.append(_configured_for(first.state))
            size = "-"
            if first.n and first.k:
                size = shown_size((first.n, first.k))
            cells.append(size)
        cells.append(name)
        rows.append(tuple(cells))
    return Grid(
        "Layers",
        tuple(headings),
        rows,
        stretch=True,
        shown=SHOWN_LAYERS,
        above="; ".join(said),
    )


def _shown_groups(named: NamedLayersReport, verbose: bool) -> list[LayerGroup]:
    """Return the rows of layers; many are joined by block, unless all were asked for."""
    groups = layer_groups(named)
    if verbose or len(groups) <= _FEW_LAYERS:
        return groups
    return _by_begin(groups)


def _shown_legs(named: NamedLayersReport) -> list[Leg]:
    """Return the three passes of training, and whatever else ran."""
    ran = set(LEGS)
    for row in named.rows:
        ran.update(leg.leg for leg in row.legs)
    return [leg for leg in Leg if leg in ran]


def _low_of_all(leg: Leg, rows: Iterable[NamedLayerRow]) -> str:
    """Return how many of the layers' GEMMs of a leg ran in FP8 or FP4, of how many there are."""
    low = 0
    ran = 0
    for row in rows:
        for row_leg in row.legs:
            kernels = row_leg.kernels
            if row_leg.leg is leg:
                low += low_precision_count(kernels)
                ran += sum(kernels.values())
    return _of_all(low, ran)


def layer_groups(named: NamedLayersReport) -> list[LayerGroup]:
    """Return layers that are called alike and ran the same as one, "layers.*.up (2)".

    Layers that are not all in FP8 come first. Where others of the name ran otherwise, their
    numbers say which: "layers.{0,3}.up".
    """
    alike: dict[tuple[str, Hashable], list[NamedLayerRow]] = defaultdict(list)
    for row in named.rows:
        look = (pattern(row.layer), _what_ran(row))
        alike[look].append(row)
    kinds = Counter(shape for shape, _ in alike)
    others: list[LayerGroup] = []
    all_low: list[LayerGroup] = []
    for (shape, _), rows in alike.items():
        names = [row.layer for row in rows]
        if kinds[shape] > 1:
            name = indexed(names)
        else:
            name = ", ".join(patterns(names))
        group = (name, rows)
        if _is_all_low(rows[0]):
            all_low.append(group)
        else:
            others.append(group)
    return [*others, *all_low]


def _what_ran(row: NamedLayerRow) -> Hashable:
    """Return the GEMMs of a layer by leg and precision."""
    ran = []
    for leg in row.legs:
        counts = sorted(leg.kernels.items())
        ran.append((leg.leg, tuple(counts)))
    return tuple(ran)


def _by_begin(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Join the layers of the same blocks that all ran in low precision, or none of which did."""
    by_begin: dict[str, list[LayerGroup]] = defaultdict(list)
    for group in groups:
        name, _ = group
        begin = _TO_BLOCK.match(name)
        key = begin[0] if begin else name
        by_begin[key].append(group)
    joined: list[LayerGroup] = []
    for key, found in by_begin.items():
        every: list[NamedLayerRow] = []
        looks = set()
        is_list = False
        for name, rows in found:
            every += rows
            looks.add(_look(rows))
            is_list |= ", " in name
        is_one = len(found) > 1 and len(looks) == 1
        if is_one and not is_list:
            name = f"{key}.* ({len(every)} layers)"
            joined.append((name, every))
        else:
            joined += found
    return joined


def _look(rows: Sequence[NamedLayerRow]) -> Hashable:
    """Return for each leg whether all, none or some of its GEMMs ran in low precision."""
    looks = []
    for leg in Leg:
        count = _low_of_all(leg, rows)
        low, _, ran = count.partition("/")
        is_all = low == ran
        is_none = low == "0"
        looks.append((is_all, is_none))
    return tuple(looks)


def _is_all_low(row: NamedLayerRow) -> bool:
    low = 0
    ran = 0
    for leg in row.legs:
        low += low_precision_count(leg.kernels)
        ran += sum(leg.kernels.values())
    return low == ran


def precisions(row: NamedLayerRow) -> str:
    """Return the precision classes of a layer's GEMMs."""
    names: dict[str, int] = {}
    for leg in row.legs:
        names.update(leg.kernels)
    return ", ".join(names)


def layer_us(row: NamedLayerRow) -> float:
    """Return the µs of a layer's GEMMs."""
    total = 0.0
    for leg in row.legs:
        total += sum(leg.time_us.values())
    return total
