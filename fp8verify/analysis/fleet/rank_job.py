"""One unit of work: the traces of one rank, read and added up."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from fp8verify.capture.ranks import NamingStep
from fp8verify.errors import InputError
from fp8verify.trace import Trace, TraceFile, read_open_trace, read_trace
from fp8verify.trace.places import STDIN, reading

if TYPE_CHECKING:
    from fp8verify.analysis.layers_by_name import NamedLayers
    from fp8verify.analysis.rank import RankEvidence


class RankJob(NamedTuple):
    """The traces of one rank: one, or one for each window of a capture, in order.

    `naming` is the step that names its layers, where the windows do not.
    """

    files: tuple[TraceFile, ...]
    naming: NamingStep | None = None

    @property
    def rank(self) -> int:
        """The rank, as far as known before reading."""
        return self.files[0].rank


class ExaminedRank(NamedTuple):
    """What came of a job: evidence of what was readable, and why the rest was not."""

    evidence: RankEvidence
    errors: tuple[InputError, ...] = ()


def examine(job: RankJob) -> ExaminedRank:
    """Read the traces of a rank; one that cannot be read costs only itself."""
    read = [_read(file) for file in job.files]
    examined = _examined(
        job,
        [part for part in read if not isinstance(part, InputError)],
        [part for part in read if isinstance(part, InputError)],
    )
    if examined.evidence.named is not None or job.naming is None:
        return examined
    named = _name_from(job.naming)
    return examined._replace(evidence=examined.evidence._replace(named=named))


def _name_from(naming: NamingStep) -> NamedLayers:
    """Read the step that names layers; what is wrong with it becomes a note."""
    from fp8verify.analysis.layers_by_name import NamedLayers

    empty = NamedLayers(source="step", step=naming.step)
    if naming.file is None:
        return empty._replace(note=f"the layers have no names: {naming.reason}")
    part = _read(naming.file)
    if isinstance(part, InputError):
        return empty._replace(note=f"the layers have no names: {_reason(part)}")
    named = part.named or empty._replace(note=f"no GPU kernel ran in {naming.file.name}")
    note = named.note or (None if part.health.complete else f"{naming.file.name} is not whole")
    return named._replace(source="step", step=naming.step, note=note)


def _read(file: TraceFile) -> RankEvidence | InputError:
    try:
        trace = read_trace(file.path, name=file.name, layers=file.layers, part=file.part)
    except InputError as error:
        return error.with_traceback(None)  # its frames hold what was read of the trace
    except MemoryError:
        return InputError(
            f"{file.name} needs more memory than there is.",
            "Use fewer --workers, or a machine with more memory.",
        )
    from fp8verify.analysis.gather import gather

    guessed = trace.rank is None and file.guessed
    if trace.rank is None:
        trace.rank = file.rank
    return gather(trace, layers=file.layers)._replace(guessed=guessed)


def not_examined(job: RankJob, reason: str) -> ExaminedRank:
    """Return what is known of a job that no worker could finish."""
    hint = "Read it alone to see why; fewer --workers need less memory."
    return _examined(job, [], [InputError(f"{f.name}: {reason}.", hint) for f in job.files])


def _examined(job: RankJob, parts: list[RankEvidence], errors: list[InputError]) -> ExaminedRank:
    from fp8verify.analysis.gather import gather
    from fp8verify.analysis.merge_windows import merge_windows

    if not parts:
        parts = [gather(Trace(source=job.files[0].name, rank=job.rank))]
    evidence = merge_windows(parts)
    if errors:
        evidence = evidence._replace(unreadable=_reason(errors[0]))
    return ExaminedRank(evidence, tuple(errors))


def _reason(error: InputError) -> str:
    """Return the fact of an error as a part of a longer sentence."""
    return error.fact.rstrip(".")


def read_pipe(path: str | Path) -> RankEvidence:
    """Read the trace that comes through a pipe, once; it names neither run nor rank.

    Raises:
        InputError: it is not a trace, or standard input is a terminal.
    """
    is_stdin = str(path) == STDIN
    if is_stdin and sys.stdin.isatty():
        raise InputError(
            "- reads a trace from standard input, which is a terminal.",
            "Pipe one in: zcat trace.json.gz | fp8verify inspect -",
        )
    name = "standard input" if is_stdin else str(path)
    with reading(name), _stream(path) as file:
        trace = read_open_trace(file, name)
    from fp8verify.analysis.gather import gather

    trace.rank = trace.rank or 0
    return gather(trace)


def _stream(path: str | Path) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if str(path) == STDIN else Path(path).open("rb")
