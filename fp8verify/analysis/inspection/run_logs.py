"""What the logs of a run say: its claims and its losses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from fp8verify.capture.files import find_logs
from fp8verify.logs.lines import read_lines
from fp8verify.logs.losses import LossSeries, scan_losses
from fp8verify.report.model import Claim
from fp8verify.trace.places import place, reading


def claims_of(
    folder: Path | None, log: str | Path | None, calls: Sequence[str] = ()
) -> tuple[list[Claim], list[str]]:
    """Return what the logs and calls claim, and what of the logs was not read."""
    paths = _logs(folder, log)
    if not (paths or calls):
        return [], []
    from fp8verify.logs.claims import claim_of_call, read_claims  # its patterns take a while

    found: dict[tuple[str, str], Claim] = {}
    notes: list[str] = []
    for path in paths:
        with reading(str(path)):
            read = read_claims(path)
        notes += read.notes
        for claim in read.claims:
            found.setdefault((claim.framework, claim.text), claim)
    return [*found.values(), *map(claim_of_call, calls)], notes


def losses_of(folder: Path | None, log: str | Path | None) -> LossSeries | None:
    """Return the losses that the logs tell, None where there are none."""
    found = (read_lines(path, words=(b"loss",)) for path in _logs(folder, log))
    return scan_losses(line.text for line in chain.from_iterable(found))


def _logs(folder: Path | None, log: str | Path | None) -> list[Path]:
    return [place(log)] if log is not None else find_logs(folder) if folder is not None else []
