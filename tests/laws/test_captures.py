"""Laws over the captures that ship: `FP8VERIFY_LAWS=all` tries all of them, and flips every call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.captures import KINETO, ROOT
from tests.laws import captures, laws

EVERYTHING = os.environ.get("FP8VERIFY_LAWS") == "all"
SMALL = 85_000  # bytes of a trace that the suite tries the laws on
# Laws that the verdict breaks today, in one call or another.
BROKEN_TODAY = frozenset(("flip",))
DECIDES = frozenset(("module list", "legs of the call"))


def _chosen() -> Iterator[object]:
    broken = pytest.mark.xfail(reason="broken today", strict=False)
    for name in KINETO:
        sizes = [file.stat().st_size for file in (ROOT / name).glob("rank*.json.gz")]
        if not EVERYTHING and sum(sizes) > SMALL:
            continue
        for law in laws.OF_CAPTURES:
            marks = broken if law in BROKEN_TODAY else ()
            yield pytest.param(law, name, marks=marks)


def _checks(law: str, subject: laws.Subject) -> Iterator[laws.Check]:
    """Try a law; the suite tries some sources and one call, not all."""
    if law == "flip":
        return laws.flip(subject, None if EVERYTHING else 1)
    if law == "sources" and not EVERYTHING:
        some = subject.rng.sample(captures.SOURCES, 2)
        return laws.sources(subject, tuple(some))
    return laws.OF_CAPTURES[law](subject)


@pytest.mark.parametrize(("law", "name"), _chosen())
def test_a_law_holds_of_a_capture(law: str, name: str, tmp_path: Path) -> None:
    for check in _checks(law, laws.Subject(ROOT / name, name, tmp_path)):
        if law != "flip" or check.kind in DECIDES:
            assert check.broken is None, f"{check.kind}: {check.case}: {check.broken}"
