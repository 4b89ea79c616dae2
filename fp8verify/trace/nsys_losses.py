"""What of the GPU's work is not in an Nsight Systems export: by its launches and its own words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fp8verify.text import lazy_pattern

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns
    from fp8verify.trace.tables import Health

# Texts of nsys 2024.2.3's libraries: "CUPTI dropped 7 records. …", "Number of incomplete CUPTI
# events dropped: 7. …", "7 CUPTI events were detected incomplete …", "Couldn't allocate CUPTI
# buffers 3 times. …", "CUPTI buffer allocation limit of … bytes is exceeded.", "7 GPU events were
# discarded …", "Connection to session is lost, …". Others are of samples of the CPU: "Some events
# (7) were lost. Certain charts (including CPU utilization) …", or of NVTX alone.
_LOST: Final = lazy_pattern(
    r"\b(?:CUPTI|CUDA|GPU)\b[^.]{0,60}\b(?:dropped|lost|discarded|incomplete|exceeded)\b|"
    r"\ballocate CUPTI buffer|\bConnection to session is lost\b",
    re.IGNORECASE,
)
_NOTHING: Final = lazy_pattern(
    r"\bdropped(?::\s*0\b| 0 records)|(?:^|: )0 (?:CUPTI|CUDA|GPU) events"
)
# Buffers that were still with CUPTI: the work at the end may be missing.
_OUTSTANDING: Final = lazy_pattern(r"CUPTI buffers: \d+ of \d+")
# Of every recording with a capture range, and of processes without CUDA, nsys says "Not all CUDA
# events might have been collected." Whether that is so, the launches tell.
_HEDGED: Final = lazy_pattern(r"^Not all CUDA events might have been collected")
_GRAPHS: Final = (
    "{} CUDA graphs, {:.1f} ms, were recorded without their kernels; "
    "nsys profile --cuda-graph-trace=node records these"
)
_FOREVER: Final = 1 << 62
_MOST_CAPTURES: Final = 100


class Launches(NamedTuple):
    """Launches of kernels (correlation id, start), and begins and ends of graph captures.

    A capture is (time, thread, whether it begins).
    """

    calls: list[tuple[Any, Any]]
    captures: list[tuple[Any, Any, bool]]


def note_losses(
    health: Health,
    texts: Sequence[str],
    launches: Launches,
    columns: Columns,
    graphs: tuple[int, int],
) -> None:
    """Note what was recorded without its kernels, and what the profiler says it lost.

    Args:
        health: takes the notes.
        texts: the profiler's remarks; they hold paths, and nothing of them is kept.
        launches: of the process.
        columns: its kernels and calls.
        graphs: number and time (ns) of the CUDA graphs that were recorded without kernels.
    """
    count, time_ns = graphs
    facts = [
        _GRAPHS.format(count, time_ns / 1e6) if count else None,
        "Nsight Systems says that events were lost" if any(map(_is_loss, texts)) else None,
        _missing_kernels(launches, columns, texts),
    ]
    found = [fact for fact in facts if fact]
    health.records_lost |= bool(found)
    health.notes += found


def _is_loss(text: str) -> bool:
    return bool(_LOST.search(text)) and not _NOTHING.search(text)


def _missing_kernels(launches: Launches, columns: Columns, texts: Sequence[str]) -> str | None:
    """Describe launches without their kernel.

    What was launched last may still have waited for the GPU when the recording ended. It is only
    missed where the profiler says that buffers did not come back.
    """
    kernels, calls = columns.kernels, columns.calls
    started = dict(zip(kernels.correlation, kernels.start, strict=True))
    lone = [
        start
        for correlation, start in launches.calls
        if isinstance(start, int) and isinstance(correlation, int) and correlation not in started
    ]
    if not started or not lone:
        return None
    until = max(kernels.start)
    if any(map(_OUTSTANDING.search, texts)):
        until = _FOREVER
    else:
        # From here on, a launch may have waited longer than the recording went on.
        calls_of_kernels = zip(calls.correlation, calls.start, strict=True)
        waits = (started[c] - start for c, start in calls_of_kernels if c in started)
        until -= max(waits, default=_FOREVER)
    captured = _captured(launches.captures)
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


def _captured(marks: Sequence[tuple[Any, Any, bool]]) -> list[tuple[int, int]]:
    """Return when a CUDA graph was being captured: what is launched then does not run.

    A capture whose begin or end was not recorded lasts from or to the trace's.
    """
    found: list[tuple[int, int]] = []
    open_since: dict[object, int] = {}
    timed = [mark for mark in marks if isinstance(mark[0], int)]
    for start, thread, begins in sorted(timed, key=lambda mark: mark[0]):
        if begins:
            open_since[thread] = start
        else:
            found.append((open_since.pop(thread, -_FOREVER), start))
    # Of many captures, only the time around all of them: each launch is held against each.
    found += [(start, _FOREVER) for start in open_since.values()]
    if len(found) > _MOST_CAPTURES:
        return [(min(begin for begin, _ in found), max(end for _, end in found))]
    return found
