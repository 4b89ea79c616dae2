"""Findings on what was recorded: no kernels, damage, windows that are not whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.capture.names import OUTSIDE
from fp8verify.capture.schema import WindowRecord
from fp8verify.report.model import Finding
from fp8verify.trace.tables import Health
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.inconclusive import LOG_ALONE, is_empty

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
    if LOG_ALONE in rank.health.notes:
        yield finding("no-gpu-kernels", "log-alone", source=rank.source)
    elif is_empty(rank):
        yield finding("no-gpu-kernels", "empty", source=rank.source)
    elif rank.meta is None and rank.unreadable is None and _is_nowhere(rank.health):
        yield finding("no-training-step")


def _is_nowhere(health: Health) -> bool:
    """Whether there is no trace at all, rather than an unreadable one."""
    return not health.events and health.complete


def no_gpu_kernels(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A trace of the CPU only."""
    rank = facts.rank
    # Of a trace that is cut off, the finding on the damage tells.
    if rank.health.kernels or not rank.health.events or rank.health.truncated:
        return
    yield finding("no-gpu-kernels", "no-gpu" if rank.saw_no_gpu else "", source=rank.source)


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
    yield finding(
        "damaged-trace",
        "" if health.kernels else "no-kernels",
        source=rank.source,
        damage=", ".join(fact for fact, holds in damage.items() if holds) + notes,
    )


def window_not_whole(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A window that was not recorded, or not to its end."""
    rank = facts.rank
    for window in rank.meta.windows if rank.meta else ():
        if _was_lost(window, [step.number for step, _ in rank.steps]):
            yield finding(
                "window-not-complete", "lost", window=window.name, profiler=window.profiler
            )
        elif window.state != "complete":
            yield finding(
                "window-not-complete",
                window=window.name,
                state=_WINDOW_STATES.get(window.state, "is not complete"),
                reason=window.reason,
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
