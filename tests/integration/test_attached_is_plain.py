"""Loops that an attached profiler could harm: attached they are as plain, in and outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.harness import Outcome
from fp8verify.capture.files import read_ranks
from fp8verify.capture.schema import RankMeta
from tests.shared_torch import FORKS_RUN, python_of_our_commands, python_with_torch

pytestmark = pytest.mark.train
LOOPS = Path(__file__).parent / "loops"
SEEN = Path(__file__).parents[2] / "benchmarks" / "attach" / "seen.py"


@pytest.fixture(autouse=True)
def _runs_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FORKS_RUN.items():
        monkeypatch.setenv(name, value)


def pair(folder: Path, *command: object, **options: Any) -> tuple[Outcome, Outcome]:
    """Run a script plain and attached, in forks."""
    python = python_with_torch()
    runner = python_of_our_commands()
    return harness.pair(folder, *command, python=python, runner=runner, **options)


def same(
    folder: Path, *arguments: object, options: tuple[object, ...] = ("--steps", "3-4")
) -> RankMeta:
    """Run a loop both ways, ask for no difference, and return what was recorded.

    On a busy machine a helper of torch's compiler may live until the loop ends: what fp8verify
    changes, it changes both times.
    """
    for again in (folder, folder / "again"):
        again.mkdir(exist_ok=True)
        plain, attached = pair(
            again,
            LOOPS / arguments[0],
            *arguments[1:],
            options=options,
        )
        if not (differences := plain.differences(attached)):
            break
    assert plain.code == 0, plain.stderr
    assert plain.inside, "the witness wrote nothing"
    assert differences == []
    return read_ranks(again / "attached" / "capture")[0]


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        (("builds_modules", "full"), 8), (("names_ranges", "full"), 8), (("module", "full"), 8),
        (("train_step",), 7), (("late_backward", "torchao"), 7),
        (("builds_modules", "full", "torchao"), 8), (("optimizer",), 7),
        (("traced_optimizer", "full"), 7), (("fused_step",), 7), (("scaler",), 7),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_torch_compile_sees_nothing(
    tmp_path: Path, case: tuple[str, ...], steps: int
) -> None:
    meta = same(tmp_path, "compiled.py", *case)

    assert meta.steps_seen >= steps
    assert [window.state for window in meta.windows] == ["complete"]


@pytest.mark.parametrize("case", ["module", "names_ranges"])
def test_what_is_compiled_inside_a_window_stays_compiled(
    tmp_path: Path, case: str
) -> None:
    same(tmp_path, "compiled.py", case, "full", options=("--steps", "1-2", "--layers"))


@pytest.mark.parametrize(
    "threads", ["ABBABBBB", "MMMABABM", "MMAAMMMM", "ABCABCAB", "MMM" + "A" * 400]
)
def test_steps_may_change_threads(tmp_path: Path, threads: str) -> None:
    meta = same(tmp_path, "odd.py", "changes", threads, options=("--steps", "3-5"))

    assert meta.steps_seen == len(threads)
    assert [(window.state, window.trace) for window in meta.windows] == [
        ("dropped", None)
    ]


def test_a_window_on_one_helper_thread_is_complete(tmp_path: Path) -> None:
    meta = same(tmp_path, "odd.py", "changes", "MAAAAAAA", options=("--steps", "4-5"))

    assert [window.state for window in meta.windows] == ["complete"]


@pytest.mark.parametrize("loop", ["two_threads", "tasks"])
def test_trainings_on_threads(tmp_path: Path, loop: str) -> None:
    same(tmp_path, "odd.py", loop, options=("--steps", "3-5,20-22"))


@pytest.mark.parametrize("case", ["functional", "restarts", "daemon", "signals"])
def test_trainings_that_do_more_than_train(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_EXEC", f"{python_with_torch()}")
    command = (LOOPS / "odd.py", case)
    plain, attached = pair(tmp_path, *command, witness=case == "signals")

    assert (plain.code, plain.stderr) == (0, "")
    assert plain.differences(attached) == []


def test_a_window_that_is_open_when_c_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FP8VERIFY_TESTS_WHOLE_EXIT", "1")
    plain, attached = pair(tmp_path, LOOPS / "odd.py", "forgets", witness=False)

    assert plain.code == 0
    assert plain.differences(attached) == []


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("saves", ("--steps", "3-4", "--layers")),
        ("modes", ("--steps", "3-4", "--numerics")),
        (
            "forks",
            ("--steps", "4"),
        ),  # before the window, while it warms up, in it and after it
        ("observes", ("--steps", "3-4")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_trainings_that_look_at_themselves(
    tmp_path: Path, case: str, options: tuple[str, ...]
) -> None:
    """The others, in all ways, are among the cases of `benchmarks/attach_cases.py`."""
    plain, attached = pair(tmp_path, SEEN, case, options=options, witness=False)

    assert plain.code == 0, plain.stderr
    assert plain.differences(attached) == []
