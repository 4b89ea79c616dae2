"""The writer of HTML: each result as one page that needs no other file and no network.

The pictures are SVG that the templates write. A chart library would be the larger part of the page
(plotly.js has 4 MB, Vega 0.8 MB) and asks for `eval` or inline styles, which the page's security
policy forbids; the pictures here are bars, columns and cells, which need none.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fp8verify.model.comparison import Comparison, LossPair, Side
from fp8verify.model.report import RankReport, Report
from fp8verify.model.steps import TimelineReport
from fp8verify.model.verdict import Finding
from fp8verify.patterns import lazy_pattern
from fp8verify.report import tables
from fp8verify.report.comparison_page import tone_of_run, verdict_of
from fp8verify.report.ledger_picture import LedgerPicture, Row, ledger_picture
from fp8verify.report.page import Grid, Page
from fp8verify.report.proof import range_of_times
from fp8verify.report.tables import millis, percent
from fp8verify.terms import Precision, Verdict, fp8_share
from fp8verify.text import (
    MEASURES,
    capital,
    cut_middle,
    label_of_ranks,
    printable,
)
from fp8verify.verdict.findings_table import finding_page, is_in_table, viewed

_TIMELINES = 16
_PLACES = 4  # that a finding links to
_NAME_WIDTH = 240
_ROWS = 64  # of a table in a notebook
TIMELINE_HEIGHT = 60
# What the colors mean, on the page of a report and of a comparison.
LEGENDS = {
    "fp8": "FP8",
    "high": "higher precision",
    "low": "other 4- or 8-bit formats",
    "mixed": "partly FP8",
    "plain": "higher precision, and nothing expects FP8",
    "unknown": "unknown precision",
    "rest": "other kernels",
    "work-casts": "casts and scales",
    "work-attention": "attention",
    "work-network": "exposed communication",
    "work-rest": "other kernels",
    "work-idle": "GPU idle or copying",
    "curve-a": "baseline",
    "curve-b": "candidate",
}
_KIND_OF_WORK = {label: kind for kind, label in LEGENDS.items()}
_CURVE_WIDTH = 1000
_CURVE_HEIGHT = 100
# Losses that fall by more than this factor are drawn on a logarithmic scale.
_STEEP = 2.0
_ITEM = lazy_pattern(r"^- ", re.MULTILINE)
_FENCE = lazy_pattern(r"^```\w*\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
_QUOTED = lazy_pattern(r"`([^`]*)`")
_OPTION = lazy_pattern(r"(?<![\w-])(--[a-z][a-z-]*)")
# Where a long name of a layer is broken; not within an escaped character, which has neither.
_JOINT = lazy_pattern(r"([._,])(?=[\w{*])")
# More step marks than this would hide the picture.
_MAX_MARKS = 24


def write_html(result: msgspec.Struct, page: Page) -> str:
    """Write a report, a comparison or a table of runs as a page."""
    if isinstance(result, Report):
        name = "page"
        facts = _report_facts(result, page)
    elif isinstance(result, Comparison):
        facts = {"steps": step_bars(result), **loss_curves(result.loss)}
        name = "compare"
    else:
        name = "runs"
        facts = {}
    template = _environment().get_template(f"{name}.html.j2")
    return template.render(result=result, page=page, **facts)


def write_notebook(page: Page) -> str:
    """Write a few lines of HTML for a notebook's cell: verdict, findings, tables."""
    grids = []
    for grid in page.grids:
        if not grid.folded:
            grids.append(grid.head(_ROWS))
    template = _environment().get_template("notebook.html.j2")
    return template.render(page=page, grids=grids)


