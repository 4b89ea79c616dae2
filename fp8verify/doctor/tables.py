"""The tables of data/, and the rules in them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module, resources
from typing import Any, NamedTuple

from fp8verify.doctor.checks import Check, Status

_STATUSES = ("fail", "warn", "ok")


@cache
def table(name: str) -> dict[str, Any]:
    """Return a table of data/ as TOML reads it."""
    library = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    file = resources.files("fp8verify.doctor") / "data" / f"{name}.toml"
    return dict(library.loads(file.read_text(encoding="utf-8")))


class Rule(NamedTuple):
    """A row of a table of rules: code, gravity, message, all its fields, when it was read."""

    code: str
    status: Status
    message: str
    fields: Mapping[str, Any]
    read: str

    @property
    def plain(self) -> str:
        """The message without values, and with the first names of keys."""
        keys = " or ".join(f"<{next(iter(when), '')}>" for when in self.alternatives())
        text = re.sub("(: )?<@sides>", "", self.message.replace("<@key>", keys))
        return re.sub(r"<[=@]?([^<>|]+)[^<>]*>", r"`\1`", text)

    def alternatives(self) -> list[Mapping[str, Any]]:
        """Return the tests in `when`; each that applies is a check."""
        when = self.fields.get("when", {})
        return when if isinstance(when, list) else [when]

    def check(self, message: str, file: str | None, line: int | None) -> Check:
        """Return the check that the row makes, with its message filled in."""
        return Check(
            code=self.code,
            status=self.status,
            message=message,
            hint=self.fields["remedy"],
            source=f"{self.fields['evidence']}; read {self.read}",
            file=file,
            line=line,
        )


@cache
def rules(name: str) -> dict[str, list[Rule]]:
    """Return the rules of a table by group: a framework, a family, "any", "machine" or "script"."""
    read = str(table(name)["read"])
    return {
        group: [
            Rule(code, Status(status), row[status], row, read)
            for code, rows in codes.items()
            for row in map(_by_name, rows)
            for status in _STATUSES
            if status in row
        ]
        for group, codes in table(name).items()
        if isinstance(codes, dict) and group != "calls"
    }


def _by_name(row: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Return a row as a dictionary; a list's fields are named by the columns."""
    if isinstance(row, dict):
        return row
    where, status, message, remedy, evidence = row
    return {"where": where, status: message, "remedy": remedy, "evidence": evidence}
