"""The report of a training that ended with an error before it completed a step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import click
from msgspec.structs import replace

from fp8verify.capture.files import find_logs
from fp8verify.errors import InputError
from fp8verify.logs.lines import read_lines
from fp8verify.report.model import Finding, Report

AnyReport = TypeVar("AnyReport", bound=Report)
_CODE = "no-training-step"
# What begins a traceback, also below a launcher's prefix such as "[rank0]: ". A SyntaxError of the
# script itself has only the second.
_BEGINS = re.compile(
    r"(.{0,80}?)(?:Traceback \(most recent call last\):|  File \"[^\"]+\", line \d)"
)
# What argparse and click print about options of ours that stand after the script.
_MISPLACED = re.compile(r"(?:unrecognized arguments|No such option):.*?(--[a-z-]+)", re.IGNORECASE)
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::.*|\s*)$")
# Raised because another process failed, by launchers and by ranks that lost a peer.
_CONSEQUENCES = re.compile(
    r"(?:\w+\.)*(?:ChildFailedError|CalledProcessError|ProcessExitedException|DistBackendError"
    r"|DistNetworkError|DistStoreError|SignalException|ConnectionResetError|BrokenPipeError)\b"
)
# Notes of `record.collect_result`, which guess where the error is known.
_UNOBSERVED = ("the command ended with", "no Python that could be observed")
_MAX_ERROR = 160
_MAX_LINES = 200_000


def with_failure(report: AnyReport, capture: Path, exit_code: int) -> AnyReport:
    """Say of a run without a step that the training failed, and with which error.

    Args:
        report: the report of the run.
        capture: the run's folder, whose logs are read.
        exit_code: the training's; one of 0 may be a shell's that ignored the training's.
    """
    if all(finding.code != _CODE for finding in report.findings):
        return report
    error = last_error(capture)
    if exit_code == 0 and error is None:
        return report
    fact = f"the training ended with exit code {exit_code} before it completed a step"
    found = tuple(
        _with_message(finding, f"{fact}: {error}" if error else fact)
        if finding.code == _CODE
        else finding
        for finding in report.findings
    )
    notes = tuple(note for note in report.notes if not note.startswith(_UNOBSERVED))
    return replace(report, reason=fact, findings=found, notes=notes)


def _with_message(finding: Finding, message: str) -> Finding:
    hint = "Fix the training's own error first, shown above; the log is in the capture."
    misplaced = _MISPLACED.search(message)
    ours = {param.name for param in click.get_current_context().command.params}
    if misplaced is not None and misplaced[1][2:].replace("-", "_") in ours:
        hint = f"{misplaced[1]} is an option of fp8verify: put it before the script."
    return replace(finding, message=message, hint=hint)


def last_error(capture: Path) -> str | None:
    """Return the last line of the last traceback in the logs of a capture, None without one.

    What a launcher or another rank raised because a worker failed counts only if there is no other.
    """
    found = list(chain.from_iterable(map(_errors_in, find_logs(capture))))
    own = [error for error in found if not _CONSEQUENCES.match(error)]
    errors = own or found
    return errors[-1] if errors else None


def _errors_in(log: Path) -> Iterator[str]:
    with suppress(InputError):  # the report itself has a note on a log that cannot be read
        lines = (line.text for line in read_lines(log) if line.first)
        yield from _errors(islice(lines, _MAX_LINES))


def _errors(lines: Iterable[str]) -> Iterator[str]:
    """Yield the line that ends each traceback; those of several ranks may be interleaved."""
    within: set[str] = set()  # the prefixes of the tracebacks that have not ended
    for line in lines:
        if _MISPLACED.search(line):
            yield line.strip()[:_MAX_ERROR]
        begins = _BEGINS.match(line)
        if begins is not None:
            within.add(begins[1])
            continue
        for prefix in [prefix for prefix in within if line.startswith(prefix)]:
            text = line[len(prefix) :]
            if text.strip() and not text[0].isspace():
                within.discard(prefix)
                if _ERROR.match(text):
                    yield text.rstrip()[:_MAX_ERROR].rstrip(":")