def _report_facts(report: Report, page: Page) -> dict[str, Any]:
    """Return what the page of a report shows besides its `Page`, as much as a page can hold."""
    groups = sorted(tables.ranks_alike(report.ranks), key=_order_of_ranks)
    drawn = [ranks for ranks in groups if ranks[0].timelines]
    timelines = []
    hovers: list[dict[str, object]] = []
    for ranks in drawn[:_TIMELINES]:
        first = ranks[0]
        pictures = list(map(timeline, first.timelines))
        timelines.append((_caption_of_ranks(ranks), first, pictures))
        hovers += map(_hover, first.timelines)
    grids: dict[str, Grid] = {}
    for grid in page.grids:
        grids.setdefault(grid.title, grid)  # of several ranks the first one's
    if "Numerics" in grids:
        grids["Numerics"] = _named_first(grids["Numerics"])
    is_claimed = report.verdict in (Verdict.CONTRADICTED, Verdict.EMULATED)
    ledger = ledger_picture(report.ledger, is_claimed=is_claimed)
    places = []
    for finding in page.findings:
        places.append(_places(report, ledger, finding))
    return {
        "ledger": ledger,
        "places": places,
        "legs": leg_bars(report),
        "rank_bars": rank_bars(report),
        "gpu_times": gpu_bars(report),
        "timelines": timelines,
        "hidden_timelines": len(drawn) - len(timelines),
        "timeline_data": hovers,
        "grids": grids,
        "ranks": list(map(_rank_line, groups)),
        "kernels": tables.merge_kernels(report),
    }


def _named_first(grid: Grid) -> Grid:
    """Return a table of tensors whose layer and tensor come first, where a phone shows them."""
    rows = []
    for *figures, tensor, layer in grid.rows:
        rows.append((layer, tensor, *figures))
    *headings, of_tensor, of_layer = grid.headings
    return grid._replace(headings=(of_layer, of_tensor, *headings), rows=rows)


def _caption_of_ranks(ranks: Sequence[RankReport]) -> str:
    """Name ranks that ran alike, of which the first one is drawn."""
    first = ranks[0]
    label = tables.label_of_group(ranks)
    if len(ranks) == 1:
        return f"{label}: {first.verdict.value}"
    return f"{label}: {first.verdict.value}, {first.label} is drawn"


class RankLine(NamedTuple):
    """A row of the table of ranks: one rank, or several that ran alike.

    Attributes:
        label: which they are.
        number: the first one's, for sorting; -1 if it has none.
        verdict: of each of them.
        layer_share: of each of them.
        time_us: of the first one's GEMMs, for sorting.
        millis: of their GEMMs, or from the least to the most.
        source: their files.
        trace: how many kernels were read, or that a file is damaged.
    """

    label: str
    number: int
    verdict: Verdict
    layer_share: float | None
    time_us: float
    millis: str
    source: str
    trace: str


def _rank_line(ranks: Sequence[RankReport]) -> RankLine:
    first = ranks[0]
    last = ranks[-1]
    times = [sum(rank.gemm.time_us.values()) for rank in ranks]
    source = first.source
    if len(ranks) > 1:
        source = f"{first.source} … {last.source}"
    return RankLine(
        label=tables.label_of_group(ranks),
        number=-1 if first.rank is None else first.rank,
        verdict=first.verdict,
        layer_share=first.layer_share,
        time_us=times[0],
        millis=range_of_times(times),
        source=source,
        trace=_state_of_traces(ranks),
    )


def _state_of_traces(ranks: Sequence[RankReport]) -> str:
    """Say how many kernels each trace has, or how many of the traces are damaged."""
    damaged = 0
    counts = []
    for rank in ranks:
        health = rank.health
        counts.append(health.kernels)
        if health.truncated or health.skipped_events:
            damaged += 1
    if damaged == len(ranks):
        return "damaged"
    if damaged:
        return f"{damaged} damaged"
    least = min(counts)
    most = max(counts)
    if least == most:
        return f"{least} kernels"
    return f"{least}-{most} kernels"


class Place(NamedTuple):
    """Where on a page a finding is seen: the id of an element, and what the link says."""

    anchor: str
    label: str


