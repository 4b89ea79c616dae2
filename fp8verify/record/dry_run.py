"""Say what a run would do, without doing it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from fp8verify.record.command import resolve_command
from fp8verify.record.job import job_of
from fp8verify.record.runner import python_for
from fp8verify.record.settings import RankSelection, RunSettings
from fp8verify.steps import show_window


def describe_run(command: Sequence[str], settings: RunSettings) -> str:
    """Return what `run_training` would run and inject, one line for each.

    Raises:
        UsageError: if `command` is empty or names no module.
        InputError: if the script or the program does not exist.
    """
    arguments = resolve_command(command, python_for(command, settings).program)
    capture = settings.trace_dir or "fp8verify-capture-<time>-<pid>"
    facts = {
        "run": shlex.join(arguments),
        "record": _windows(settings),
        "ranks": _ranks(settings.ranks),
        "capture": f"{capture}",
        "job": settings.job or job_of(arguments, os.environ).name,
        "log": f"{capture}/log.txt" if settings.capture_log else None,
        "inject": f"PYTHONPATH={capture}/.boot-<random>: a sitecustomize that arms the agent once "
        "torch is imported",
        "debug": f"{capture}/debug.<node>-<pid>.log" if settings.debug else None,
        "layers": "named" if settings.layers else None,
        "numerics": _numerics(settings),
    }
    return "".join(f"{name:8} {fact}\n" for name, fact in facts.items() if fact)


def _numerics(settings: RunSettings) -> str | None:
    if not settings.numerics:
        return None
    again = f", then every {settings.numerics_every} steps" if settings.numerics_every else ""
    return f"measured in the second step after the windows{again}"


def _windows(settings: RunSettings) -> str:
    shown = [f"steps {show_window(window)}" for window in settings.windows]
    shown += [f"the framework's steps {show_window(w)}" for w in settings.global_windows]
    if settings.timed_window is not None:
        timed = settings.timed_window
        when = f"{timed.seconds:g} seconds into the run"
        if timed.auto:
            when = "once step times are stable, at the latest from step 20 or after 120 seconds"
        shown.append(f"{timed.steps} steps, {when}")
    if settings.live is not None:
        live = settings.live
        first = live.first or live.every
        shown.append(f"every {live.every} steps, from steps {first}-{first + live.length - 1} on")
    return ", ".join(shown)


def _ranks(ranks: RankSelection) -> str:
    if ranks.auto:
        return "all of up to 8, else the first of each node"
    if ranks.every == 1:
        return "all"
    return f"every {ranks.every}th" if ranks.every else ", ".join(map(str, ranks.only))
