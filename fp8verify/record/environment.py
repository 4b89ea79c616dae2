"""Attach by environment variables alone: for jobs whose command cannot be wrapped."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from fp8verify.capture.names import BOOTS
from fp8verify.errors import UsageError
from fp8verify.record.collect_result import boot_errors
from fp8verify.record.folder import check_name, make_capture_folder
from fp8verify.record.injection import attach, make_boot_folder
from fp8verify.record.job import job_of
from fp8verify.record.settings import RunSettings

UNOBSERVED = (
    "no Python process completed a training step with these exports: either none stepped a "
    "torch.optim optimizer, or PYTHONPATH did not reach it, or torch was imported before"
)


# How a shell puts a folder, quoted, in front of PYTHONPATH. POSIX's `${…:+…}` leaves no empty
# entry, which would be the working directory. fish joins a path variable by ":" in the environment.
SHELLS = {
    "sh": 'export PYTHONPATH={}"${{PYTHONPATH:+:$PYTHONPATH}}"',
    "fish": "set -gx --path --prepend PYTHONPATH {}",
    "none": "PYTHONPATH={}",
}


def export_line(settings: RunSettings, shell: str) -> str:
    """Prepare a capture and return the line that attaches every Python started after it.

    Raises:
        UsageError: no folder is named, or its name cannot stand in PYTHONPATH.
        InputError: the folder cannot be used.
    """
    if settings.trace_dir is None:
        raise UsageError("There is no folder for the capture.", "Name one with --trace-dir.")
    check_name(settings.trace_dir)
    capture = make_capture_folder(settings.trace_dir, settings.job or job_of((), os.environ).name)
    boot = make_boot_folder(capture.path)
    attach(boot, capture, settings._replace(capture_log=False), shared=False)
    word = str(boot) if shell == "none" else shlex.quote(str(boot))
    return SHELLS[shell].format(word)


def notes_on_attachment(capture: Path, *, observed: bool) -> tuple[str, ...]:
    """Return what kept processes from being observed, if `fp8verify env` made the capture.

    Args:
        capture: the capture folder.
        observed: whether any process left a record.
    """
    boots = sorted(capture.glob(BOOTS))
    if not boots:
        return ()
    errors = tuple(note for boot in boots for note in boot_errors(boot))
    return errors or (() if observed else (UNOBSERVED,))
