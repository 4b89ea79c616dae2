"""What a run left behind: its capture, and why nothing was observed if nothing was."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fp8verify.capture.names import METAS
from fp8verify.record.boot_errors import boot_errors
from fp8verify.record.folder import CaptureFolder
from fp8verify.record.rank_logs import collect_rank_logs
from fp8verify.record.settings import RunResult, RunSettings

INNER = "inner"  # written by boot/sitecustomize.py
RANKS = "ranks"  # and one for each that claimed its files
IMPORTED = "imported"  # by the agent: one line for each process that imported torch
MAX_BYTES = 64 << 10
LAST_LINE = 300
STEP = "call fp8verify.step() after each step"


def look_back(
    boot: Path, capture: CaptureFolder, exit_code: int, settings: RunSettings
) -> RunResult:
    """Return what a run that has ended left in its capture and in its boot folder."""
    collect_rank_logs(boot, capture)
    unwritten = _remove_empty(capture.path)
    errors = boot_errors(boot, capture.path if settings.debug else None)
    inner = _inner_captures(boot)
    if not errors and any(capture.path.glob(METAS)):
        ranks = tuple(int(line) for line in _lines(boot / RANKS) if line.isdecimal())
        return RunResult(capture.path, exit_code, notes=unwritten, ranks=ranks)
    if inner:
        notes = (f"a run of fp8verify inside this one recorded the training: {inner[0]}",)
        return RunResult(capture=Path(inner[0]), exit_code=exit_code, notes=notes)
    return RunResult(
        capture=capture.path,
        exit_code=exit_code,
        notes=errors or unwritten or (_why_unobserved(boot, capture, exit_code),),
    )


def _remove_empty(folder: Path) -> tuple[str, ...]:
    """Take away records that a full disk left empty, and say so."""
    empty = [path for path in folder.glob(METAS) if path.is_file() and not path.stat().st_size]
    for path in empty:
        path.unlink()
    return tuple(f"{path.name} could not be written: is the disk full?" for path in empty)


def _inner_captures(boot: Path) -> list[str]:
    found = dict.fromkeys(_lines(boot / INNER))
    return [folder for folder in found if any(Path(folder).glob(METAS))]


def _why_unobserved(boot: Path, capture: CaptureFolder, exit_code: int) -> str:
    if exit_code:
        return f"{_ending(exit_code)} before its first training step{_last_line(capture.log)}"
    if not _lines(boot / IMPORTED):
        return (
            "no Python that could be observed imported torch: either the command trains nothing, "
            "or its Python ran with -I, -E or -S, or a container or launcher dropped PYTHONPATH"
        )
    return (
        "the command ended without a training step: no torch.optim optimizer stepped; "
        f"where another one does, {STEP} (import fp8verify)"
    )


def _ending(exit_code: int) -> str:
    return f"the command ended with {exit_code}"


def _last_line(log: Path) -> str:
    """Return the end of a log's last line that says something, for the end of a sentence."""
    lines = [line.strip() for line in _lines(log) if line.strip()]
    return f": {lines[-1][-LAST_LINE:]}" if lines else ""


def _lines(path: Path) -> list[str]:
    with suppress(OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - MAX_BYTES))
        return file.read(MAX_BYTES).decode(errors="replace").splitlines()
    return []
