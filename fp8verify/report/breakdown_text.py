"""The text's table of what HolisticTraceAnalysis found."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fp8verify.report.escape import printable
from fp8verify.report.layout import plain_table
from fp8verify.report.model import BreakdownReport
from fp8verify.report.tables import millis, percent


def breakdown_table(breakdown: BreakdownReport) -> RenderableType:
    """Show each rank's GPU time, and the notes on those without figures."""
    title = f"HTA {breakdown.hta_version} rank"
    table = plain_table(
        title, "GPU ms", "idle", "computing", "other", "comm. hidden", words=[title]
    )
    for rank in breakdown.ranks:
        hidden = rank.communication_overlap_percent
        shares = (rank.idle_us, rank.compute_us, rank.non_compute_us)
        table.add_row(
            str(rank.rank),
            millis(rank.span_us),
            *(percent(us / rank.span_us if rank.span_us else None) for us in shares),
            percent(None if hidden is None else hidden / 100),
        )
    notes = [Text(printable(note)) for note in breakdown.notes]
    return Padding(Group(*([table] if breakdown.ranks else []), *notes), (1, 0, 0, 0))
