"""Rules on Python sources: what they call, and with which arguments, by data/scripts.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from fp8verify.doctor.checks import Check
from fp8verify.doctor.conditions import all_hold, holds, value_of
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.rules.rows import fp8_from_outside
from fp8verify.doctor.scripts import Call, Script
from fp8verify.doctor.tables import rules

_MOST = 20  # checks of one row for one source


def scripts(facts: Facts) -> Iterator[Check]:
    """Yield the checks of the table's rows for each call."""
    for script in facts.scripts:
        for rule in rules("scripts")["script"]:
            row = rule.fields
            called = row["calls"] == ["*"] or any(script.named(*row["calls"]))
            if called and _reads_so(row, script, facts):
                for call in islice(_calls(row, script), _MOST):
                    yield rule.check(_message(rule.message, call), script.path, call.line)


def _message(message: str, call: Call) -> str:
    message = message.replace("<call>", call.name)
    for name in re.findall(r"<=([^>]+)>", message):
        message = message.replace(f"<={name}>", str(value_of(name, call.arguments))[:40])
    return message


def _reads_so(row: Mapping[str, Any], script: Script, facts: Facts) -> bool:
    """Whether the source as a whole is one that the row is about."""
    return (
        all(re.search(text, script.text) for text in row.get("text", ()))
        and ("lacks" not in row or re.search(row["lacks"], script.text) is None)
        and ("asks_outside" not in row or fp8_from_outside(facts) is not None)
    )


def _calls(row: Mapping[str, Any], script: Script) -> Iterator[Call]:
    lines = script.text.splitlines() if "function" in row else []
    around: dict[tuple[int, int], bool] = {}
    for call in script.calls:
        if call.name not in row["calls"] and row["calls"] != ["*"]:
            continue
        if "function" in row:
            first, last = place = call.function or (1, len(lines))
            if place not in around:
                text = "\n".join(lines[first - 1 : last])
                around[place] = re.search(row["function"], text) is not None
            if not around[place]:
                continue
        if all_hold(row.get("when", {}), call.arguments) and all(
            _every(tests, call.arguments.get(name)) for name, tests in row.get("every", {}).items()
        ):
            yield call


def _every(tests: list[str], value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(holds(tests, item) for item in value)
    )
