"""What lies beside the traces of a run: the records of its ranks in the folder of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fp8verify.capture.names import BOOTS
from fp8verify.capture.numerics import RankNumerics
from fp8verify.capture.numerics_files import read_numerics
from fp8verify.capture.ranks import read_ranks, recorded_processes
from fp8verify.capture.schema import RankMeta
from fp8verify.trace.places import is_remote, place, reading


class Beside(NamedTuple):
    """What lies beside the traces: in the folder of a capture, if they are in one.

    Attributes:
        folder: the one that holds the traces, if there is one.
        metas: what the runner noted of each rank.
        numerics: what it noted of scales and tensors of each rank.
        notes: what kept an attached job from being observed.
        processes: of ranks whose traces another profiler recorded.
    """

    folder: Path | None
    metas: dict[int, RankMeta]
    numerics: dict[int, RankNumerics]
    notes: tuple[str, ...]
    processes: dict[tuple[str, int], int]


def read_beside(paths: Sequence[str | Path], stats: str | Path | None) -> Beside:
    """Read what lies beside the traces.

    Args:
        paths: what the user gave as traces.
        stats: the folder of Transformer Engine's debug logs, if there is one.
    """
    folder = _folder(paths)
    with reading(str(paths[0])):
        if folder is None:
            return Beside(None, {}, _stats(stats), (), {})
        metas = read_ranks(folder)
        return Beside(
            folder=folder,
            metas=metas,
            numerics=read_numerics(folder) | _stats(stats),
            notes=_attachment(folder, metas),
            processes=_processes(folder, metas),
        )


def _folder(paths: Sequence[str | Path]) -> Path | None:
    """Return the folder if there is one path and it is one, so that a capture can be told."""
    if len(paths) != 1:
        return None
    with reading(str(paths[0])):
        found = place(paths[0])
        return found if found.is_dir() else None


def _processes(folder: Path, metas: dict[int, RankMeta]) -> dict[tuple[str, int], int]:
    outside = any(meta.recording is not None for meta in metas.values())
    return recorded_processes(folder) if outside else {}


def _stats(stats: str | Path | None) -> dict[int, RankNumerics]:
    if stats is None:
        return {}
    from fp8verify.analysis.te_debug import read_stats

    return read_stats(Path(stats))


def _attachment(folder: Path, metas: dict[int, RankMeta]) -> tuple[str, ...]:
    """Return what kept a job that `fp8verify env` attached to from being observed."""
    if is_remote(folder) or not any(folder.glob(BOOTS)):
        return ()
    from fp8verify.record.environment import notes_on_attachment

    return notes_on_attachment(folder, observed=bool(metas))
