"""Ctrl-C once the training is over: its exit code and its capture are there to stay."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fp8verify.record.settings import RunResult

INTERRUPTED = 128 + signal.SIGINT


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
