"""What of the GPU's work is not in an Nsight Systems export: by its launches and its own words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fp8verify.trace.nsys import tables

if TYPE_CHECKING:
    from fp8verify.trace.database import Database
    from fp8verify.trace.tables import Health

_Wanted = dict[str, int | None]

# Texts of nsys 2024.2.3's libraries: "CUPTI dropped 7 records. …", "Number of incomplete CUPTI
# events dropped: 7. …", "7 CUPTI events were detected incomplete …", "Couldn't allocate CUPTI
# buffers 3 times. …", "CUPTI buffer allocation limit of … bytes is exceeded.", "7 GPU events were
# discarded …", "Connection to session is lost, …". Others are of samples of the CPU: "Some events
# (7) were lost. Certain charts (including CPU utilization) …", or of NVTX alone.
_LOST: Final = re.compile(
    r"\b(?:CUPTI|CUDA|GPU)\b[^.]{0,60}\b(?:dropped|lost|discarded|incomplete|exceeded)\b|"
    r"\ballocate CUPTI buffer|\bConnection to session is lost\b",
    re.IGNORECASE,
)
_NOTHING: Final = re.compile(r"\bdropped(?::\s*0\b| 0 records)|(?:^|: )0 (?:CUPTI|CUDA|GPU) events")
# Buffers that were still with CUPTI: the work at the end may be missing.
_OUTSTANDING: Final = re.compile(r"CUPTI buffers: \d+ of \d+")
# Of every recording with a capture range, and of processes without CUDA, nsys says "Not all CUDA
# events might have been collected." Whether that is so, the launches tell.
_HEDGED: Final = re.compile(r"^Not all CUDA events might have been collected")
_GRAPHS: Final = (
    "{} CUDA graphs, {:.1f} ms, were recorded without their kernels; "
    "nsys profile --cuda-graph-trace=node records these"
)
_FOREVER: Final = 1 << 62


def note_losses(database: Database, health: Health, wanted: _Wanted) -> None:
    """Note what was recorded without its kernels, and what the profiler says it lost."""
    texts = _texts(database, wanted)
    facts = [
        _graphs(database, wanted),
        "Nsight Systems says that events were lost" if any(map(_is_loss, texts)) else None,
        _launches(database, wanted, texts),
    ]
    found = [fact for fact in facts if fact]
    health.records_lost |= bool(found)
    health.notes += found


def _texts(database: Database, wanted: _Wanted) -> list[str]:
    """Return the profiler's remarks; they hold paths, and nothing of them is kept."""
    query = tables.diagnostics(database)
    rows = database.rows(query, wanted) if query else ()
    return [row[0] for row in rows if isinstance(row[0], str)]


def _is_loss(text: str) -> bool:
    return bool(_LOST.search(text)) and not _NOTHING.search(text)


def _graphs(database: Database, wanted: _Wanted) -> str | None:
    query = tables.whole_graphs(database)
    if query is None:
        return None
    count, time_ns = database.one(query, wanted)
    return _GRAPHS.format(count, (time_ns or 0) / 1e6) if isinstance(count, int) and count else None


def _launches(database: Database, wanted: _Wanted, texts: list[str]) -> str | None:
    """Tell of launches without their kernel.

    What was launched last may still have waited for the GPU when the recording ended. It is only
    missed where the profiler says that buffers did not come back.
    """
    query = tables.lone_launches(database)
    lone = [row[0] for row in database.rows(query, wanted) if _is_time(row[0])] if query else []
    if not lone:
        return None
    until = _FOREVER if any(map(_OUTSTANDING.search, texts)) else _waiting_from(database, wanted)
    captured = _captured(database, wanted)
    missed = [
        start
        for start in lone
        if start < until and not any(begin <= start <= end for begin, end in captured)
    ]
    if not missed:
        return None
    hedged = any(map(_HEDGED.search, texts))
    remark = ", and Nsight Systems says that not all events might have been collected"
    return f"{len(missed)} kernels were launched that are not in the trace{remark * hedged}"


def _waiting_from(database: Database, wanted: _Wanted) -> int:
    """Return from when on a launch may have waited longer than the recording went on."""
    last, latency = database.one(tables.latency(), wanted)
    return last - latency if _is_time(last) and _is_time(latency) else -_FOREVER


def _captured(database: Database, wanted: _Wanted) -> list[tuple[int, int]]:
    """Return when a CUDA graph was being captured: what is launched then does not run.

    A capture whose begin or end was not recorded lasts from or to the trace's.
    """
    found: list[tuple[int, int]] = []
    open_since: dict[object, int] = {}
    for start, thread, begins in database.rows(tables.captures(), wanted):
        if not _is_time(start):
            continue
        if begins:
            open_since[thread] = start
        else:
            found.append((open_since.pop(thread, -_FOREVER), start))
    return found + [(start, _FOREVER) for start in open_since.values()]


def _is_time(value: object) -> bool:
    return isinstance(value, int)
