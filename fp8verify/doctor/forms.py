"""The forms of a doctor's report: a name each, all with one signature."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator

from fp8verify.doctor.checks import Check, DoctorReport, Status
from fp8verify.report.markup import annotation
from fp8verify.text import printable

_WORDS = {Status.FAIL: "FAIL", Status.WARN: "warn", Status.OK: "ok", Status.SKIPPED: "-"}
_LEAST = 30  # columns that a folded text needs to be read
_LEVELS = {Status.FAIL: "error", Status.WARN: "warning"}


def to_text(report: DoctorReport, columns: int | None = None) -> str:
    """Render each check with where it is, its hint and its source.

    Args:
        report: the doctor's.
        columns: of the terminal, whose lines are folded; None for a line for each text.
    """
    return "".join(f"{_folded(*line, columns)}\n" for line in _text_lines(report))


def _folded(ahead: str, text: str, columns: int | None) -> str:
    """Fold a text so that what goes on stands below its beginning, where that leaves room."""
    if columns is None:
        return ahead + text
    indent = len(ahead) if columns - len(ahead) >= _LEAST else 6
    first = ahead if ahead.strip() else " " * indent
    return textwrap.fill(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _text_lines(report: DoctorReport) -> Iterator[tuple[str, str]]:
    """Yield each line as what stands ahead of its text, and the text."""
    width = max((len(check.code) for check in report.checks), default=0)
    pad = " " * (6 + width + 2)
    for check in report.checks:
        yield (
            f"{_WORDS[check.status]:4}  {check.code:{width}}  ",
            printable(f"{_where(check)}{check.message}"),
        )
        if check.status in _LEVELS and check.hint:
            yield pad, printable(check.hint)
        if check.status in _LEVELS and check.source:
            yield pad, f"[{printable(check.source)}]"
    yield "", _summary(report)


def _summary(report: DoctorReport) -> str:
    counts = Counter(check.status for check in report.checks)
    words = [f"{counts[status]} {status.value}" for status in _WORDS if counts[status]]
    missing = list(dict.fromkeys(check.code for check in report.not_checked))
    if missing:
        words.append(f"not checked: {', '.join(missing)}")
    return f"{report.status.value.upper()}: {', '.join(words)}" if words else "nothing to check"


def to_github(report: DoctorReport) -> str:
    """Render as workflow commands of GitHub Actions, at the line of the file where there is one."""
    level = _LEVELS.get(report.status, "notice")
    lines = [annotation(level, "fp8verify doctor", _summary(report))]
    for check in report.checks:
        if check.status in _LEVELS:
            text = check.message + (f"\n{check.hint}" if check.hint else "")
            level, title = _LEVELS[check.status], f"FP8 {check.code}"
            lines.append(annotation(level, title, text, file=check.file, line=check.line))
    return "".join(f"{line}\n" for line in lines)


def _where(check: Check) -> str:
    if check.file is None:
        return ""
    return f"{check.file}:{check.line}: " if check.line else f"{check.file}: "


FORMS: dict[str, Callable[[DoctorReport], str]] = {
    "text": to_text,
    "json": DoctorReport.to_json,
    "github": to_github,
}
