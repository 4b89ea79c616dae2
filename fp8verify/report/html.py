"""The report as one page that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.judging.baseline import layer_states
from fp8verify.model import (
    KernelRow,
    LegRow,
    RankReport,
    Report,
    TimelineReport,
    Verdict,
    fp8_count,
    fp8_share,
)
from fp8verify.report.charts import (
    Bar,
    Bars,
    Segment,
    Tick,
    Timeline,
    kind_of,
    segments,
    ticks,
    timeline,
)
from fp8verify.report.clock import clock_lines, steps_shown
from fp8verify.report.layer_grid import layer_grid
from fp8verify.report.layer_map import layer_map
from fp8verify.report.layers_by_name import kernels_of, layer_us, legs_shown, precisions
from fp8verify.report.log_words import said
from fp8verify.report.naming import run_name
from fp8verify.report.numerics_page import TENSORS, numerics_page
from fp8verify.report.numerics_text import memory_lines
from fp8verify.report.page_environment import embedded, environment, short_name
from fp8verify.report.tables import (
    gravest_first,
    merge_kernels,
    millis,
    percent,
    precision_rows,
    rank_label,
    software,
    told_findings,
)
from fp8verify.report.worth import told_worth, worth

if TYPE_CHECKING:
    from jinja2 import Environment

_KERNELS = 800
_RANKS = 1024
_TIMELINES = 16
_STEPS = 2000
_CLOCKS = 8
_LAYERS = 1000
LEGENDS = {
    "fp8": "FP8",
    "high": "higher precision",
    "mixed": "some in FP8",
    "low": "other 4 or 8 bits",
    "unknown": "unknown precision",
    "rest": "other kernels",
}
_WORTH_TONES = {"likely yes": "good", "likely not": "bad"}
_TONES = {Verdict.ACTIVE: "good", Verdict.PARTIAL: "fair", Verdict.INCONCLUSIVE: "fair"}


class RankTimeline(NamedTuple):
    """The timelines of one rank, one for each window."""

    label: str
    verdict: str
    timelines: list[Timeline]
    reports: tuple[TimelineReport, ...]


def to_html(report: Report) -> str:
    """Render the report.

    Raises:
        UsageError: jinja2 is not installed.
    """
    page = _environment()
    kernels = merge_kernels(report)
    named = next((rank.named_layers for rank in report.ranks if rank.named_layers), None)
    shown = _timelines(report)
    steps = [(rank, step) for rank in report.ranks for step in rank.steps]
    paid = worth(report)
    return page.get_template("page.html.j2").render(
        report=report,
        run=run_name(report),
        worth=told_worth(report, paid) if paid else "",
        worth_tone=_WORTH_TONES.get(paid.word, "fair") if paid else "",
        findings=gravest_first(told_findings(report)),
        tone=_TONES.get(report.verdict, "bad"),
        software=software(report),
        clocks=clock_lines(report)[:_CLOCKS],
        legends=LEGENDS,
        precisions=precision_rows(report.gemm),
        precision_bar=_precision_bar(report),
        legs=_leg_bars(report.legs),
        gpu_times=_gpu_bars(report),
        timelines=shown,
        timeline_data=embedded([_hover(rank) for one in shown for rank in one.reports]),
        hidden_timelines=max(0, sum(bool(rank.timelines) for rank in report.ranks) - len(shown)),
        grid=layer_grid(layer_states(report)),
        sizes=[rank.layers for rank in report.ranks if rank.layers and rank.layers.rows][:1],
        named=named,
        named_rows=named.rows[:_LAYERS] if named else (),
        named_legs=legs_shown(named.rows) if named else (),
        map=layer_map(report),
        memory=memory_lines(report),
        numerics=numerics_page(report),
        numerics_tensors=TENSORS,
        ranks=_telling_first(report)[:_RANKS],
        steps_shown=steps_shown(report),
        steps=steps[:_STEPS],
        hidden_steps=max(0, len(steps) - _STEPS),
        kernels=kernels[:_KERNELS],
        hidden_kernels=max(0, len(kernels) - _KERNELS),
    )  # fmt: skip


def _environment() -> Environment:
    found = environment()
    found.tests["worse"] = lambda rank: rank.verdict is not Verdict.ACTIVE
    found.filters |= {
        "rank": rank_label,
        "kind": kind_of,
        "is_gemm": _is_gemm,
        "total": _total,
        "heat": _heat,
        "in_fp8": fp8_count,
        "kernels_of": kernels_of,
        "precisions": precisions,
        "layer_us": layer_us,
        "said": said,
    }
    return found


def _is_gemm(row: KernelRow) -> bool:
    return row.role.is_gemm


def _total(time_us: Mapping[str, float]) -> float:
    return sum(time_us.values())


def _heat(done: int, all_of_them: int) -> str:
    """Return the CSS class of a cell that counts how many of its GEMMs ran in FP8."""
    if not all_of_them:
        return "none"
    return "fp8" if done >= all_of_them else "mixed" if done else "high"


def _precision_bar(report: Report) -> Bars:
    rows = precision_rows(report.gemm)
    total = sum(row.time_us for row in rows)
    parts = [
        (kind_of(row.precision), row.time_us, _tip(row.precision, row.time_us, row.share))
        for row in rows
    ]
    return Bars([Bar("GEMMs", segments(parts, total), f"{millis(total)} ms")], _ms_ticks(total))


def _tip(label: str, time_us: float, share: float) -> str:
    return f"{label}: {millis(time_us)} ms, {percent(share)}"


def _ms_ticks(total_us: float) -> list[Tick]:
    return ticks(total_us / 1000, " ms")


def _leg_bars(legs: tuple[LegRow, ...]) -> Bars:
    """All legs on one scale, so that their lengths compare."""
    longest = max((_total(leg.time_us) for leg in legs), default=0.0)
    rows = [
        Bar(
            leg.leg.value,
            segments(_by_kind(leg.time_us, leg.leg.value), longest),
            f"{percent(fp8_share(leg.time_us))} FP8 of {millis(_total(leg.time_us))} ms",
        )
        for leg in legs
    ]
    return Bars(rows, _ms_ticks(longest))


def _by_kind(time_us: dict[str, float], where: str) -> list[tuple[str, float, str]]:
    order = list(LEGENDS)
    total = _total(time_us)
    parts = [
        (kind_of(name), us, _tip(f"{where}, {name}", us, us / total if total else 0.0))
        for name, us in time_us.items()
    ]
    return sorted(parts, key=lambda part: order.index(part[0]))


def _gpu_bars(report: Report) -> Bars:
    """What each kind of kernel took, on the scale of all GPU time."""
    total = _total(report.gpu_time_us)
    rows = [
        Bar(
            name,
            _gpu_segments(report, name, us, total),
            f"{percent(us / total)}, {millis(us)} ms",
        )
        for name, us in sorted(report.gpu_time_us.items(), key=lambda item: -item[1])
        if us
    ]
    return Bars(rows, [Tick(at, f"{at}%") for at in (0, 20, 40, 60, 80, 100)])


def _gpu_segments(report: Report, name: str, us: float, total: float) -> list[Segment]:
    if name == "gemm":
        return segments(_by_kind(report.gemm.time_us, "GEMMs"), total)
    return segments([("rest", us, _tip(name, us, us / total if total else 0.0))], total)


def _hover(report: TimelineReport) -> dict[str, object]:
    """Return what the page's script shows of each bucket."""
    rows = (report.fp8_us, report.other_precision_us, report.unknown_precision_us, report.rest_us)
    return {
        "bucket": report.bucket_us,
        "times": list(zip(*rows, strict=True)),
        "names": [short_name(name) for name in report.names],
        "longest": report.longest,
        "steps": report.steps,
    }


def _telling_first(report: Report) -> list[RankReport]:
    return sorted(report.ranks, key=lambda rank: rank.verdict is Verdict.ACTIVE)


def _timelines(report: Report) -> list[RankTimeline]:
    shown = _telling_first(report)[:_TIMELINES]
    shown.sort(key=lambda rank: -1 if rank.rank is None else rank.rank)
    return [
        RankTimeline(
            rank_label(rank),
            rank.verdict.value,
            list(map(timeline, rank.timelines)),
            rank.timelines,
        )
        for rank in shown
        if rank.timelines
    ]
