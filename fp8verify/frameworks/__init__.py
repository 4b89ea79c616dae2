"""What is known of each training framework, one file a framework, and what users say of their own.

`NAME.toml` holds, as far as there is something to say: the log lines that claim, deny or limit low
precision, lines about single layers, the line with the loss, the step counter, and what module
classes compute. `[tool.fp8verify.frameworks.NAME]` in a settings file says the same of a user's own
code.
"""

from __future__ import annotations

from collections import ChainMap
from functools import cache
from pathlib import Path
from typing import Any

from fp8verify.files import parse_toml

Table = dict[str, Any]
declared: list[Table] = []  # a user's own, which `known.declare` checked


@cache
def built_in() -> tuple[Table, ...]:
    """Return the files of this folder."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return tuple(parse_toml(file.read_text(encoding="utf-8")) for file in files)


def for_agent() -> Table:
    """Return what the agent needs: step counters, and what classes of modules compute."""
    known = [*declared, *built_in()]
    leading: list[Table] = []
    others: list[Table] = []
    for framework in known:
        shown = framework["name"].lower()
        for row in framework.get("counters", ()):
            counter = {"shown": shown, **row}
            if counter.pop("drives", False):
                leading.append(counter)
            else:
                others.append(counter)
    modules = [framework.get("modules", {}) for framework in known]
    return {
        "counters": [*leading, *others],
        "modules": dict(ChainMap(*modules)),
    }
