"""The captures that ship, and their reports, each worked out once in a process of the tests."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from fp8verify import Policy, Report, inspect

ROOT = Path(__file__).parents[1] / "traces"
CAPTURES = sorted(path.parent.name for path in ROOT.glob("*/expected.json"))
KINETO = [name for name in CAPTURES if any((ROOT / name).glob("rank*.json.gz"))]
DEFAULT = Policy()
UPDATE = bool(os.environ.get("FP8VERIFY_UPDATE_GOLDENS"))


@functools.cache
def report_of(name: str, policy: Policy = DEFAULT) -> Report:
    """Return the report of a folder of traces/, which no test may change."""
    return inspect(ROOT / name, policy=policy)
