"""The doctor's result: one check for each rule that applied, and its formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum

import msgspec

from fp8verify.report.markup import annotation
from fp8verify.text import printable


class Status(str, Enum):
    """How a check ended; `SKIPPED` says that the facts for it are not there."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        code: its name, such as "config-key-ignored".
        status: ok, warn, fail or skipped.
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


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """All checks, and the gravest status among them."""

    status: Status
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """1 if anything failed."""
        return int(self.status is Status.FAIL)

    @property
    def not_checked(self) -> tuple[Check, ...]:
        """What could not be checked: its facts are missing, or it was not recognised."""
        unknown = ("config-not-recognised", "config-key-unknown", "model-not-seen")
        known = ("fp8-not-asked", "measured")
        return tuple(
            check
            for check in self.checks
            if (check.status is Status.SKIPPED and check.code not in known)
            or (check.status is Status.WARN and check.code in unknown)
        )

    def to_json(self) -> str:
        """Return the report as JSON, the same text as `doctor --format json`."""
        fields = ("code", "status", "message", "hint", "source")
        checks = [{field: getattr(check, field) for field in fields} for check in self.checks]
        document = msgspec.json.encode({"status": self.status, "checks": checks})
        return msgspec.json.format(document, indent=2).decode() + "\n"


def report_of(checks: Iterable[Check]) -> DoctorReport:
    """Join checks to a report, each fact once, the gravest first."""
    unique = list(dict.fromkeys(checks))
    ordered = sorted(unique, key=lambda check: _GRAVITY.index(check.status))
    worst = ordered[0].status if ordered else Status.SKIPPED
    report = DoctorReport(status=worst, checks=tuple(ordered))
    missing = {check.code for check in report.not_checked}
    if report.status is Status.OK:  # ok is what was recognised and checked
        if "config-key-unknown" in missing:
            return msgspec.structs.replace(report, status=Status.WARN)
        if "training-not-started" in missing:
            return msgspec.structs.replace(report, status=Status.SKIPPED)
    return report


_GRAVITY = (Status.FAIL, Status.WARN, Status.OK, Status.SKIPPED)


_WORDS = {Status.FAIL: "FAIL", Status.WARN: "warn", Status.OK: "ok", Status.SKIPPED: "-"}
_LEVELS = {Status.FAIL: "error", Status.WARN: "warning"}


def to_text(report: DoctorReport) -> str:
    """Render each check with its place, its hint and its source."""
    width = max((len(check.code) for check in report.checks), default=0)
    pad = " " * (6 + width + 2)
    lines = []
    for check in report.checks:
        text = printable(f"{_where(check)}{check.message}")
        lines.append(f"{_WORDS[check.status]:4}  {check.code:{width}}  {text}")
        if check.status in _LEVELS and check.hint:
            lines.append(pad + printable(check.hint))
        if check.status in _LEVELS and check.source:
            lines.append(f"{pad}[{printable(check.source)}]")
    return "".join(f"{line}\n" for line in (*lines, _summary(report)))


def _summary(report: DoctorReport) -> str:
    counts = Counter(check.status for check in report.checks)
    words = [f"{counts[status]} {status.value}" for status in _WORDS if counts[status]]
    missing = list(dict.fromkeys(check.code for check in report.not_checked))
    if missing:
        words.append(f"not checked: {', '.join(missing)}")
    skipped = report.status is Status.SKIPPED
    headline = "NO FAULT FOUND" if skipped else report.status.value.upper()
    return f"{headline}: {', '.join(words)}" if words else "nothing to check"


def to_github(report: DoctorReport) -> str:
    """Render as workflow commands of GitHub Actions, at the line of the file if there is one."""
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
