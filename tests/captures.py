"""The captures that ship, and their reports, each worked out once in a process of the tests."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from fp8verify import Policy, Report, inspect
from scripts.schemas import schema

ROOT = Path(__file__).parents[1] / "traces"
CAPTURES = sorted(path.parent.name for path in ROOT.glob("*/expected.json"))
KINETO = [name for name in CAPTURES if any((ROOT / name).glob("rank*.json.gz"))]
DEFAULT = Policy()
UPDATE = bool(os.environ.get("FP8VERIFY_UPDATE_GOLDENS"))


def schema_errors(document: dict[str, Any], kind: str = "report") -> list[str]:
    """Return what breaks the JSON Schema of a kind of document."""
    from jsonschema import Draft202012Validator  # takes a second

    return [
        error.message
        for error in Draft202012Validator(schema(kind)).iter_errors(document)
    ]


@functools.cache
def report_of(name: str, policy: Policy = DEFAULT) -> Report:
    """Return the report of a folder of traces/, which no test may change."""
    return inspect(ROOT / name, policy=policy)
