"""One line of a long run: the figures of a measured step whose trend is worth watching."""

from __future__ import annotations

from typing import Any

FIGURES = ("amax", "rms", "scale", "flushed", "saturated", "sqnr_db", "nan", "inf")


def line_of(result: dict[str, Any]) -> dict[str, Any]:
    """Return a measured step as columns, one entry for each row."""
    rows = result["rows"]
    return {
        "step": result["step"],
        "time": result["time"],
        "gradient": result["gradient"],
        "layer": [row["layer"] for row in rows],
        "tensor": [row["tensor"] for row in rows],
        **{name: [_short(row[name]) for row in rows] for name in FIGURES},
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
