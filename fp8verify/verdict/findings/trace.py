"""Findings on what was recorded: no kernels, damage, windows that are not whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.capture.names import OUTSIDE
from fp8verify.capture.schema import WindowRecord
from fp8verify.report.model import Finding, Severity
from fp8verify.trace.tables import Health
from fp8verify.verdict.absence import is_empty

_HINTS = {
    "skipped": "Ranks are chosen with --ranks; the script's own profiler goes before ours, so "
    "choose steps that it leaves out.",
    "dropped": "Nothing of it was kept; record it again once the reason is gone.",
}
_WINDOW_STATES = {
    "never": "never began",
    "cut": "was cut short",
    "dropped": "left no trace",
    "skipped": "was not recorded",
}


def no_trace(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A run in which no training step was ever seen."""
    rank = facts.rank
    if is_empty(rank):
        yield Finding(
            code="no-gpu-kernels",
            severity=Severity.WARNING,
            message=f"{rank.source} holds no events: the profiler recorded nothing",
            hint="Export after the recorded steps: with a schedule, from on_trace_ready, and with "
            "prof.step() called in each step until its active ones.",
        )
    elif rank.meta is None and rank.unreadable is None and _is_nowhere(rank.health):
        yield Finding(
            code="no-training-step",
            severity=Severity.WARNING,
            message="no process of the run completed a training step that could be seen",
            hint="The notes say how the run ended. Its steps are those of a torch.optim optimizer; "
            "a script without one says where they are: import fp8verify; fp8verify.step()",
        )


def _is_nowhere(health: Health) -> bool:
    """Whether there is no trace at all, rather than one of which nothing can be read."""
    return not health.events and health.complete


def no_gpu_kernels(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A trace of the CPU only."""
    rank = facts.rank
    # Of a trace that is cut off, the finding on the damage tells.
    if rank.health.kernels or not rank.health.events or rank.health.truncated:
        return
    if rank.saw_no_gpu:
        yield Finding(
            code="no-gpu-kernels",
            severity=Severity.WARNING,
            message=f"no GPU kernels in the trace ({rank.source}), because torch saw no GPU",
            hint="Run it where there is one: see nvidia-smi, CUDA_VISIBLE_DEVICES, and whether "
            "torch.version.cuda is None.",
        )
    else:
        yield Finding(
            code="no-gpu-kernels",
            severity=Severity.WARNING,
            message=f"no GPU kernels in the trace ({rank.source})",
            hint="Record on a GPU with ProfilerActivity.CUDA; nsys or another CUPTI client in the "
            "same process, or missing driver privileges, leave a trace without kernels.",
        )


def damaged(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A trace that was not recorded or could not be read whole."""
    rank = facts.rank
    health = rank.health
    if health.complete:
        return
    events = health.events + health.skipped_events
    damage = {
        "is cut off": health.truncated,
        f"has {health.skipped_events} of {events} events that cannot be read": (
            health.skipped_events
        ),
        "is followed by another document that was not read": health.extra_documents,
        "is incomplete, as the profiler itself says": health.records_lost,
    }
    notes = f" ({'; '.join(health.notes[:3])})" if health.notes else ""
    yield Finding(
        code="damaged-trace",
        severity=Severity.WARNING,
        message=f"{rank.source} {', '.join(fact for fact, holds in damage.items() if holds)}"
        + notes,
        hint=_damage_hint(health.kernels),
    )


def _damage_hint(kernels: int) -> str:
    if not kernels:
        return "Copy it again, or let the profiler finish its export: the kernels are in the rest."
    return (
        "The figures cover what could be read. Record or export again, one file for each rank; a "
        "trace that shows no FP8 proves nothing unless it is whole."
    )


def window_not_whole(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A window that was not recorded, or not to its end."""
    rank = facts.rank
    for window in rank.meta.windows if rank.meta else ():
        if _was_lost(window, [step.number for step, _ in rank.steps]):
            yield Finding(
                code="window-not-complete",
                severity=Severity.WARNING,
                message=f"window {window.name}: left no trace, because {window.profiler} kept none "
                "of its steps",
                hint="A recording that begins right after another, or ends with the process, may "
                "be lost: record it again, some steps apart.",
            )
        elif window.state != "complete":
            yield Finding(
                code="window-not-complete",
                severity=Severity.WARNING,
                message=f"window {window.name}: {_WINDOW_STATES[window.state]}, "
                f"because {window.reason}",
                hint=_window_hint(rank.meta.steps_seen if rank.meta else 0, window),
            )


def _was_lost(window: WindowRecord, steps: Sequence[int]) -> bool:
    """Whether a profiler around the run kept no step of a window, and kept others."""
    began = window.profiler in OUTSIDE and window.state in ("complete", "cut")
    return began and bool(steps) and not any(window.first <= n <= window.last for n in steps)


def _window_hint(steps_seen: int, window: WindowRecord) -> str:
    if window.state == "never" and steps_seen >= 2:
        first = max(2, steps_seen - (window.last - window.first))
        again = ", counted from its start" if window.asked else ""
        return f"Record steps that the run reaches: --steps {first}-{steps_seen}{again}."
    if window.trace is not None:
        return "What was recorded is kept; record another window for the rest."
    if window.state == "never":
        return (
            "A window needs a step before it; a step is one of a torch.optim optimizer, or what "
            "fp8verify.step() announces."
        )
    return _HINTS.get(window.state, "Record another window.")
