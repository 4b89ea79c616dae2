"""`--steps global:A-B`: windows by the numbers that go on where a run resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify.capture.schema import FrameworkSteps, WindowRecord
from tests.integration.test_run_attached import (
    SCRIPTS,
    as_text,
    attach,
    compare,
    execute,
    importable,
)
from tests.shared_torch import python_with_torch

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
    attached = attach(tmp_path, f"global:{asked}", NUMBERED, kind, 10, 10)

    (window,) = attached.meta().windows
    assert (window.state, window.asked) == ("complete", tuple(map(int, asked.split("-"))))
    assert numbers(window) == found
    said = f"window {found[0]}-{found[1]} = {found[2]} {found[3]}-{found[4]}"
    assert said in as_text(attached.capture)


def test_what_the_script_prints_and_logs_stays_as_it_is(tmp_path: Path) -> None:
    compare(tmp_path, "global:15-16", NUMBERED, "torchtitan", 10, 8)


def test_a_window_that_has_begun_when_its_numbers_are_known_is_recorded_from_there(
    tmp_path: Path,
) -> None:
    attached = attach(tmp_path, "global:11-15", NUMBERED, "printed", 10, 8)

    (window,) = attached.meta().windows
    assert numbers(window) == (5, 5, "log step", 15, 15)
    assert "window global:11-15 had begun when the numbers of its steps were known" in as_text(
        attached.capture
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("torchtitan", "having gone through the global steps 11-18 (log step)"),
        ("nothing", "and their global numbers are unknown: no counter of a framework"),
    ],
)
def test_a_window_that_never_opened_says_which_steps_there_were(
    tmp_path: Path, kind: str, reason: str
) -> None:
    attached = attach(tmp_path, "global:99-100", NUMBERED, kind, 10, 8)

    assert attached.states == ["never"]
    text = " ".join(as_text(attached.capture).split())
    assert "window global:99-100: never began, because the run ended after step 8," in text
    assert reason in text
    assert "--steps 7-8, counted from its start." in text


def test_a_window_over_before_its_numbers_were_known_says_so(tmp_path: Path) -> None:
    # The script tells the number of a step after it; the window's are the first two.
    attached = attach(tmp_path, "global:11-12", NUMBERED, "told", 10, 8)

    assert attached.states == ["never"]
    text = " ".join(as_text(attached.capture).split())
    assert "and its steps were over when their numbers were known" in text


def test_a_step_that_makes_the_state_of_an_optimizer_is_not_counted(tmp_path: Path) -> None:
    attached = attach(tmp_path, "3-4", NUMBERED, "dry_run", 0, 6)

    assert (attached.meta().steps_seen, attached.states) == (6, ["complete"])


def test_folds_and_copies_of_the_model_are_counted_as_the_loop_counts(tmp_path: Path) -> None:
    attached = attach(tmp_path, "9-10", NUMBERED, "folds", 0, 7)

    meta = attached.meta()
    assert (meta.steps_seen, attached.states) == (14, ["complete"])
    assert meta.notes == ("after step 7 a new AdamW began to step: it is counted since",)


def test_a_window_of_folds_opens_in_the_first_that_gets_there(tmp_path: Path) -> None:
    attached = attach(tmp_path, "global:6-7", NUMBERED, "folds", 0, 7)

    assert [numbers(window) for window in attached.meta().windows] == [(6, 7, "log step", 6, 7)]


def test_an_averaged_copy_of_the_model_neither_counts_nor_is_listed(tmp_path: Path) -> None:
    attached = attach(tmp_path, "global:5-6", NUMBERED, "ema", 0, 8)

    meta = attached.meta()
    assert (meta.steps_seen, len(meta.modules)) == (8, 1)


def test_a_critic_that_steps_more_often_is_told(tmp_path: Path) -> None:
    attached = attach(tmp_path, "4-5", NUMBERED, "gan", 0, 4)

    assert attached.meta().steps_seen == 12
    said = "the 12 steps are those of the AdamW that stepped first; besides it stepped AdamW 4 time"
    assert said in " ".join(as_text(attached.capture).split())


@pytest.mark.parametrize(("asked", "local"), [("5-6", (1, 2)), ("7-8", (3, 4))])
@pytest.mark.parametrize(
    ("package", "script"), [("transformers", "hf_trainer.py"), ("lightning", "lightning_fit.py")]
)
def test_a_resumed_trainer(
    tmp_path: Path, package: str, script: str, asked: str, local: tuple[int, int]
) -> None:
    importable(package)
    execute(python_with_torch(), SCRIPTS / script, 4, cwd=tmp_path)

    attached = attach(tmp_path, f"global:{asked}", SCRIPTS / script, 9, "resume")

    (window,) = attached.meta().windows
    first, last = map(int, asked.split("-"))
    assert (window.state, window.first, window.last) == ("complete", *local)
    assert window.framework == FrameworkSteps(
        name=package, counter="global_step", first=first, last=last
    )


def test_a_resumed_deepspeed_engine(tmp_path: Path) -> None:
    importable("deepspeed")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", 1, SCRIPTS / "deepspeed_engine.py"]
    execute(python_with_torch(), *launch, "--save", cwd=tmp_path)

    attached = attach(tmp_path, "global:7-8", *launch, "--load", fresh=True)

    (window,) = attached.meta().windows
    assert numbers(window) == (1, 2, "deepspeed global_steps", 7, 8)
