"""What the user compares: a trace, a folder or a capture, with its log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from fp8verify.analysis.inspection import inspect
from fp8verify.capture.files import find_logs
from fp8verify.logs.lines import read_lines
from fp8verify.logs.losses import PATTERNS, LossPattern, LossSeries, scan_losses
from fp8verify.report.model import Report
from fp8verify.trace.places import place, reading


def load(
    path: str,
    log: str | None = None,
    patterns: tuple[LossPattern, ...] = PATTERNS,
    *,
    workers: int | None = 1,
) -> tuple[Report, LossSeries | None]:
    """Inspect one run and read the losses of its log.

    Args:
        path: as for `inspect`.
        log: the training's log, when it is not in the capture.
        patterns: the lines that give a loss.
        workers: processes that read the ranks' traces.

    Raises:
        InputError: nothing there can be read as a trace or a log.
    """
    report = inspect(path, log=log, workers=workers)
    with reading(log or path):
        return report, scan_losses(_lines(path, log), patterns)


def distinct_names(runs: Sequence[tuple[object, Report]]) -> list[str]:
    """Return the name of each run; those called alike get as much of their paths as differs.

    Args:
        runs: what was given, a path or a report, and the report.
    """
    names = [report.name for _, report in runs]
    paths = ["" if isinstance(given, Report) else str(given).rstrip("/") for given, _ in runs]
    tails = _distinct_tails([path.split("/") for path in paths])
    return [
        tail if names.count(name) > 1 and tail else name
        for name, tail in zip(names, tails, strict=True)
    ]


def _distinct_tails(parts: list[list[str]]) -> list[str]:
    """Return the ends of paths, so long that no two different ones are alike."""
    for length in range(1, max(map(len, parts), default=0) + 1):
        tails = ["/".join(one[-length:]) for one in parts]
        if len(set(tails)) == len({tuple(one) for one in parts}):
            return tails
    return ["/".join(one) for one in parts]


def _lines(path: str, log: str | None) -> Iterator[str]:
    where = place(path)
    logs: list[Path] = []
    if log is not None:
        logs = [place(log)]
    elif where.is_dir():
        logs = find_logs(where)
    return (line.text for line in chain.from_iterable(map(read_lines, logs)))
