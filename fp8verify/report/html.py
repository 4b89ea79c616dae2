"""The writer of HTML: each result as one page that needs no other file and no network.

The pictures are SVG that the templates write. A chart library would be the larger part of the page
(plotly.js has 4 MB, Vega 0.8 MB) and asks for `eval` or inline styles, which the page's security
policy forbids; the pictures here are bars, columns and cells, which need none.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fp8verify.report import charts, tables
from fp8verify.report.comparison_page import verdict_of
from fp8verify.report.model.comparison import Comparison, RunRow
from fp8verify.report.model.parts import TimelineReport
from fp8verify.report.model.report import Rendered, Report
from fp8verify.report.page import BAD, Page
from fp8verify.report.report_page import TONES
from fp8verify.report.tables import layer_table
from fp8verify.terms import Verdict
from fp8verify.text import cut_middle, printable

_TIMELINES = 16
_NAME_WIDTH = 240
_ROWS = 64  # of a table in a notebook


def write_html(result: Rendered, page: Page) -> str:
    """Write a report, a comparison or a table of runs as a page."""
    if isinstance(result, Report):
        name, facts = "page", _report_facts(result, page)
    elif isinstance(result, Comparison):
        facts = {"steps": charts.step_bars(result), **charts.loss_curves(result.loss)}
        name = "compare"
    else:
        name, facts = "runs", {}
    template = _environment().get_template(f"{name}.html.j2")
    return template.render(result=result, page=page, **facts)


def write_notebook(page: Page) -> str:
    """Write a few lines of HTML for a notebook's cell: verdict, findings, tables."""
    grids = [grid.head(_ROWS) for grid in page.grids if not grid.folded]
    return _environment().get_template("notebook.html.j2").render(page=page, grids=grids)


def _report_facts(report: Report, page: Page) -> dict[str, Any]:
    """Return what the page of a report shows besides its `Page`, as much as a page can hold."""
    not_active_first = sorted(report.ranks, key=lambda rank: rank.verdict is Verdict.ACTIVE)
    shown = [rank for rank in not_active_first[:_TIMELINES] if rank.timelines]
    shown.sort(key=lambda rank: -1 if rank.rank is None else rank.rank)
    drawn = [(rank, list(map(charts.timeline, rank.timelines))) for rank in shown]
    return {
        "legs": charts.leg_bars(report),
        "timelines": drawn,
        "timeline_data": [_hover(one) for rank in shown for one in rank.timelines],
        # Of several ranks the first one's.
        "grids": {grid.title: grid for grid in reversed(list(page.grids))},
        "layers": layer_table(report),
        "ranks": not_active_first,
        "kernels": tables.merge_kernels(report),
    }


def _hover(report: TimelineReport) -> dict[str, object]:
    """Return what the page's script shows of each bucket."""
    rows = (report.fp8_us, report.other_precision_us, report.unknown_precision_us, report.rest_us)
    return {
        "bucket": report.bucket_us,
        "times": list(zip(*rows, strict=True)),
        "steps": report.steps,
    }


def _environment() -> Environment:
    loader = PackageLoader("fp8verify.report", "page")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for name, file in (("style", "page.css"), ("script", "page.js")):
        text = loader.get_source(environment, file)[0]
        environment.globals |= {name: text, f"{name}_hash": _hash(text)}
    environment.globals["legends"] = charts.LEGENDS
    environment.filters |= {
        "percent": tables.percent,
        "millis": tables.millis,
        "times": tables.times,
        "figure": tables.figure,
        "plain": printable,
        "name": _short,
        "prose": _prose,
        "tone_of_run": _tone_of_run,
        "verdict_of": verdict_of,
        "kind": charts.kind_of,
        "total": lambda amounts: sum(amounts.values()),
    }
    return environment


def _tone_of_run(run: RunRow) -> str:
    """Return the tone of a verdict; a run that is ACTIVE and fails is bad."""
    failed = run.verdict is Verdict.ACTIVE and run.exit_code
    return BAD if failed else TONES.get(run.verdict, BAD)


def _short(text: str) -> str:
    return cut_middle(printable(text), _NAME_WIDTH)


def _prose(text: str) -> Markup:
    """Return a sentence with text in backticks as code."""
    # Not `markupsafe.escape`: substitutions in its result are escaped themselves.
    marked = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(printable(text)))
    return Markup(marked)  # noqa: S704 - escaped before


def _hash(text: str) -> str:
    """Return the source that lets a page run exactly this text (CSP level 3)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
