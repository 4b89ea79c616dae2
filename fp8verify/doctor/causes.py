"""Name the cause of a training that failed with a message that is known."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from fp8verify.doctor.tables import rules, table

MAX_LINE = 4096
MAX_CAUSES = 5
_BEFORE = 80  # lines of a traceback


class Cause(NamedTuple):
    """A known message in a log: the line, what causes it, and the next step."""

    line: int
    text: str
    cause: str
    remedy: str
    source: str
    check: str


def causes(lines: Iterable[str]) -> list[Cause]:
    """Return what is known about the messages in a log, each cause once, the first line of it."""
    rows = failures()
    found: dict[int, Cause] = {}
    before: deque[str] = deque(maxlen=_BEFORE)
    gate = re.compile("|".join(_scoped(row["pattern"]) for row in rows))
    for number, raw in enumerate(lines, start=1):
        line = raw[:MAX_LINE].rstrip("\r\n")
        for place, row in enumerate(rows) if gate.search(line) else ():
            if place not in found and _is(row, line, before):
                text = line.strip()[:300]
                found[place] = Cause(
                    number, text, row["cause"], row["remedy"], row["evidence"], row["check"]
                )
        before.append(line)
    return list(islice(found.values(), MAX_CAUSES))


def failures() -> list[dict[str, Any]]:
    """Return the known messages, each with its `check`, "" if no check predicts it.

    They are the rows of data/failures.toml, and the rules that have a message as `dies`.
    """
    groups = {name: rows for name, rows in table("failures").items() if isinstance(rows, list)}
    told = [r for name in ("rules", "scripts") for found in rules(name).values() for r in found]
    return [
        {**row, "check": "" if code == "other" else code}
        for code, rows in groups.items()
        for row in rows
    ] + [
        {**rule.fields, "pattern": rule.fields["dies"], "cause": rule.plain, "check": rule.code}
        for rule in told
        if "dies" in rule.fields
    ]


def _scoped(pattern: str) -> str:
    """Return a pattern whose flags apply only to itself."""
    plain = pattern.removeprefix("(?i)")
    return f"(?{'i' if plain != pattern else ''}:{plain})"


def _is(row: Mapping[str, Any], line: str, before: deque[str]) -> bool:
    if not re.search(row["pattern"], line):  # compiled once, and kept by `re`
        return False
    near = row.get("near")
    return not near or any(re.search(near, text) for text in (line, *before))
