"""Run a training command with the agent attached, and leave a capture behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.errors import InputError
from fp8verify.record.channels import STDERR, STDOUT, reserve_closed_streams
from fp8verify.record.command import needs_python, resolve_command
from fp8verify.record.folder import (
    CaptureFolder,
    attendance,
    check_name,
    make_capture_folder,
    remove_shared_agent,
    undone_unless_started,
    writing_to,
)
from fp8verify.record.injection import (
    Agent,
    boot_folder,
    child_environment,
    configure,
    delivered,
)
from fp8verify.record.interpreter import Python, choose_python
from fp8verify.record.job_name import Job, job_of
from fp8verify.record.notices import tell
from fp8verify.record.output import Output, carried_output
from fp8verify.record.settings import KINETO, RunResult, RunSettings
from fp8verify.record.signals import SignalForwarder, forwarded_signals

if TYPE_CHECKING:
    from fp8verify.record.outside.tool import OutsideTool

STARTS_S = 0.02  # a Python takes half of that, and torch fifty times as long
# What goes on beside a run, given its capture and how to ask it to stop.
Beside = Callable[[CaptureFolder, Callable[[], None]], AbstractContextManager[None]]


def run_training(
    command: Sequence[str], settings: RunSettings, beside: Beside | None = None
) -> RunResult:
    """Run `command` to its end, observed as `settings` say, and return where the capture is.

    The command's input, output, signals and exit code are what they would be without us.

    Raises:
        UsageError: if `command` is empty or names no module.
        InputError: if the script, the program or the capture folder cannot be used.
    """
    reserve_closed_streams()
    python = python_for(command, settings)
    if python.whose is not None:
        tell(
            f"runs it with {python.program} ({python.whose}), since the Python of "
            "fp8verify has no torch; --python chooses another"
        )
    arguments = resolve_command(command, python.program)
    # Before anything is made: without its profiler the training is not to start.
    tool = _outside_tool(settings)
    check_name(settings.trace_dir or Path())
    job = Job(settings.job) if settings.job else job_of(arguments, os.environ)
    capture = make_capture_folder(settings.trace_dir, job.name, once=job.once and job.runners != 1)
    started = time.time()
    # Signals are handled until everything that was recorded is in its place.
    with forwarded_signals() as signals:
        with ExitStack() as stack:
            stack.enter_context(undone_unless_started(capture))
            attending = stack.enter_context(attendance(capture, job.runners))
            boot = stack.enter_context(boot_folder(capture.path))
            agent = Agent(boot, capture, shared=(job.runners or 1) > 1)
            with writing_to(capture.path):
                agent.reserve()
            recording = tool.stem(capture) if tool is not None else None
            attached = delivered(
                agent, boot, lambda: configure(boot, capture, settings, recording, agent.archive)
            )
            log = capture.log if settings.capture_log else None
            started_command = arguments if tool is None else tool.wrap(arguments, capture, boot)
            with nullcontext() if beside is None else beside(capture, signals.stop):
                exit_code, failure = _spawn(started_command, boot, log, signals, attached)
            run = _Run(settings, arguments, started, tool, boot, capture)
            result = run.left(exit_code, failure)
        if attending.last:
            remove_shared_agent(capture.path)
    return result._replace(last=attending.last)


class _Run(NamedTuple):
    settings: RunSettings
    arguments: list[str]
    started: float
    tool: OutsideTool | None
    boot: Path
    capture: CaptureFolder

    def left(self, exit_code: int, failure: str | None) -> RunResult:
        """Return what the run left, once it has ended; nothing about that changes its exit code.

        Args:
            exit_code: of the command.
            failure: why it could not be observed, where that is known.
        """
        result = RunResult(self.capture.path, exit_code)
        try:
            return self._found(result, failure)
        except Exception as error:  # it may have left anything there
            why = f"what the run left cannot be read: {type(error).__name__}: {error}"
            return result._replace(notes=(why,))

    def _found(self, result: RunResult, failure: str | None) -> RunResult:
        # Not before the run, which waits for what we import.
        from fp8verify.record.aftermath import look_back
        from fp8verify.record.outside.tool import Collected
        from fp8verify.record.script_traces import adopt_script_traces

        path = self.capture.path
        left = self.tool.collect(self.capture, self.boot) if self.tool else Collected()
        exit_code = result.exit_code if left.exit_code is None else left.exit_code
        result = look_back(self.boot, self.capture, exit_code, self.settings)
        notes = result.notes if failure is None else (failure,)
        adopted = () if left.found else adopt_script_traces(path, self.arguments, self.started)
        return result._replace(notes=(*notes, *left.notes, *adopted))


def python_for(command: Sequence[str], settings: RunSettings) -> Python:
    """Return the Python for the command; ours for one that needs none."""
    needed = needs_python(command)
    return choose_python(settings.python, os.environ) if needed else Python(sys.executable)


def _outside_tool(settings: RunSettings) -> OutsideTool | None:
    if settings.profiler == KINETO:
        return None
    from fp8verify.record.outside.tool import outside_tool

    return outside_tool(settings.profiler, settings.window_count)


def _spawn(
    arguments: list[str],
    boot: Path,
    log: Path | None,
    signals: SignalForwarder,
    attached: AbstractContextManager[str | None],
) -> tuple[int, str | None]:
    """Run the command, once its output has a reader; all else comes after. Return its exit code.

    With it comes why it could not be observed, where that is known.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as where it is closed
            stream.flush()
    failure = None
    with ExitStack() as stack:
        output = stack.enter_context(carried_output(log)) if log is not None else None
        if output is not None:
            output.carry(boot)  # if we are killed from here on, what the run writes is still read
        try:
            child = _popen(arguments, boot, output)
        except OSError as error:
            raise InputError(
                f"Cannot run {arguments[0]}: {error.strerror}.",
                "Check that it is a program for this machine and may be executed.",
            ) from None
        signals.watch(child, output.resize if output is not None else None)
        # What we do now would take time from the start of the run where there are few cores.
        if not _ends_within(STARTS_S, child):
            failure = stack.enter_context(attached)
        code = child.wait()
    return code if code >= 0 else 128 - code, failure


def _ends_within(seconds: float, child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _popen(arguments: list[str], boot: Path, output: Output | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - running the user's command is the job
        arguments,
        env=child_environment(os.environ, boot),
        stdout=output.stream(STDOUT) if output is not None else None,
        stderr=output.stream(STDERR) if output is not None else None,
        close_fds=False,  # the shell may have opened some for the script: <(zcat data.gz)
    )
