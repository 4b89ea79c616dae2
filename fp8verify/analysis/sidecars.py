"""The files of a capture next to its traces: records of its ranks, and logs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fp8verify.capture.files import find_logs, read_numerics, read_ranks
from fp8verify.capture.names import BOOTS
from fp8verify.capture.schema import RankMeta, RankNumerics
from fp8verify.logs.lines import read_lines
from fp8verify.logs.losses import LossSeries, read_losses
from fp8verify.logs.promises import LayerPromise, LogReading, PhasePromise
from fp8verify.record.collect_result import notes_on_attachment
from fp8verify.report.model.parts import Claim
from fp8verify.trace.places import is_remote, place, reading


class Sidecars(NamedTuple):
    """The files next to the traces, if these are in the folder of a capture.

    Attributes:
        folder: the folder of the traces, if there is one.
        metas: the runner's records of each rank.
        numerics: records of each rank's scales and tensors.
        notes: why an attached job was not observed.
    """

    folder: Path | None
    metas: dict[int, RankMeta]
    numerics: dict[int, RankNumerics]
    notes: tuple[str, ...]


def read_sidecars(paths: Sequence[str | Path]) -> Sidecars:
    """Read the files next to the traces.

    Args:
        paths: the traces that the user gave; a capture is recognised if it is the only path.
    """
    with reading(str(paths[0])):
        folder = place(paths[0]) if len(paths) == 1 else None
        if folder is None or not folder.is_dir():
            return Sidecars(None, {}, {}, ())
        metas = read_ranks(folder)
        notes: tuple[str, ...] = ()
        if not is_remote(folder) and any(folder.glob(BOOTS)):  # what `fp8verify env` attached to
            notes = notes_on_attachment(folder, observed=bool(metas))
        return Sidecars(folder, metas, read_numerics(folder), notes)


def said_by(folder: Path | None, log: str | Path | None, calls: Sequence[str] = ()) -> LogReading:
    """Return what the logs and calls claim and promise, and what of the logs was not read."""
    paths = _logs(folder, log)
    if not (paths or calls):
        return LogReading()
    from fp8verify.logs.claims import claim_of_call, read_claims  # its patterns take a while

    found: dict[tuple[str, str], Claim] = {}
    notes: list[str] = []
    layers: list[LayerPromise] = []
    phases: list[PhasePromise] = []
    for path in paths:
        with reading(str(path)):
            read = read_claims(path)
        notes += read.notes
        layers += read.layers
        phases += read.phases
        for claim in read.claims:
            found.setdefault((claim.framework, claim.text), claim)
    return LogReading([*found.values(), *map(claim_of_call, calls)], notes, layers, phases)


def losses_of(folder: Path | None, log: str | Path | None) -> LossSeries | None:
    """Return the losses in the logs, None if there are none."""
    return read_losses(_logs(folder, log))


def _logs(folder: Path | None, log: str | Path | None) -> list[Path]:
    return [place(log)] if log is not None else find_logs(folder) if folder is not None else []


# An error further from the end of a log than this was survived.
_AT_THE_END = 200


def remarks_on(log: str | Path | None, losses: LossSeries | None) -> list[str]:
    """Say how far the training came by its log, and with which error it ended."""
    if log is None:
        return []
    from fp8verify.doctor.causes import causes
    from fp8verify.logs.last_error import last_error

    path = place(log)
    notes = []
    if losses is not None and losses.points:
        first, last = min(losses.points), max(losses.points)
        said = f"{path.name} has losses of steps {first} to {last}"
        notes.append(f"{said}, the last is {losses.points[last]:.4g}")
    end = deque((line.text for line in read_lines(path)), maxlen=_AT_THE_END)
    known = causes(end)
    notes += [
        f"{path.name} ends with an error (“{cause.text[:120]}”): {cause.cause}. {cause.remedy}"
        for cause in known
    ]
    error = last_error([path])
    if error is not None and not known:
        notes.append(f"{path.name} ends with an error: {error}")
    return notes
