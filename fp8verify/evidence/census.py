"""What the runner noted beside the traces: windows and modules of every rank."""

from __future__ import annotations

from pathlib import Path

from fp8verify.errors import InputError
from fp8verify.model import ModulesReport
from fp8verify.runner.capture import RankMeta, WindowRecord, read_meta

LOG_NAME = "log.txt"
_PATTERN = "rank*.meta.json"


def find_metas(folder: Path) -> dict[int, RankMeta]:
    """Return the censuses of a capture folder by rank; other paths have none.

    Raises:
        InputError: one cannot be read, or two are of one rank.
    """
    metas: dict[int, RankMeta] = {}
    for path in sorted(folder.glob(_PATTERN)) if folder.is_dir() else ():
        meta = read_meta(path)
        if meta.rank in metas:
            raise InputError(
                f"{folder} holds two censuses of rank {meta.rank}.",
                "Give each run a capture folder of its own.",
            )
        metas[meta.rank] = meta
    return metas


def high_precision_legs(meta: RankMeta) -> frozenset[str]:
    """Return the legs that no converted module computes in FP8, by its recipe."""
    converted = [module for module in meta.modules if module.state == "fp8"]
    told = [set(module.fp8_legs) for module in converted if module.fp8_legs]
    if not told or len(told) != len(converted):
        return frozenset()
    return frozenset({"fprop", "dgrad", "wgrad"}.difference(*told))


def missed_window(meta: RankMeta | None) -> WindowRecord | None:
    """Return the first window that left no trace."""
    windows = meta.windows if meta is not None else ()
    return next((window for window in windows if window.trace is None), None)


def modules_report(meta: RankMeta | None) -> ModulesReport | None:
    """Count the linear modules of a rank by state, and list their names."""
    if meta is None:
        return None
    names: dict[str, list[str]] = {}
    for module in meta.modules:
        names.setdefault(module.state, []).append(module.fqn)
    return ModulesReport(
        counts={state: len(fqns) for state, fqns in sorted(names.items())},
        names={state: tuple(fqns) for state, fqns in sorted(names.items())},
        recipes=tuple(sorted({module.recipe for module in meta.modules if module.recipe})),
    )
