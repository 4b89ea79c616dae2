"""The writer of HTML: each result as one page that needs no other file and no network.

The pictures are SVG that the templates write. A chart library would be the larger part of the page
(plotly.js has 4 MB, Vega 0.8 MB) and asks for `eval` or inline styles, which the page's security
policy forbids; the pictures here are bars, columns and cells, which need none.
"""

from __future__ import annotations

import base64
import hashlib
from functools import singledispatch
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fp8verify.report import comparison_charts as compared
from fp8verify.report.charts import Bar, Bars, Tick, Timeline, kind_of, segments, ticks, timeline
from fp8verify.report.clock import clock_lines
from fp8verify.report.comparison_page import loss_lines
from fp8verify.report.escape import printable, shorten
from fp8verify.report.layer_grid import layer_grid
from fp8verify.report.layer_map import layer_map
from fp8verify.report.layers_by_name import kernels_of, layer_us, legs_shown, precisions
from fp8verify.report.model import KernelRow, RankReport, Report, TimelineReport, Verdict, fp8_count
from fp8verify.report.model.comparison import Comparison
from fp8verify.report.model.run_table import RunRow, RunTable
from fp8verify.report.numerics_page import TENSORS, numerics_page
from fp8verify.report.numerics_text import memory_lines
from fp8verify.report.page_bars import LEGENDS, gpu_bars, leg_bars, precision_bar, total
from fp8verify.report.page_of import Result, page_of
from fp8verify.report.report_page import TONES, claim_text
from fp8verify.report.tables import (
    layer_share,
    merge_kernels,
    millis,
    percent,
    rank_label,
)
from fp8verify.verdict.baseline import layer_states

_KERNELS = 800
_RANKS = 1024
_TIMELINES = 16
_STEPS = 2000
_CLOCKS = 8
_LAYERS = 1000
_NAME_WIDTH = 240
_RUN_LEGENDS = {"fp8": "FP8", "high": "other precisions", "rest": "a step"}


class RankTimeline(NamedTuple):
    """The timelines of one rank, one for each window."""

    label: str
    verdict: str
    timelines: list[Timeline]
    reports: tuple[TimelineReport, ...]


def write_html(found: Result) -> str:
    """Write a report, a comparison or a table of runs as a page."""
    page = page_of(found, verbose=True)
    to_do = [note.text for note in page.actions() if note.label == "to do"]
    name, facts = _facts(found)
    template = _environment().get_template(name)
    return template.render(found=found, page=page, to_do=to_do[:1], **facts)


@singledispatch
def _facts(found: object) -> tuple[str, dict[str, Any]]:
    """Return the template of a result, and what it shows besides the page."""
    raise TypeError(f"{type(found).__name__} has no page")


@_facts.register
def _(report: Report) -> tuple[str, dict[str, Any]]:
    return "page.html.j2", {
        "report": report,
        "legends": LEGENDS,
        "clocks": clock_lines(report)[:_CLOCKS],
        **_charts(report),
        **_layers(report),
        **_tables(report),
    }


def _charts(report: Report) -> dict[str, object]:
    shown = _timelines(report)
    return {
        "precision_bar": precision_bar(report),
        "legs": leg_bars(report.legs),
        "gpu_times": gpu_bars(report),
        "timelines": shown,
        "timeline_data": _embedded([_hover(rank) for one in shown for rank in one.reports]),
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
        "steps": steps[:_STEPS],
        "hidden_steps": max(0, len(steps) - _STEPS),
        "kernels": kernels[:_KERNELS],
        "hidden_kernels": max(0, len(kernels) - _KERNELS),
    }


def _hover(report: TimelineReport) -> dict[str, object]:
    """Return what the page's script shows of each bucket."""
    rows = (report.fp8_us, report.other_precision_us, report.unknown_precision_us, report.rest_us)
    return {
        "bucket": report.bucket_us,
        "times": list(zip(*rows, strict=True)),
        "names": [_short(name) for name in report.names],
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


@_facts.register
def _(found: Comparison) -> tuple[str, dict[str, Any]]:
    kinds = [compared.KINDS[row.name] for row in found.budget if row.name in compared.KINDS]
    return "compare.html.j2", {
        "legends": compared.LEGENDS | compared.CURVES,
        "steps": compared.step_bars(found),
        "legs": compared.leg_bars(found),
        "kinds": kinds,
        "curve": compared.loss_curve(found.loss),
        "gap": compared.gap_curve(found.loss),
        "gradients": compared.gradient_curve(found.loss),
        "loss_line": loss_lines(found.loss) if found.loss else "",
    }


@_facts.register
def _(found: RunTable) -> tuple[str, dict[str, Any]]:
    return "runs.html.j2", {
        "legends": _RUN_LEGENDS,
        "shares": _share_bars(found.runs),
        "steps": _step_bars(found.runs),
    }


def _share_bars(runs: tuple[RunRow, ...]) -> Bars:
    rows = []
    for run in runs:
        share = run.fp8_share_of_time
        if share is not None:
            tip = f"{printable(run.name)}: {percent(share)} of GEMM time in FP8"
            parts = segments([("fp8", share, tip), ("high", 1 - share, tip)], 1.0)
            rows.append(Bar(printable(run.name), parts, f"{percent(share)} FP8"))
    return Bars(rows, [Tick(at, f"{at}%") for at in (0, 20, 40, 60, 80, 100)])


def _step_bars(runs: tuple[RunRow, ...]) -> Bars:
    longest = max((run.step_us or 0.0 for run in runs), default=0.0)
    rows = [
        Bar(
            printable(run.name),
            segments([("rest", us, f"{printable(run.name)}: {millis(us)} ms a step")], longest),
            f"{millis(us)} ms",
        )
        for run in runs
        if (us := run.step_us)
    ]
    return Bars(rows, ticks(longest / 1000, " ms"))


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("fp8verify.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style, script = _asset("page.css"), _asset("page.js")
    found.globals |= {
        "style": style,
        "script": script,
        "style_hash": _hash(style),
        "script_hash": _hash(script),
    }
    found.tests["worse"] = lambda rank: rank.verdict is not Verdict.ACTIVE
    found.filters |= {
        "percent": percent,
        "millis": millis,
        "plain": printable,
        "name": _short,
        "prose": _prose,
        "rank": rank_label,
        "share": layer_share,
        "tone": lambda verdict: TONES.get(verdict, "bad"),
        "kind": kind_of,
        "is_gemm": _is_gemm,
        "total": total,
        "heat": _heat,
        "in_fp8": fp8_count,
        "kernels_of": kernels_of,
        "precisions": precisions,
        "layer_us": layer_us,
        "said": claim_text,
    }
    return found


def _is_gemm(row: KernelRow) -> bool:
    return row.role.is_gemm


def _heat(done: int, all_of_them: int) -> str:
    """Return the CSS class of a cell that counts how many of its GEMMs ran in FP8."""
    if not all_of_them:
        return "none"
    return "fp8" if done >= all_of_them else "mixed" if done else "high"


def _short(text: str) -> str:
    return shorten(printable(text), _NAME_WIDTH)


def _prose(text: str) -> Markup:
    """Return a sentence with what stands in backticks as code."""
    parts = [escape(part) for part in printable(text).split("`")]
    if len(parts) % 2 == 0:  # a backtick without its pair
        return escape(printable(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part
        for place, part in enumerate(parts)
    )


def _embedded(data: Any) -> str:
    """Return JSON that may stand inside a script element: no markup begins or ends in it."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (Path(__file__).parent / "page" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """Return the source that lets a page run exactly this text (CSP level 3)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
