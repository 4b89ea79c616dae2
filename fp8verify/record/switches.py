"""Keep the environment's switches of Python, which are for the run, from the runner itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

# What makes a Python print, ask or end in another way.
SWITCHES = (
    "PYTHONINSPECT",
    "PYTHONVERBOSE",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONDEVMODE",
    "PYTHONWARNINGS",
    "PYTHONDEBUG",
    "PYTHONFAULTHANDLER",
    "PYTHONTRACEMALLOC",
    "PYTHONMALLOCSTATS",
    "PYTHONDUMPREFS",
    "PYTHONASYNCIODEBUG",
)
KEPT = "_FP8VERIFY_SWITCHES"


def leave_switches() -> None:
    """Start this process again without them, if the environment has any."""
    found = {name: os.environ[name] for name in SWITCHES if os.environ.get(name)}
    if found:
        others = {name: value for name, value in os.environ.items() if name not in found}
        words = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, words, {**others, KEPT: json.dumps(found)})  # noqa: S606


def with_switches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it was given to us."""
    found = dict(environment)
    kept = json.loads(found.pop(KEPT, "{}"))
    return {**found, **{name: kept[name] for name in SWITCHES if name in kept}}
