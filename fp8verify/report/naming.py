"""How the forms call a run."""

from __future__ import annotations

from fp8verify.report.escape import printable
from fp8verify.report.model import Report


def run_name(report: Report) -> str:
    """Return the name of the run, fit to be shown."""
    return printable(report.name)
