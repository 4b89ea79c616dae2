"""What the model's linear modules were and how they scale, as text."""

from __future__ import annotations

from fp8verify.report.model import ModulesReport, Report
from fp8verify.text import listed


def modules_told(modules: ModulesReport) -> str:
    """Count the modules by state; classes that nobody knows by their names."""
    counts = [f"{count} {_state(state, modules)}" for state, count in modules.counts.items()]
    return f"{', '.join(counts) or 'none'} (linear layers)"


def _state(state: str, modules: ModulesReport) -> str:
    if state != "unknown" or not modules.unknown_classes:
        return state.replace("_", " ")
    return f"unknown ({listed(modules.unknown_classes, 2)}: the GEMMs decide)"


def scaling_told(report: Report) -> str:
    """Say how the operands are scaled: as configured, else as the kernels show."""
    configured = {
        scaling
        for rank in report.ranks
        if rank.modules is not None
        for scaling in rank.modules.scalings
    }
    if configured:
        return ", ".join(sorted(configured))
    return f"{', '.join(report.recipe.time_us)} (as the FP8 kernels show)"
