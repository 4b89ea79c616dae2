"""What the records of a capture's ranks say together."""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path

from fp8verify.capture.schema import RankMeta, WindowRecord


def called_apis(metas: dict[int, RankMeta]) -> list[str]:
    """Return the APIs by which any rank asked for FP8."""
    return list(dict.fromkeys(name for meta in metas.values() for name in meta.api_calls))


def declared_traces(metas: dict[int, RankMeta]) -> dict[str, int]:
    """Return the ranks of the traces that the records name, in the order of their windows."""
    return {
        window.trace: rank
        for rank, meta in metas.items()
        for window in meta.windows
        if window.trace is not None
    }


def remarks(metas: dict[int, RankMeta]) -> list[str]:
    """Return what the agents noted; a remark that only some ranks make says which."""
    ranks: dict[str, list[int]] = {}
    for rank, meta in sorted(metas.items()):
        for note in meta.notes:
            ranks.setdefault(note, []).append(rank)
    return [
        note if len(made) == len(metas) else f"{_first_of(made)}: {note}"
        for note, made in ranks.items()
    ]


def _first_of(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "")


def named_traces(metas: dict[int, RankMeta]) -> frozenset[str]:
    """Return the traces of windows in which the layers have names."""
    return frozenset(
        window.trace
        for meta in metas.values()
        for window in meta.windows
        if window.trace is not None and window.layers
    )


def blas_logs(folder: Path, metas: dict[int, RankMeta]) -> dict[str, Path]:
    """Return, by trace, the logs of the BLAS library that the run recorded."""
    windows = [window for meta in metas.values() for window in meta.windows]
    return {
        window.trace: folder / window.blas_log
        for window in windows
        if window.trace and window.blas_log and is_file_name(window.blas_log)
    }


def is_file_name(text: str) -> bool:
    """Whether it is a file's: nothing outside of the capture is opened for it."""
    return re.fullmatch(r"[\w.-]+", text, re.ASCII) is not None and text not in (".", "..")


def census_remarks(metas: dict[int, RankMeta], profiled: Container[int | None]) -> list[str]:
    """Return how the module list of ranks that were not profiled differs from the others'.

    Args:
        metas: the records of all ranks.
        profiled: the ranks that have a trace.
    """
    alike: dict[tuple[str, ...], dict[tuple[str, ...], list[int]]] = {}
    for rank, meta in sorted(metas.items()):
        by_name = sorted((module.fqn, module.state) for module in meta.modules)
        names, states = tuple(name for name, _ in by_name), tuple(state for _, state in by_name)
        alike.setdefault(names, {}).setdefault(states, []).append(rank)
    remarks = []
    for found in alike.values():
        (usual, _), *others = sorted(found.items(), key=lambda row: -len(row[1]))
        for states, ranks in others:
            unprofiled = [rank for rank in ranks if rank not in profiled]
            differ = sum(state != common for state, common in zip(states, usual, strict=True))
            if unprofiled:
                remarks.append(
                    f"{_first_of(unprofiled)}: not profiled, and by its module list {differ} of "
                    f"{len(states)} modules have another precision than on the other ranks"
                )
    return remarks


def missed_window(meta: RankMeta) -> WindowRecord | None:
    """Return the first window that left no trace."""
    return next((one for one in meta.windows if one.trace is None), None)
