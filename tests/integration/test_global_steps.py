"""`--steps global:A-B`: windows by the numbers that go on where a run resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify.capture.schema import WindowRecord
from tests.attached import SCRIPTS, attach, compare

pytestmark = pytest.mark.train
NUMBERED = SCRIPTS / "numbered.py"


def numbers(window: WindowRecord) -> tuple[int, int, str, int, int] | None:
    named = window.framework
    if named is None:
        return None
    return (
        window.first,
        window.last,
        f"{named.name} {named.counter}",
        named.first,
        named.last,
    )


def test_a_resumed_run_is_recorded_by_its_own_numbers(tmp_path: Path) -> None:
    attached = compare(tmp_path, "global:14-15", NUMBERED, "told", 10, 10)

    window = attached.window
    assert (window.state, window.asked) == ("complete", (14, 15))
    assert numbers(window) == (4, 5, "script step", 14, 15)
    assert "window 4-5 = script step 14-15" in attached.text()


@pytest.mark.parametrize(
    ("kind", "asked", "said"),
    [
        ("told", "99-100",
         ("window global:99-100: never began, because the run ended after step 8,",
          "having gone through the global steps 11-18 (script step)",
          "--steps 7-8, counted from its start.")),
        (
            "torchtitan",  # whose log has them
            "99-100",
            (
                "and their global numbers are unknown: no counter of a framework",
                "--steps 7-8, counted from its start.",
            ),
        ),
        # The script tells the number of a step after it; the window's are the first two.
        ("told", "11-12", ("and its steps were over when their numbers were known",)),
    ],
)  # fmt: skip
def test_a_window_that_never_opened_says_which_steps_there_were(
    tmp_path: Path, kind: str, asked: str, said: tuple[str, ...]
) -> None:
    attached = attach(tmp_path, f"global:{asked}", NUMBERED, kind, 10, 8)

    assert attached.states == ["never"]
    text = attached.text()
    assert [words for words in said if words not in text] == []


@pytest.mark.parametrize(
    ("kind", "steps", "windows", "seen", "found"),
    [
        (
            "dry_run",
            6,
            "3-4",
            6,
            (3, 4),
        ),  # makes the state of the optimizer before it trains
        ("folds", 7, "9-10", 14, (9, 10)),
        ("ema", 8, "5-6", 8, (5, 6)),
        ("gan", 4, "4-5", 12, (4, 5)),
    ],
)
def test_steps_are_counted_as_the_loop_counts(
    tmp_path: Path,
    kind: str,
    steps: int,
    windows: str,
    seen: int,
    found: tuple[int, int],
) -> None:
    attached = attach(tmp_path, windows, NUMBERED, kind, 0, steps)

    meta, window = attached.meta(), attached.window
    assert (meta.steps_seen, window.state, (window.first, window.last)) == (
        seen,
        "complete",
        found,
    )
    if kind == "folds":
        assert meta.notes == (
            "after step 7 a new AdamW began to step: it is counted since",
        )
    # At the window's end the generator has stepped too; an average of the model never does.
    assert len(meta.modules) == (2 if kind == "gan" else 1)
