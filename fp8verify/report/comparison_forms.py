"""The forms of a comparison, each imported when it is asked for."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Protocol

from fp8verify.report.comparison_tables import (
    OTHER_SIGN,
    SIGNS,
    grids,
    kernels_alone,
    loss_lines,
    title,
    word,
)
from fp8verify.report.escape import cell, markdown
from fp8verify.report.forms import RenderOptions
from fp8verify.report.grid import to_markdown as table_markdown
from fp8verify.report.model.comparison import Comparison, Outcome

_MARKDOWN_ROWS = 30
COLUMNS = (
    "kind",
    "name",
    "leg",
    "baseline_precision",
    "candidate_precision",
    "baseline_us",
    "candidate_us",
    "speedup",
)


class Form(Protocol):
    """One form of a comparison."""

    def __call__(self, found: Comparison, options: RenderOptions, /) -> str:
        """Render a comparison whole."""


def _text(found: Comparison, options: RenderOptions) -> str:
    from fp8verify.report.comparison_text import to_text

    terminal, verbose, width = options
    return to_text(found, terminal=terminal, verbose=verbose, width=width)


def _json(found: Comparison, _: RenderOptions) -> str:
    from fp8verify.report.json_form import to_json

    return to_json(found)


def _html(found: Comparison, _: RenderOptions) -> str:
    from fp8verify.report.comparison_html import to_html

    return to_html(found)


def to_markdown(found: Comparison) -> str:
    """Render a comparison for job summaries and pull requests."""
    return "\n\n".join(_blocks(found)) + "\n"


def _blocks(found: Comparison) -> Iterator[str]:
    yield f"## {SIGNS.get(found.outcome, OTHER_SIGN)} FP8 {word(found)}"
    yield f"{markdown(found.reason)}."
    yield from (
        f"- **{one.severity.value}** `{one.code}`: {markdown(one.message)}  \n"
        f"  {markdown(one.hint)}"
        for one in found.findings
    )
    for grid in grids(found):
        rest = len(grid.rows) - _MARKDOWN_ROWS
        more = f"\n\n… and {rest} more" if rest > 0 else ""
        yield f"**{grid.title}**\n\n{table_markdown(grid.head(_MARKDOWN_ROWS))}{more}"
    if found.baseline is not None:
        yield kernels_alone(found)
    if found.loss is not None:
        yield markdown(loss_lines(found.loss))
    yield from (f"Note: {markdown(note)}" for note in found.notes)
    yield f"<sub>fp8verify {found.fp8verify_version} · {markdown(title(found))}</sub>"


def _github(found: Comparison, _: RenderOptions) -> str:
    from fp8verify.report.github import annotation

    level = {Outcome.FASTER: "notice"}.get(found.outcome, "warning")
    level = "error" if found.exit_code else level
    lines = [annotation(level, f"FP8 {word(found)}", f"{found.reason}.")]
    lines += [
        annotation(one.severity.value, f"FP8 {one.code}", f"{one.message}\n{one.hint}")
        for one in found.findings
    ]
    return "".join(f"{line}\n" for line in lines)


def _csv(found: Comparison, _: RenderOptions) -> str:
    """Render a row for each kind of work, leg, layer, GEMM and rank under a line of names."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([cell(v) if isinstance(v, str) else v for v in row] for row in rows(found))
    return buffer.getvalue()


def rows(found: Comparison) -> Iterator[tuple[object, ...]]:
    """Yield the figures of a comparison, one row each, as `COLUMNS` names them."""
    for part in found.budget:
        speedup = part.baseline_us / part.candidate_us if part.candidate_us > 0 else None
        yield "budget", part.name, None, None, None, part.baseline_us, part.candidate_us, speedup
    for leg in found.legs:
        yield "leg", None, leg.leg, None, None, leg.baseline_us, leg.candidate_us, leg.speedup
    for rank in found.ranks:
        own = (rank.baseline_us, rank.candidate_us, rank.step_speedup)
        yield "rank", rank.rank, None, None, None, *own
    for layer in found.layers:
        classes = (layer.baseline_precision, layer.candidate_precision)
        own_times = (layer.baseline_us, layer.candidate_us, layer.speedup)
        yield "layer", layer.layer, None, *classes, *own_times
    for pair in found.gemms:
        classes = (pair.baseline_precision, pair.candidate_precision)
        figures = (pair.baseline_us, pair.candidate_us, pair.speedup)
        yield "gemm", f"{pair.n}x{pair.k}", pair.leg, *classes, *figures


FORMS: dict[str, Form] = {
    "text": _text,
    "json": _json,
    "html": _html,
    "markdown": lambda found, _: to_markdown(found),
    "github": _github,
    "csv": _csv,
}


def render(found: Comparison, form: str, options: RenderOptions | None = None) -> str:
    """Render a comparison in one of `FORMS`."""
    return FORMS[form](found, options or RenderOptions())
