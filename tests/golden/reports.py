"""The reports of the captures that ship, each worked out once in a process of the tests."""

from __future__ import annotations

import functools
import os

from fp8verify import Policy, Report, inspect
from scripts.truth_of_captures import ROOT

DEFAULT = Policy()
UPDATE = bool(os.environ.get("FP8VERIFY_UPDATE_GOLDENS"))


@functools.cache
def report_of(name: str, policy: Policy = DEFAULT) -> Report:
    """Return the report of a folder of traces/, which no test may change."""
    return inspect(ROOT / name, policy=policy)