def _places(
    report: Report,
    ledger: LedgerPicture | None,
    finding: Finding,
) -> list[Place]:
    """Return where a finding is seen: its layers' rows, else what lacks FP8, its ranks, the time."""
    places = _rows_of(ledger, finding, decides=finding.code == report.cause)
    if finding.ranks and len(report.ranks) > 1:
        places.append(Place("ranks", label_of_ranks(finding.ranks)))
    is_of_time = viewed(finding, "speed") or viewed(finding, "costs")
    if is_of_time and any(report.gemm.kernels.values()):
        places.append(Place("gpu", "GPU time"))
    return places


def _rows_of(
    ledger: LedgerPicture | None,
    finding: Finding,
    *,
    decides: bool,
) -> list[Place]:
    """Return the rows of the picture that a finding is about; of many, the first one."""
    if ledger is None:
        return []
    is_of_all = decides or finding.verdict is not None
    numbers: list[int] = []
    if finding.layers:
        numbers = _rows_with(ledger.rows, frozenset(finding.layers))
    elif is_of_all:
        numbers = [number for number, row in enumerate(ledger.rows) if row.lacks]
    places = []
    for number in numbers:
        places.append(Place(f"row-{number + 1}", ledger.rows[number].label))
    labels = {place.label for place in places}
    if len(places) > _PLACES or len(labels) < len(places):
        return [Place(places[0].anchor, f"{len(places)} rows of the picture")]
    return places


def _rows_with(rows: Sequence[Row], layers: frozenset[str]) -> list[int]:
    """Return the indices of the rows of some layers.

    Rows may be of several layers that their order does not tell apart. If exactly as many of them
    ran in one way as are asked for, and no others of that number, these are the ones.
    """
    by_names: dict[frozenset[str], dict[Hashable, list[int]]] = {}
    for number, row in enumerate(rows):
        if not layers.isdisjoint(row.names):
            by_look = by_names.setdefault(row.names, {})
            by_look.setdefault(row.look, []).append(number)
    found: list[int] = []
    for names, by_look in by_names.items():
        count = len(layers & names)
        fitting = [numbers for numbers in by_look.values() if len(numbers) == count]
        if len(fitting) == 1:
            found += fitting[0]
        else:
            found += chain.from_iterable(by_look.values())
    return sorted(found)


class Block(NamedTuple):
    """A piece of a page of the documentation: "head", "text", "item" or "code"."""

    kind: str
    text: str


def explained(finding_code: str) -> list[Block]:
    """Return the page of a finding's code in pieces; nothing where it has none."""
    if not is_in_table(finding_code):
        return []
    blocks: list[Block] = []
    text = finding_page(finding_code)
    parts = _FENCE.split(text)  # prose and code in turn
    prose_parts = parts[::2]
    code_parts = [*parts[1::2], ""]
    for prose, fenced in zip(prose_parts, code_parts, strict=True):
        blocks += _prose_blocks(prose)
        if fenced:
            blocks.append(Block("code", fenced.rstrip()))
    return blocks


def _prose_blocks(prose: str) -> Iterator[Block]:
    for paragraph in prose.strip().split("\n\n"):
        if paragraph.startswith("## "):
            heading = paragraph.removeprefix("## ")
            yield Block("head", heading)
        elif paragraph.startswith("- "):
            _, *items = _ITEM.split(paragraph)
            for item in items:
                yield Block("item", _on_one_line(item))
        elif paragraph:
            plain = paragraph.strip("*")
            yield Block("text", _on_one_line(plain))


def _on_one_line(text: str) -> str:
    words = text.split()
    return " ".join(words)


def _hover(report: TimelineReport) -> dict[str, object]:
    """Return what the page's script shows of each bucket."""
    rows = (
        report.fp8_us,
        report.other_precision_us,
        report.unknown_precision_us,
        report.rest_us,
    )
    return {
        "bucket": report.bucket_us,
        "times": list(zip(*rows, strict=True)),
        "steps": report.steps,
    }


