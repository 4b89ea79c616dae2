"""What Kineto logged while it recorded, as far as it says that records are missing.

Kineto puts its log into the trace's metadata under INFO, WARNING and ERROR. The lines hold paths
and host names, so that only the numbers of known lines are kept.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from fp8verify.text import lazy_pattern

LEVELS = frozenset({"INFO", "WARNING", "ERROR"})


class Remark(NamedTuple):
    """A known line: `loss` says that kernels which ran may be missing from the trace."""

    pattern: re.Pattern[str]
    text: str
    loss: bool
    evidence: str


REMARKS = (
    Remark(
        lazy_pattern(r"Dropped (\d{1,18}) activity records"),
        "CUPTI dropped {} activity records",
        True,
        "CuptiActivityApi::bufferCompleted (CuptiActivityApi.cpp)",
    ),
    Remark(
        lazy_pattern(r"Exceeded max GPU buffer count \((\d{1,18}) >= \d+\)"),
        "the profiler's GPU buffers ({}) were full and tracing ended early",
        True,
        "CuptiActivityApi::bufferRequested (CuptiActivityApi.cpp)",
    ),
    Remark(
        lazy_pattern(r"(?:CUPTI|GPU) stopped early\? = (1)"),
        "the profiler stopped recording the GPU early",
        True,
        "the 'Record counts' line of CuptiActivityProfiler::finalizeTrace",
    ),
    Remark(
        # Records of the warm-up are out of range too, so that a count alone is no loss
        # (pytorch/pytorch#192021 is about the cases in which it is one).
        lazy_pattern(r"Record counts: Out-of-range = ([1-9]\d{0,17})"),
        "the profiler left out {} records as outside of its window",
        False,
        "the 'Record counts' line of CuptiActivityProfiler::finalizeTrace",
    ),
    Remark(
        lazy_pattern(r"(CUPTI_ERROR_[A-Z_]{1,60})"),
        "the profiler met {}",
        False,
        "CUPTI_CALL (CuptiActivityApi.h), pytorch/pytorch#99615",
    ),
)


def remarks(lines: Any) -> list[tuple[Remark, str]]:
    """Return the known lines among those of one level, each with its number or word."""
    if not isinstance(lines, list):
        return []
    found: dict[tuple[Remark, str], None] = {}
    for line in lines:
        for remark in REMARKS if isinstance(line, str) else ():
            if match := remark.pattern.search(line):
                found[remark, match[1]] = None
    return list(found)
