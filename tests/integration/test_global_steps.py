"""`--steps global:A-B`: windows by the numbers that go on where a run resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify.capture.schema import WindowRecord
from tests.attached import SCRIPTS, TORCHRUN, attach, compare, execute, importable, python

pytestmark = pytest.mark.train
NUMBERED = SCRIPTS / "numbered.py"


def numbers(window: WindowRecord) -> tuple[int, int, str, int, int] | None:
    named = window.framework
    if named is None:
        return None
    return window.first, window.last, f"{named.name} {named.counter}", named.first, named.last


@pytest.mark.parametrize(
    ("kind", "asked", "found"),
    [
        ("kempnerforge", "18-19", (8, 9, "log step", 18, 19)),  # logs every second step
        ("torchtitan", "15-16", (5, 6, "log step", 15, 16)),
        ("printed", "15-16", (5, 6, "log step", 15, 16)),
        ("told", "14-15", (4, 5, "script step", 14, 15)),
    ],
)
def test_a_resumed_run_is_recorded_by_its_own_numbers(
    tmp_path: Path, kind: str, asked: str, found: tuple[int, int, str, int, int]
) -> None:
    """What the script prints and logs stays as it is."""
    attached = compare(tmp_path, f"global:{asked}", NUMBERED, kind, 10, 10)

    window = attached.window
    assert (window.state, window.asked) == ("complete", tuple(map(int, asked.split("-"))))
    assert numbers(window) == found
    said = f"window {found[0]}-{found[1]} = {found[2]} {found[3]}-{found[4]}"
    assert said in attached.text()


def test_a_window_that_has_begun_when_its_numbers_are_known_is_recorded_from_there(
    tmp_path: Path,
) -> None:
    attached = attach(tmp_path, "global:11-15", NUMBERED, "printed", 10, 8)

    assert numbers(attached.window) == (5, 5, "log step", 15, 15)
    said = "window global:11-15 had begun when the numbers of its steps were known"
    assert said in attached.text()


def test_the_ranks_learn_the_numbers_from_the_one_that_prints_them(tmp_path: Path) -> None:
    command = (*TORCHRUN, 2, SCRIPTS / "ddp.py", "last-prints")
    attached = attach(tmp_path, "global:8-9", *command, ranks="all", fresh=True)

    windows = [attached.meta(rank).windows for rank in (0, 1)]
    assert [[numbers(window) for window in found] for found in windows] == [
        [(8, 9, "log step", 8, 9)]
    ] * 2


@pytest.mark.parametrize(
    ("kind", "asked", "said"),
    [
        (
            "torchtitan",
            "99-100",
            (
                "window global:99-100: never began, because the run ended after step 8,",
                "having gone through the global steps 11-18 (log step)",
                "--steps 7-8, counted from its start.",
            ),
        ),
        (
            "nothing",
            "99-100",
            (
                "and their global numbers are unknown: no counter of a framework",
                "--steps 7-8, counted from its start.",
            ),
        ),
        # The script tells the number of a step after it; the window's are the first two.
        ("told", "11-12", ("and its steps were over when their numbers were known",)),
    ],
)
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
        ("dry_run", 6, "3-4", 6, (3, 4)),  # makes the state of the optimizer before it trains
        ("folds", 7, "9-10", 14, (9, 10)),
        ("folds", 7, "global:6-7", 14, (6, 7)),  # opens in the first fold that gets there
        ("ema", 8, "global:5-6", 8, (5, 6)),
        ("gan", 4, "4-5", 12, (4, 5)),
    ],
)
def test_steps_are_counted_as_the_loop_counts(
    tmp_path: Path, kind: str, steps: int, windows: str, seen: int, found: tuple[int, int]
) -> None:
    attached = attach(tmp_path, windows, NUMBERED, kind, 0, steps)

    meta, window = attached.meta(), attached.window
    assert (meta.steps_seen, window.state, (window.first, window.last)) == (seen, "complete", found)
    if kind == "folds":
        assert meta.notes == ("after step 7 a new AdamW began to step: it is counted since",)
    if kind == "gan":
        said = "the 12 steps are those of the AdamW that stepped first; besides it stepped AdamW 4"
        assert said in attached.text()
    assert len(meta.modules) == 1  # an average of the model is not listed


@pytest.mark.parametrize("package", ["transformers", "lightning"])
def test_a_resumed_trainer(tmp_path: Path, package: str) -> None:
    importable(package)
    trainer = (SCRIPTS / "trainers.py", package, "--steps")
    execute(python(), *trainer, 4, cwd=tmp_path)

    attached = attach(tmp_path, "global:5-6,8-9", *trainer, 9, "--resume")

    counter = f"{package} global_step"
    found = [numbers(window) for window in attached.meta().windows]
    assert found == [(1, 2, counter, 5, 6), (4, 5, counter, 8, 9)]
    assert attached.states == ["complete"] * 2
