"""Laws over random runs whose truth is known: `FP8VERIFY_LAWS=2000` tries that many of each."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.laws import laws, runs

EXAMPLES = int(os.environ.get("FP8VERIFY_LAWS", "8"))
# Laws that the verdict breaks today: found now and then, so no law for a suite yet.
BROKEN_TODAY = frozenset(
    ("sound", "time", "sources", "flip", "outside", "repetition", "entries")
)
# Runs in which it breaks them. Whoever mends one takes it out: the marks are strict.
CASES_BROKEN_TODAY = (("flip", 45),)
_BROKEN = pytest.mark.xfail(reason="broken today", strict=True)
# Runs in which it broke them once.
CASES_MENDED = (
    ("sources", 40), ("flip", 12), ("outside", 15), ("outside", 18), ("outside", 43),
    ("sound", 2024), ("sound", 2041), ("sound", 3099), ("sound", 3116), ("flip", 3049),
    ("sound", 7067), ("entries", 7013), ("entries", 7018), ("sources", 7154), ("outside", 7066),
    ("sound", 7059), ("sound", 7074), ("sound", 7157), ("flip", 7047), ("flip", 7131), ("flip", 7168),
    ("flip", 7177),
)  # fmt: skip
# A flip that these show must be reported; what else shows is counted by benchmarks/laws.py.
DECIDES = frozenset(("module list", "count", "legs of the call"))


def _assert_holds(
    law: str, run: runs.Run, name: str, choose: runs.Choose, scratch: Path
) -> None:
    for check in laws.of_run(run, law, name, choose, scratch):
        if law != "flip" or check.kind in DECIDES:
            assert check.broken is None, f"{check.kind}: {check.broken}\n{run}"


def _laws() -> list[object]:
    broken = pytest.mark.xfail(reason="broken today", strict=False)
    return [
        pytest.param(law, marks=broken if law in BROKEN_TODAY else ())
        for law in laws.RANDOM
    ]


@pytest.mark.parametrize("law", _laws())
def test_a_law_holds_of_random_runs(law: str, tmp_path: Path) -> None:
    phases = [Phase.explicit, Phase.generate]
    if law not in BROKEN_TODAY:
        phases.append(Phase.shrink)

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=phases,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        def choose(options):  # type: ignore[no-untyped-def]
            return data.draw(st.sampled_from(options))

        run = runs.random_run(choose)
        _assert_holds(law, run, "a random run", choose, tmp_path / "runs")

    holds()


@pytest.mark.parametrize(
    ("law", "seed"),
    [
        *CASES_MENDED,
        *(pytest.param(*case, marks=_BROKEN) for case in CASES_BROKEN_TODAY),
    ],
)
def test_a_law_holds_of_a_run_that_broke_it(
    law: str, seed: int, tmp_path: Path
) -> None:
    run = runs.random_run(random.Random(seed).choice)
    choose = random.Random(f"{law} {seed}").choice
    _assert_holds(law, run, f"random {seed}", choose, tmp_path / "runs")
