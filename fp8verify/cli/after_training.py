"""After the training its exit code counts: for Ctrl-C, and where no report can be made."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from fp8verify.errors import Fp8VerifyError
from fp8verify.record.stderr import log as say

if TYPE_CHECKING:
    from fp8verify.record.collect_result import RunResult

NO_REPORT = 3  # as where the evidence cannot decide
INTERRUPTED = 128 + signal.SIGINT


@contextmanager
def training_comes_first(
    result: RunResult, *, debug: bool, exit_zero: bool = False
) -> Iterator[None]:
    """Turn an error of the report into a note and an exit code.

    Args:
        result: how the training ended; if it failed, its exit code stays.
        debug: whether to print the traceback of an error of ours.
        exit_zero: whether to exit with 0 where the training did.
    """
    try:
        yield
    except Fp8VerifyError as error:
        say(f"there is no report: {error.fact}")
        if result.capture.exists():
            say(error.hint)
    except Exception as error:
        if debug:
            sys.excepthook(*sys.exc_info())
        say(
            f"there is no report: {type(error).__name__}: {error}. This is an error of fp8verify; "
            "run with --debug for the traceback."
        )
    else:
        return
    sys.exit(result.exit_code or (0 if exit_zero else NO_REPORT))


def report_can_be_interrupted(result: RunResult) -> None:
    """From here on Ctrl-C leaves the report, with the exit code of the training if it failed.

    The second one does so at once: Python drops what the first one raises if it comes amid a
    callback of the import system.
    """
    code = result.exit_code or INTERRUPTED

    def leave(*_: object) -> None:
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))
        atexit.register(no_more_interrupts)  # at its end Python would give the signal back
        click.echo(f"\nNo report. To have it: fp8verify inspect {result.capture}", err=True)
        sys.exit(code)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def no_more_interrupts() -> None:
    """Keep Ctrl-C from changing the exit code of a process that is about to exit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
