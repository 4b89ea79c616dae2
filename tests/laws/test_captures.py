"""Laws over the captures that ship: `FP8VERIFY_LAWS=all` tries all of them, and flips every call."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.captures import KINETO, ROOT
from tests.laws import captures, laws

EVERYTHING = os.environ.get("FP8VERIFY_LAWS") == "all"
SMALL = 85_000  # bytes of a trace that the suite tries the laws on
# Laws of captures that the verdict breaks today. Whoever mends one takes it out: the marks are strict.
BROKEN_TODAY: frozenset[tuple[str, str]] = frozenset()
DECIDES = frozenset(("module list", "legs of the call"))


def _chosen() -> Iterator[object]:
    broken = pytest.mark.xfail(reason="broken today", strict=True)
    for name in KINETO:
        sizes = [file.stat().st_size for file in (ROOT / name).glob("rank*.json.gz")]
        if not EVERYTHING and sum(sizes) > SMALL:
            continue
        for law in laws.OF_CAPTURES:
            if law != "flip" or _has_calls_to_flip(name, len(sizes)):
                marks = broken if (law, name) in BROKEN_TODAY else ()
                yield pytest.param(law, name, marks=marks)


def _has_calls_to_flip(name: str, traces: int) -> bool:
    """Whether a capture is ACTIVE and of one rank, of which the law of flips speaks."""
    expected = json.loads((ROOT / name / "expected.json").read_text(encoding="utf-8"))
    return expected["verdict"] == "ACTIVE" and traces == 1


def _checks(law: str, subject: laws.Subject) -> Iterator[laws.Check]:
    """Try a law; the suite tries some sources and one call, not all."""
    if law == "flip":
        return laws.flip(subject, None if EVERYTHING else 1, DECIDES)
    if law == "sources" and not EVERYTHING:
        some = subject.rng.sample(captures.SOURCES, 2)
        return laws.sources(subject, tuple(some))
    return laws.OF_CAPTURES[law](subject)


@pytest.mark.parametrize(("law", "name"), list(_chosen()))
def test_a_law_holds_of_a_capture(law: str, name: str, tmp_path: Path) -> None:
    checks = list(_checks(law, laws.Subject(ROOT / name, name, tmp_path)))
    if law == "flip" and not checks:
        pytest.skip("no call of this capture can be flipped so that a source shows it")
    for check in checks:
        assert check.broken is None, f"{check.kind}: {check.case}: {check.broken}"