def anchors(findings: Sequence[Finding]) -> list[str]:
    """Return the id of each finding: its code, with a number from the second one on."""
    seen = Counter[str]()
    found = []
    for finding in findings:
        seen[finding.code] += 1
        count = seen[finding.code]
        found.append(f"finding-{finding.code}" + ("" if count == 1 else f"-{count}"))
    return found


@cache
def _environment() -> Environment:
    """Return what writes pages; to compile its templates takes ten times as long as a page."""
    loader = PackageLoader("fp8verify.report", "page")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        optimized=False,  # which takes longer than a page that is written once
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for name, file in (("style", "page.css"), ("script", "page.js")):
        text = loader.get_source(environment, file)[0]
        environment.globals |= {name: text, f"{name}_hash": _hash(text)}
    environment.globals["legends"] = LEGENDS
    environment.filters |= {
        "percent": tables.percent,
        "millis": tables.millis,
        "times": tables.times,
        "figure": tables.figure,
        "plain": printable,
        "name": _short,
        "prose": _prose,
        "layer": _layer,
        "capital": capital,
        "explained": explained,
        "anchors": anchors,
        "tone_of_run": tone_of_run,
        "verdict_of": verdict_of,
        "kind": kind_of,
        "total": lambda amounts: sum(amounts.values()),
    }
    return environment


def _short(text: str) -> str:
    return cut_middle(printable(text), _NAME_WIDTH)


def _prose(text: str) -> Markup:
    """Return a sentence with text in backticks as code, and options in one piece."""
    # As a plain string: substitutions in what is markup are escaped themselves.
    escaped = str(escape(printable(text)))
    marked = _QUOTED.sub(r"<code>\1</code>", escaped)
    marked = _OPTION.sub(r"<kbd>\1</kbd>", marked)
    return Markup(marked)  # noqa: S704 - escaped before


def _layer(text: str) -> Markup:
    """Return the name of a layer, which is broken between its words where it is long."""
    escaped = str(escape(_short(text)))
    broken = _JOINT.sub(r"\1<wbr>", escaped)
    return Markup(broken)  # noqa: S704 - escaped before


def _hash(text: str) -> str:
    """Return the source that lets a page run exactly this text (CSP level 3)."""
    digest = hashlib.sha256(text.encode()).digest()
    encoded = base64.b64encode(digest).decode()
    return f"sha256-{encoded}"


# ---- the pictures: bars, timelines and curves, which the templates draw as SVG

# A kind (the CSS class that colors it), an amount, and what it says when hovered.
Part = tuple[str, float, str]


class Bar(NamedTuple):
    """A labeled bar of several parts; the longest of some bars has the whole width."""

    label: str
    parts: list[Part]
    figures: str

    @property
    def amount(self) -> float:
        """How long it is."""
        return sum(amount for _, amount, _ in self.parts)


def kind_of(precision: str) -> str:
    """Return the CSS class of a precision class."""
    known = Precision(precision)
    if known.is_fp8:
        return "fp8"
    if known is Precision.UNKNOWN:
        return "unknown"
    if known.is_low or known is Precision.INT8:
        return "low"
    return "high"


def leg_bars(report: Report) -> list[Bar]:
    """Draw the GEMMs of each leg by precision."""
    unit = MEASURES[report.measure].unit
    drawn = []
    for leg in report.legs:
        name = leg.leg.value
        parts = _by_kind(leg.time_us, name, unit)
        share = percent(fp8_share(leg.time_us))
        total = millis(sum(leg.time_us.values()))
        drawn.append(Bar(name, parts, f"{share} FP8 of {total} {unit}"))
    return drawn


