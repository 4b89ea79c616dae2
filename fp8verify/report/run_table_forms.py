"""The forms of a table of runs: text, JSON, CSV, Markdown, HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator

from rich.text import Text

from fp8verify.report.escape import cell, printable
from fp8verify.report.first_lines import OTHER_STYLE, VERDICT_STYLES
from fp8verify.report.forms import RenderOptions
from fp8verify.report.grid import Grid
from fp8verify.report.grid import to_markdown as table_markdown
from fp8verify.report.layout import PlainTable, render
from fp8verify.report.model.run_table import RunRow, RunTable
from fp8verify.report.tables import millis, percent

_LISTS = ("precisions", "scaling")
COLUMNS = tuple(name for name in RunRow.__struct_fields__ if name != "software")
_NAMES = ("verdict", "FP8", "lowest", "step ms", "GEMM ms", "casts", "gain", "run")


def grid(found: RunTable) -> Grid:
    """Return the table; "lowest" is the FP8 share of the rank that has the least."""
    several = any(row.ranks > 1 for row in found.runs)
    names = tuple(name for name in _NAMES if several or name != "lowest")
    rows = tuple(tuple(map(_cells(row).__getitem__, names)) for row in found.runs)
    return Grid("Runs", names, ("verdict", "run"), rows, stretch=True)


def _cells(row: RunRow) -> dict[str, str]:
    return {
        "verdict": row.verdict.value,
        "FP8": percent(row.fp8_share_of_time),
        "lowest": percent(row.lowest_rank_share) if row.ranks > 1 else "-",
        "step ms": "-" if row.step_us is None else millis(row.step_us),
        "GEMM ms": "-" if row.gemm_us_per_step is None else millis(row.gemm_us_per_step),
        "casts": percent(row.casts_share_of_gpu_time),
        "gain": "-" if row.speedup_estimate is None else f"{row.speedup_estimate:.2f}x",
        "run": printable(row.name),
    }


def to_text(
    found: RunTable, *, terminal: bool = False, verbose: bool = False, width: int | None = None
) -> str:
    """Render the table; with `verbose` the reason of each verdict stands below."""
    shown = grid(found)
    table = PlainTable(shown.names, shown.words, stretch=True, uncut=verbose)
    for row, run in zip(shown.rows, found.runs, strict=True):
        table.add_row(Text(row[0], VERDICT_STYLES.get(run.verdict, OTHER_STYLE)), *row[1:])
    reasons = [Text(f"{printable(run.name)}: {printable(run.reason)}.") for run in found.runs]
    notes = [Text(_LEGEND, style="dim")]
    return render([table, *(reasons if verbose else []), *notes], terminal=terminal, width=width)


_LEGEND = (
    "FP8: share of GEMM time; casts: share of GPU time; gain: GPU time against BF16, by estimate; "
    "times are of one step"
)


def to_markdown(found: RunTable) -> str:
    """Render the table for a pull request, with its legend."""
    return table_markdown(grid(found)) + f"\n\n{_LEGEND}\n"


def _csv(found: RunTable, _: RenderOptions) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([cell(v) if isinstance(v, str) else v for v in row] for row in rows(found))
    return buffer.getvalue()


def rows(found: RunTable) -> Iterator[tuple[object, ...]]:
    """Yield the runs as `COLUMNS` names their fields, words for terms and lists."""
    for run in found.runs:
        values = run.__struct_fields__
        yield tuple(_plain(name, getattr(run, name)) for name in values if name in COLUMNS)


def _plain(name: str, value: object) -> object:
    if name in _LISTS and isinstance(value, tuple):
        return " ".join(value)
    return value.value if name == "verdict" and hasattr(value, "value") else value


def _json(found: RunTable, _: RenderOptions) -> str:
    from fp8verify.report.json_form import to_json

    return to_json(found)


def _html(found: RunTable, _: RenderOptions) -> str:
    from fp8verify.report.run_table_html import to_html

    return to_html(found)


def _text(found: RunTable, options: RenderOptions) -> str:
    terminal, verbose, width = options
    return to_text(found, terminal=terminal, verbose=verbose, width=width)


FORMS: dict[str, Callable[[RunTable, RenderOptions], str]] = {
    "text": _text,
    "json": _json,
    "csv": _csv,
    "markdown": lambda found, _: to_markdown(found),
    "html": _html,
}
