"""The doctor's result: one check for each rule that applied, and its formats."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

import msgspec

from fp8verify.report.markup import annotation
from fp8verify.text import counted, printable


class Status(str, Enum):
    """How a check ended: `NOTE` is no fault, `SKIPPED` says that its facts are not there."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


class Check(msgspec.Struct, frozen=True):
    """The result of one check.

    Attributes:
        code: its name, such as "config-key-ignored".
        status: ok, note, warn, fail or skipped.
        message: the fact, in one sentence.
        hint: the next step; empty if there is none.
        source: evidence of the rule: an issue, a line of a framework, a measurement.
        file: the file that it is about, None for the machine.
        line: the line in it, 1-based.
    """

    code: str
    status: Status
    message: str
    hint: str = ""
    source: str = ""
    file: str | None = None
    line: int | None = None

    @property
    def place(self) -> str:
        """The file, and the line if it is known, as they come before the message."""
        line = f":{self.line}" if self.line else ""
        if self.file:
            return f"{self.file}{line}: "
        return ""


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """All checks, most severe first, and what they come to.

    Attributes:
        status: fail or warn if there is a fault, ok if all was checked, note if no FP8 is
            requested, else skipped.
        conclusion: the closing line, which says what was checked.
        checks: the checks.

    Example:
        >>> import fp8verify
        >>> report = fp8verify.doctor("tests/doctor_configs/accelerate.yaml")
        >>> report.checks[0].code, report.checks[0].status.value
        ('fp8-asked', 'ok')
    """

    status: Status
    conclusion: str
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """1 if anything failed."""
        return int(self.status is Status.FAIL)

    @property
    def not_checked(self) -> tuple[Check, ...]:
        """What could not be checked: its facts are missing, or it was not recognized."""
        return tuple(check for check in self.checks if check.status is Status.SKIPPED)

    def to_json(self) -> str:
        """Return the report as JSON, the same text as `doctor --format json`."""
        checks = []
        for check in self.checks:
            fields = {
                "code": check.code,
                "status": check.status,
                "message": check.message,
                "hint": check.hint,
                "source": check.source,
            }
            checks.append(fields)
        document = {
            "status": self.status,
            "conclusion": self.conclusion,
            "checks": checks,
        }
        text = msgspec.json.format(msgspec.json.encode(document), indent=2)
        return text.decode() + "\n"

    def __str__(self) -> str:
        """Return the report as `doctor` prints it."""
        return to_text(self)


_GRAVITY = (Status.FAIL, Status.WARN, Status.NOTE, Status.OK, Status.SKIPPED)
FAULTS = (Status.FAIL, Status.WARN)
# What a machine is, which says nothing of the files and the command that were named.
_OF_MACHINE = {
    "fp8-units",
    "no-fp8-units",
    "no-gpu",
    "te-not-installed",
    "torch-not-installed",
    "versions",
}
# What is said of this machine alone, which another GPU that was named is not in.
_OF_THIS_MACHINE = frozenset(
    {"torch-without-cuda", "torch-not-installed", "te-not-installed", "versions"}
    | {"torchao-not-installed", "msamp-not-installed"}
)
_UNREAD = frozenset({"config-not-recognized", "fp8-mentioned", "config-not-found"})


def report_of(
    checks: Iterable[Check],
    *,
    elsewhere: bool = False,
) -> DoctorReport:
    """Join checks to a report, each fact once, most severe first.

    Args:
        checks: what the rules found.
        elsewhere: whether the run is for another machine, so what is said of this one comes last.
    """

    def order(check: Check) -> tuple[bool, int]:
        is_beside = elsewhere and check.code in _OF_THIS_MACHINE
        return is_beside, _GRAVITY.index(check.status)

    ordered = sorted(dict.fromkeys(checks), key=order)
    status, conclusion = _concluded(ordered)
    return DoctorReport(
        status=status,
        conclusion=conclusion,
        checks=tuple(ordered),
    )


def _concluded(checks: list[Check]) -> tuple[Status, str]:
    counts = Counter(check.status for check in checks)
    faults = counts[Status.FAIL] + counts[Status.WARN]
    if faults:
        words = {
            Status.FAIL: "fail",
            Status.WARN: "warn",
            Status.SKIPPED: "not checked",
        }
        parts = []
        for state, word in words.items():
            if counts[state]:
                parts.append(f"{counts[state]} {word}")
        head = counted(faults, "FAULT").upper()
        gravest = min((check.status for check in checks), key=_GRAVITY.index)
        return gravest, f"{head}: {', '.join(parts)}"
    named = [check for check in checks if check.code not in _OF_MACHINE] or checks
    if {check.status for check in named} <= {Status.SKIPPED}:
        return Status.SKIPPED, "NOTHING CHECKED"
    codes = {check.code for check in named}
    if "fp8-not-asked" in codes and not codes & {"fp8-asked", *_UNREAD}:
        return Status.NOTE, "NO FP8 REQUESTED"
    if counts[Status.SKIPPED]:
        return Status.SKIPPED, f"NO FAULT FOUND ({counts[Status.SKIPPED]} not checked)"
    return Status.OK, "OK"


_LEVELS = {Status.FAIL: "error", Status.WARN: "warning"}


def to_text(report: DoctorReport, *, verbose: bool = False) -> str:
    """Render each check with its place and its remedy.

    Args:
        report: the checks.
        verbose: whether to name the source of each fault, too.
    """
    columns = min(120, shutil.get_terminal_size((120, 24)).columns)
    width = max((len(check.code) for check in report.checks), default=0)
    pad = " " * min(9 + width, max(9, columns - 60))
    lines = []
    for check in report.checks:
        room = columns - len(pad) - 2
        first, *others = _wrapped(f"{check.place}{check.message}", room)
        state = check.status.value.replace("fail", "FAIL")
        lines.append(f"{state:7}  {check.code:{width}}  {first}")
        for row in others:
            lines.append(f"{pad}  {row}")
        for label, text in _below(check, verbose=verbose):
            first, *others = _wrapped(text, room)
            lines.append(f"{label:{len(pad)}}  {first}")
            for row in others:
                lines.append(f"{pad}  {row}")
    return "\n".join((*lines, report.conclusion, ""))


def _below(check: Check, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield what stands below the fact of a fault, with its label."""
    if check.status not in _LEVELS:
        return
    if check.hint:
        yield "fix", check.hint
    if verbose and check.source:
        yield "source", check.source


def _wrapped(text: str, width: int) -> list[str]:
    """Return lines of a text, broken between words: names and paths stay whole."""
    lines = textwrap.wrap(
        printable(text),
        width,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def to_github(report: DoctorReport) -> str:
    """Render as workflow commands of GitHub Actions, at the line of the file if there is one."""
    level = _LEVELS.get(report.status, "notice")
    lines = [annotation(level, "fp8verify doctor", report.conclusion)]
    for check in report.checks:
        if check.status in _LEVELS:
            text = check.message
            if check.hint:
                text += f"\n{check.hint}"
            level = _LEVELS[check.status]
            title = f"FP8 {check.code}"
            line = annotation(
                level,
                title,
                text,
                file=check.file,
                line=check.line,
            )
            lines.append(line)
    return "\n".join((*lines, ""))


FORMS: dict[str, Callable[[DoctorReport], str]] = {
    "text": to_text,
    "json": DoctorReport.to_json,
    "github": to_github,
}