def rank_bars(report: Report) -> list[Bar]:
    """Draw the GEMMs of the ranks by precision, those not ACTIVE first; ranks alike are one bar."""
    unit = MEASURES[report.measure].unit
    drawn = []
    for ranks in sorted(tables.ranks_alike(report.ranks), key=_order_of_ranks):
        first = ranks[0]
        label = tables.label_of_group(ranks)
        parts = _by_kind(first.gemm.time_us, label, unit)
        share = percent(first.layer_share)
        verdict = first.verdict.value
        drawn.append(
            Bar(label, parts, f"{verdict}, {share} of layers' GEMM time in FP8")
        )
    return drawn


def _order_of_ranks(ranks: Sequence[RankReport]) -> tuple[bool, str, str]:
    first = ranks[0]
    is_active = first.verdict is Verdict.ACTIVE
    verdict = first.verdict.value
    share = percent(first.layer_share)
    return is_active, verdict, share


def gpu_bars(report: Report) -> list[Bar]:
    """Draw what each kind of kernel took, the longest first; GEMMs by precision."""
    unit = MEASURES[report.measure].unit
    whole = sum(report.gpu_time_us.values())
    gemms = Counter(report.gemm.time_us) + Counter(report.optimizer_gemm.time_us)
    drawn = []
    for name, us in tables.by_time(report.gpu_time_us):
        if us <= 0:
            continue
        figures = f"{percent(us / whole)}, {millis(us)} {unit}"
        parts = [("rest", us, f"{name}: {figures}")]
        if name == "gemm":
            parts = _by_kind(gemms, "GEMMs", unit)
        drawn.append(Bar(name, parts, figures))
    return drawn


def _by_kind(time_us: Mapping[str, float], where: str, unit: str) -> list[Part]:
    whole = sum(time_us.values())
    parts = []
    for name, us in time_us.items():
        if us:
            figures = f"{millis(us)} {unit}, {percent(us / whole)}"
            tip = f"{where}, {name}: {figures}"
            parts.append((kind_of(name), us, tip))
    return sorted(parts, key=_place_in_legend)


def _place_in_legend(part: Part) -> int:
    kind, _, _ = part
    return list(LEGENDS).index(kind)


def step_bars(comparison: Comparison) -> list[Bar]:
    """Draw a mean step of both runs by kind of work; GEMMs by precision."""
    before: list[Part] = []
    after: list[Part] = []
    low_before = _low_share(comparison.baseline)
    low_after = _low_share(comparison.candidate)
    for row in comparison.budget:
        change = f"change {row.change_us / 1000:+.2f} ms"
        before += _work_parts(row.name, row.baseline_us, low_before, change)
        after += _work_parts(row.name, row.candidate_us, low_after, change)
    drawn = []
    for name, parts in (("baseline", before), ("candidate", after)):
        bar = Bar(name, parts, "")
        if bar.amount:
            figures = f"{millis(bar.amount)} ms per step"
            drawn.append(bar._replace(figures=figures))
    return drawn


def _low_share(side: Side | None) -> float:
    if side is None:
        return 0.0
    return side.fp8_share_of_time or 0.0


def _work_parts(name: str, time_us: float, low: float, change: str) -> Iterator[Part]:
    """Yield a kind of work as a part of a step; GEMMs as two."""
    us = max(0.0, time_us)
    tip = f"{name}: {millis(us)} ms; {change}"
    if name == "GEMM":
        in_low = us * low
        yield ("fp8", in_low, tip)
        yield ("high", us - in_low, tip)
    else:
        kind = _KIND_OF_WORK.get(name, "work-rest")
        yield (kind, us, tip)


class Timeline(NamedTuple):
    """The picture of one trace's GPU time.

    Attributes:
        width: in buckets, the user units.
        bands: the path of each kind (CSS class) that ran.
        marks: where steps begin, in buckets, by their names.
        millis: the length in ms.
    """

    width: int
    bands: dict[str, str]
    marks: dict[str, float]
    millis: float


