"""Run a training command with the agent attached, and leave a capture behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from fp8verify.errors import InputError
from fp8verify.record.command import python_for, resolve_command, script_name
from fp8verify.record.folder import (
    CAPTURE,
    check_name,
    make_capture_folder,
    remove_shared_agent,
    undone_unless_started,
)
from fp8verify.record.injection import attach, boot_folder, child_environment
from fp8verify.record.job import Job, job_of, runner_lock
from fp8verify.record.log import say
from fp8verify.record.output import STDERR, STDOUT, Output, reserve_closed_streams
from fp8verify.record.settings import RunSettings
from fp8verify.record.signals import SignalForwarder, forwarded_signals
from fp8verify.record.switches import with_switches
from fp8verify.text import show_window

if TYPE_CHECKING:
    from fp8verify.record.collect_result import RunResult
    from fp8verify.record.run_watch import Watcher


def run_training(
    command: Sequence[str], settings: RunSettings, watch: Watcher | None = None
) -> RunResult:
    """Run `command` to its end, observed as `settings` say, and return where the capture is.

    The command's input, output, signals and exit code are what they would be without us.

    Raises:
        UsageError: if `command` is empty or names no module.
        InputError: if the script, the program or the capture folder cannot be used.
    """
    reserve_closed_streams()
    python = python_for(command, settings.python)
    if python.whose is not None:
        say(
            f"runs it with {python.program} ({python.whose}), since the Python of "
            "fp8verify has no torch; --python chooses another"
        )
    arguments = resolve_command(command, python.program)
    check_name(settings.trace_dir or Path())
    job = Job(settings.job) if settings.job else job_of(arguments, os.environ)
    capture = make_capture_folder(
        settings.trace_dir,
        job.name,
        once=job.once and job.runners != 1,
        script=script_name(command),
    )
    # Signals are handled until everything that was recorded is in its place.
    with forwarded_signals() as signals:
        with ExitStack() as stack:
            stack.enter_context(undone_unless_started(capture))
            lock = stack.enter_context(runner_lock(capture.path, job.runners))
            boot = stack.enter_context(boot_folder(capture.path))
            attach(boot, capture, settings, shared=(job.runners or 1) > 1)
            log = capture.log if settings.capture_log else None
            with nullcontext() if watch is None else watch.following(capture, signals.stop):
                code = _spawn(arguments, boot, log, signals)
            exit_code = code if code >= 0 else 128 - code
            # Not before the run, which waits for what we import.
            from fp8verify.record.collect_result import RunResult, collect_result

            try:
                result = collect_result(boot, capture, exit_code, settings)
                result = result._replace(notes=(*result.notes, *capture.notes))
            except Exception as error:  # the run may have left anything there
                why = f"what the run left cannot be read: {type(error).__name__}: {error}"
                result = RunResult(capture.path, exit_code, notes=(why,))
        if lock.last:
            remove_shared_agent(capture.path)
    return result._replace(last=lock.last, signal=-code if code < 0 else None)


def _spawn(arguments: list[str], boot: Path, log: Path | None, signals: SignalForwarder) -> int:
    """Run the command, once its output has a reader.

    Returns its exit code; the negative number of a signal that ended it.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None if it is closed
            stream.flush()
    # If we are killed from here on, what the run writes is still read.
    with (
        closing(Output(log, boot)) if log is not None else nullcontext() as output,
        signals.with_witness(arguments),
    ):
        try:
            child = subprocess.Popen(  # noqa: S603 - running the user's command is the job
                arguments,
                env=child_environment(with_switches(os.environ), boot),
                stdout=output.stream(STDOUT) if output is not None else None,
                stderr=output.stream(STDERR) if output is not None else None,
                close_fds=False,  # the shell may have opened some for the script: <(zcat …)
            )
        except OSError as error:
            raise InputError(
                f"Cannot run {arguments[0]}: {error.strerror}.",
                "Check that it is a program for this machine and may be executed.",
            ) from None
        signals.watch(child, output.resize if output is not None else None)
        return child.wait()


def describe_run(command: Sequence[str], settings: RunSettings) -> str:
    """Return what `run_training` would run and inject, one line for each.

    Raises:
        UsageError: if `command` is empty or names no module.
        InputError: if the script or the program does not exist.
    """
    import shlex  # not before a run, which waits for what we import

    arguments = resolve_command(command, python_for(command, settings.python).program)
    capture = settings.trace_dir or f"{CAPTURE}{script_name(command)}-<time>-<pid>"
    return (
        f"run      {shlex.join(arguments)}\n"
        f"record   {_windows(settings)}\n"
        f"capture  {capture}\n"
        f"inject   PYTHONPATH={capture}/.boot-<random>: a sitecustomize that arms the agent once "
        "torch is imported\n"
    )


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
        window = show_window((live.first, live.first + live.length - 1))
        shown.append(f"every {live.every} steps, from steps {window} on")
    return ", ".join(shown)
