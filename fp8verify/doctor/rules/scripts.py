"""Rules on Python sources: what they call, and with which arguments, by data/scripts.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.conditions import all_hold, holds, table, value_of
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.rules.rows import fp8_from_outside
from fp8verify.doctor.scripts import Call, Script, recipe_of


def scripts(facts: Facts) -> Iterator[Check]:
    """Yield what the rows of the table say of each call, and of its arguments."""
    for script in facts.scripts:
        for call in script.calls:
            yield from _arguments(script, call)
            for row in table("scripts")["rule"]:
                if _holds(row, script, call, facts):
                    message = row["message"].replace("<call>", call.name)
                    for name in re.findall(r"<=([^>]+)>", message):
                        value = str(value_of(name, call.arguments))
                        message = message.replace(f"<={name}>", value[:40])
                    yield _check(script, call, row, message)


def _holds(row: Mapping[str, Any], script: Script, call: Call, facts: Facts) -> bool:
    return (
        (call.name in row["calls"] or row["calls"] == ["*"])
        and all_hold(row.get("when", {}), call.arguments)
        and all(_every(tests, call.arguments.get(k)) for k, tests in row.get("every", {}).items())
        and ("function" not in row or re.search(row["function"], _around(script, call)) is not None)
        and ("text" not in row or re.search(row["text"], script.text) is not None)
        and ("lacks" not in row or re.search(row["lacks"], script.text) is None)
        and ("asks_outside" not in row or fp8_from_outside(facts) is not None)
    )


def _around(script: Script, call: Call) -> str:
    first, last = call.function or (1, len(script.text))
    return "\n".join(script.text.splitlines()[first - 1 : last])


def _every(tests: list[str], value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(holds(tests, item, {}) for item in value)
    )


def _check(script: Script, call: Call, row: Mapping[str, Any], message: str) -> Check:
    return Check(
        code=row["code"],
        status=Status(row.get("status", "warn")),
        message=message,
        hint=row["remedy"],
        source=f"{row['evidence']}; read {table('scripts')['read']}",
        file=script.path,
        line=call.line,
    )


def _arguments(script: Script, call: Call) -> Iterator[Check]:
    """Yield fields that a converter lacks, and recipes that it does not know."""
    fields = table("scripts")["fields"].get(call.name)
    for name in call.arguments if fields else ():
        if not name.isdecimal() and name not in fields:
            row = {
                "code": "config-key-unknown",
                "remedy": f"Its fields: {', '.join(fields)}.",
                "evidence": "torchtitan b5bcd76 components/quantization",
            }
            message = f"{call.name}.Config has no field {name} (TypeError)"
            yield _check(script, call, row, message)
    known = table("scripts")["recipes"].get(call.name)
    recipe = recipe_of(call)
    if known and recipe is not None and recipe not in known:
        near = get_close_matches(recipe.lower(), known, n=1) or known
        row = {
            "code": "config-value-unknown",
            "status": "fail",
            "remedy": f"Did you mean {near[0]!r}?",
            "evidence": "torchao float8/config.py; torchtitan b5bcd76 components/quantization",
        }
        gone = " (tensorwise is gone)" if recipe == "tensorwise" else ""
        message = f"recipe_name={recipe!r} is none of {', '.join(known)}{gone}"
        yield _check(script, call, row, message)
