"""A table of runs as one page: verdicts, shares and step times at a glance, sortable."""

from __future__ import annotations

from fp8verify.report.charts import Bar, Bars, Tick, segments, ticks
from fp8verify.report.escape import printable
from fp8verify.report.model import Verdict
from fp8verify.report.model.run_table import RunRow, RunTable
from fp8verify.report.page_environment import environment
from fp8verify.report.tables import millis, percent

LEGENDS = {"fp8": "FP8", "high": "other precisions", "rest": "a step"}
_TONES = {Verdict.ACTIVE: "good", Verdict.PARTIAL: "fair", Verdict.INCONCLUSIVE: "fair"}


def to_html(found: RunTable) -> str:
    """Render the table.

    Raises:
        UsageError: jinja2 is not installed.
    """
    page = environment()
    page.filters["tone"] = lambda verdict: _TONES.get(verdict, "bad")
    active = sum(run.verdict is Verdict.ACTIVE for run in found.runs)
    return page.get_template("runs.html.j2").render(
        found=found,
        active=active,
        tone="good" if active == len(found.runs) else "fair",
        legends=LEGENDS,
        shares=_shares(found.runs),
        steps=_steps(found.runs),
    )  # fmt: skip


def _shares(runs: tuple[RunRow, ...]) -> Bars:
    rows = [
        Bar(printable(run.name), segments(_parts(run, share), 1.0), f"{percent(share)} FP8")
        for run in runs
        if (share := run.fp8_share_of_time) is not None
    ]
    return Bars(rows, [Tick(at, f"{at}%") for at in (0, 20, 40, 60, 80, 100)])


def _parts(run: RunRow, share: float) -> list[tuple[str, float, str]]:
    tip = f"{printable(run.name)}: {percent(share)} of GEMM time in FP8"
    return [("fp8", share, tip), ("high", 1 - share, tip)]


def _steps(runs: tuple[RunRow, ...]) -> Bars:
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
