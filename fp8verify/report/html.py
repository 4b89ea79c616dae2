"""The report as one page that needs no other file and no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fp8verify.report.charts import Timeline, kind_of, timeline
from fp8verify.report.clock import clock_lines, steps_shown
from fp8verify.report.layer_grid import layer_grid
from fp8verify.report.layer_map import layer_map
from fp8verify.report.layers_by_name import kernels_of, layer_us, legs_shown, precisions
from fp8verify.report.log_words import said
from fp8verify.report.model import KernelRow, RankReport, Report, TimelineReport, Verdict, fp8_count
from fp8verify.report.naming import run_name
from fp8verify.report.numerics_page import TENSORS, numerics_page
from fp8verify.report.numerics_text import memory_lines
from fp8verify.report.page_bars import LEGENDS, gpu_bars, leg_bars, precision_bar, total
from fp8verify.report.page_environment import embedded, environment, short_name
from fp8verify.report.tables import (
    gravest_first,
    merge_kernels,
    precision_rows,
    rank_label,
    software,
    told_findings,
)
from fp8verify.report.worth import told_worth, worth
from fp8verify.verdict.baseline import layer_states

if TYPE_CHECKING:
    from jinja2 import Environment

_KERNELS = 800
_RANKS = 1024
_TIMELINES = 16
_STEPS = 2000
_CLOCKS = 8
_LAYERS = 1000
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
    page = _environment().get_template("page.html.j2")
    return page.render(
        report=report,
        legends=LEGENDS,
        **_summary(report),
        **_charts(report),
        **_layers(report),
        **_tables(report),
    )


def _summary(report: Report) -> dict[str, object]:
    """Return what the page says before its first chart."""
    paid = worth(report)
    return {
        "run": run_name(report),
        "tone": _TONES.get(report.verdict, "bad"),
        "worth": told_worth(report, paid) if paid else "",
        "worth_tone": _WORTH_TONES.get(paid.word, "fair") if paid else "",
        "findings": gravest_first(told_findings(report)),
        "software": software(report),
        "clocks": clock_lines(report)[:_CLOCKS],
    }


def _charts(report: Report) -> dict[str, object]:
    shown = _timelines(report)
    return {
        "precisions": precision_rows(report.gemm),
        "precision_bar": precision_bar(report),
        "legs": leg_bars(report.legs),
        "gpu_times": gpu_bars(report),
        "timelines": shown,
        "timeline_data": embedded([_hover(rank) for one in shown for rank in one.reports]),
        "hidden_timelines": max(0, sum(bool(r.timelines) for r in report.ranks) - len(shown)),
    }


def _layers(report: Report) -> dict[str, object]:
    """Return what the page shows of layers, by size and by name, and of their tensors."""
    named = next((rank.named_layers for rank in report.ranks if rank.named_layers), None)
    return {
        "grid": layer_grid(layer_states(report)),
        "sizes": [rank.layers for rank in report.ranks if rank.layers and rank.layers.rows][:1],
        "named": named,
        "named_rows": named.rows[:_LAYERS] if named else (),
        "named_legs": legs_shown(named.rows) if named else (),
        "map": layer_map(report),
        "memory": memory_lines(report),
        "numerics": numerics_page(report),
        "numerics_tensors": TENSORS,
    }


def _tables(report: Report) -> dict[str, object]:
    """Return the ranks, steps and kernels, as many as a page can hold."""
    steps = [(rank, step) for rank in report.ranks for step in rank.steps]
    kernels = merge_kernels(report)
    return {
        "ranks": _telling_first(report)[:_RANKS],
        "steps_shown": steps_shown(report),
        "steps": steps[:_STEPS],
        "hidden_steps": max(0, len(steps) - _STEPS),
        "kernels": kernels[:_KERNELS],
        "hidden_kernels": max(0, len(kernels) - _KERNELS),
    }


def _environment() -> Environment:
    found = environment()
    found.tests["worse"] = lambda rank: rank.verdict is not Verdict.ACTIVE
    found.filters |= {
        "rank": rank_label,
        "kind": kind_of,
        "is_gemm": _is_gemm,
        "total": total,
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


def _heat(done: int, all_of_them: int) -> str:
    """Return the CSS class of a cell that counts how many of its GEMMs ran in FP8."""
    if not all_of_them:
        return "none"
    return "fp8" if done >= all_of_them else "mixed" if done else "high"


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