def timeline(report: TimelineReport) -> Timeline:
    """Draw the buckets of a trace as columns, GEMMs at the bottom."""
    rows = {
        "fp8": report.fp8_us,
        "high": report.other_precision_us,
        "unknown": report.unknown_precision_us,
        "rest": report.rest_us,
    }
    count = len(report.fp8_us)
    buckets = zip(*rows.values(), strict=True)
    tallest = max(map(sum, buckets), default=0)
    scale = TIMELINE_HEIGHT / max(report.bucket_us, tallest)
    below = [0.0] * count
    bands: dict[str, str] = defaultdict(str)
    for kind, row in rows.items():
        for x, us in enumerate(row):  # a rectangle for each bucket that has time
            if us * scale >= 0.05:
                bands[kind] += (
                    f"M{x} {TIMELINE_HEIGHT - below[x]:.1f}h1v-{us * scale:.1f}h-1z"
                )
            below[x] += us * scale
    span = count * report.bucket_us
    steps = report.steps if len(report.steps) <= _MAX_MARKS else ()
    marks = {
        f"step {number}": round(count * begin / span, 2) for number, begin, _ in steps
    }
    return Timeline(count, bands, marks, span / 1000)


class Curve(NamedTuple):
    """A figure of both runs as paths in a box of 1000 by 100, the baseline's first.

    Attributes:
        paths: of both runs; a step without a number breaks a path.
        ends: what the left and the right end of the axis are called.
        ticks: the figures at the top, in the middle and at the bottom.
        is_log: whether the scale is logarithmic.
    """

    paths: list[str]
    ends: tuple[str, str]
    ticks: tuple[str, str, str]
    is_log: bool


Points = Sequence[tuple[int, float | None, float | None]]


def loss_curves(loss: LossPair | None) -> dict[str, Curve | None]:
    """Draw the losses and the gap (above the baseline, which is at 0).

    The losses have a logarithmic scale where the first steps would flatten the others.
    """
    if loss is None:
        return {"curve": None, "gap": None}
    gaps = []
    for step, before, after in loss.curve:
        if before is not None and after is not None:
            gaps.append((step, 0.0, after - before))
    unit = "value" if loss.counted else "step"
    losses = _values(loss.curve)
    least = min(losses, default=0.0)
    most = max(losses, default=0.0)
    steep = 0 < _STEEP * least <= most
    return {
        "curve": _curve(loss.curve, unit, is_log=steep),
        "gap": _curve(gaps, unit),
    }


def _values(points: Points) -> list[float]:
    values = []
    for _, *both in points:
        values += [value for value in both if value is not None]
    return values


def _curve(points: Points, unit: str, *, is_log: bool = False) -> Curve | None:
    """Draw a figure of both runs; None if fewer than two steps have numbers."""
    values = _values(points)
    if len(points) < 2 or not values:
        return None
    scale = math.log if is_log else float
    least = min(values)
    most = max(values)
    low = scale(least)
    high = scale(most)
    first = points[0][0]
    last = points[-1][0]
    paths = ["", ""]
    for run in (0, 1):
        pen = "M"
        for step, *both in points:
            value = both[run]
            if value is None:
                pen = "M"
                continue
            x = _CURVE_WIDTH * (step - first) / max(1, last - first)
            above = (scale(value) - low) / (high - low or 1.0)
            y = _CURVE_HEIGHT * (1 - above)
            # A point alone between two gaps is a line of no length, which is drawn as a dot.
            paths[run] += f"{pen}{x:.1f} {y:.1f}{'h0' if pen == 'M' else ''}"
            pen = "L"
    if is_log:
        middle = math.sqrt(least * most)
    else:
        middle = (least + most) / 2
    ticks = (f"{most:.4g}", f"{middle:.4g}", f"{least:.4g}")
    return Curve(paths, (f"{unit} {first}", f"{unit} {last}"), ticks, is_log)
