"""What the doctor hands out: one check for each rule that had something to say."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec


class Status(str, Enum):
    """How a check ended; `SKIPPED` says that the facts for it are not there."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        code: its name, such as "config-key-ignored".
        status: how it ended.
        message: the fact, in one sentence.
        hint: the next step; empty where there is none.
        source: what the rule rests on: a thread, a line of a framework, a measurement.
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
        """1 where anything failed."""
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
    report = DoctorReport(status=_worst(ordered), checks=tuple(ordered))
    unknown = any(check.code == "config-key-unknown" for check in report.not_checked)
    if report.status is Status.OK and unknown:  # ok is what was recognised and checked
        return msgspec.structs.replace(report, status=Status.WARN)
    return report


_GRAVITY = (Status.FAIL, Status.WARN, Status.OK, Status.SKIPPED)


def _worst(ordered: list[Check]) -> Status:
    return ordered[0].status if ordered else Status.SKIPPED
