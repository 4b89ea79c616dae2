"""What the commands of fp8verify import and work out once, but for `run`."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
from pathlib import Path

CAPTURE = Path(__file__).parents[2] / "traces" / "bf16_filter_rejects_all"
ROOMS = ("cli", "comparison", "pipeline", "preflight", "record", "report", "verdict")


def before_the_forks() -> None:
    """Import all that needs no torch, whose memory would make each fork take four times as long."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    for room in ROOMS:
        name = f"fp8verify.{room}"
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    write_a_report()
    del sys.modules["torch"]


def write_a_report() -> None:
    """Have tables read and expressions compiled, for which each fork would need a tenth of a second."""
    import fp8verify
    from fp8verify.report.forms import render

    report = fp8verify.inspect(CAPTURE)
    for form in ("text", "json", "html"):
        render(report, form)


def in_the_fork() -> None:
    """Open the standard streams as a new interpreter does: those of the server were other files."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
