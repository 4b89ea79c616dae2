"""What is known of each training framework, one file a framework, and what users say of their own.

`NAME.toml` holds, as far as there is something to say: the log lines that claim, deny or limit low
precision, lines about single layers, the line with the loss, the step counter, and what module
classes compute. `[tool.fp8verify.frameworks.NAME]` in a settings file says the same of a user's own
code.
"""

from __future__ import annotations

from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from fp8verify.files import parse_toml

Table = dict[str, Any]
_declared: list[Table] = []
_generations = count(1)
_current = [0]


@cache
def built_in() -> tuple[Table, ...]:
    """Return the files of this folder; expressions go on in lines indented by four."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return tuple(_joined(parse_toml(file.read_text(encoding="utf-8"))) for file in files)


def _joined(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\n    ", "")
    if isinstance(value, list):
        return list(map(_joined, value))
    return {key: _joined(one) for key, one in value.items()} if isinstance(value, dict) else value


def use(tables: list[Table]) -> None:
    """Take a user's own frameworks, checked by `known.declare`, for this process."""
    _declared[:] = tables
    _current[0] = next(_generations)


def declared() -> list[Table]:
    """Return the user's own frameworks."""
    return list(_declared)


def generation() -> int:
    """Return a number that changes with the user's own frameworks."""
    return _current[0]


def for_agent() -> Table:
    """Return what the agent needs: step counters, and what classes of modules compute."""
    known = [*_declared, *built_in()]
    rows = [(one, counter) for one in known for counter in one.get("counters", ())]
    rows.sort(key=lambda row: not row[1].get("drives"))
    return {
        "counters": [
            {
                "shown": counter.get("shown") or one["name"].lower(),
                "cls": counter["cls"],
                "method": counter["method"],
                "path": counter["path"],
                "owner": counter.get("owner", ""),
                "early": counter.get("early", False),
            }
            for one, counter in rows
        ],
        "modules": {
            cls: state for one in reversed(known) for cls, state in one.get("modules", {}).items()
        },
    }
