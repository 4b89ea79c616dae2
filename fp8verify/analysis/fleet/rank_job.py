"""One unit of work: the traces of one rank, read and added up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fp8verify.capture.ranks import NamingStep
from fp8verify.errors import InputError
from fp8verify.trace import Trace, TraceFile, read_trace

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


def examine(job: RankJob, workers: int = 1) -> ExaminedRank:
    """Read the traces of a rank; one that cannot be read costs only itself.

    Args:
        job: of which this process may fork so many `workers` to read one big trace.
        workers: 1 for none.
    """
    read = [_read(file, workers) for file in job.files]
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


def _read(file: TraceFile, workers: int = 1) -> RankEvidence | InputError:
    try:
        trace = read_trace(
            file.path,
            name=file.name,
            layers=file.layers,
            part=file.part,
            workers=workers,
        )
    except InputError as error:
        return error.with_traceback(None)  # its frames hold what was read of the trace
    except MemoryError:
        return InputError(
            f"{file.name} needs more memory than there is.",
            "Use fewer --workers, or a machine with more memory.",
        )
    # What comes after reading is imported after it: a process that waits for others has it by then.
    from fp8verify.analysis.gather import gather

    guessed = trace.rank is None and file.guessed
    if trace.rank is None:
        trace.rank = file.rank
    return gather(trace, layers=file.layers, workers=workers)._replace(guessed=guessed)


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
