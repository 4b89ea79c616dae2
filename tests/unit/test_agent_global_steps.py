"""Numbers of steps that a framework, a log or a script tells, and windows placed by them."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest

from fp8verify.agent.record import new_window
from fp8verify.agent.step_numbers import (
    LOG,
    GlobalSteps,
    LoggedNumbers,
    LogLines,
    SharedOffset,
)
from fp8verify.agent.windows.plan import GlobalWindows, Plan


def offset_of(*lines: str, first: int = 1) -> int | None:
    """Return what the log tells where a line comes after each step, the first after `first`."""
    numbers = LoggedNumbers()
    for step, line in enumerate(lines, start=first):
        numbers.take(line, step)
    return numbers.offset


@pytest.mark.parametrize(
    "line",
    [
        "[rank 0] INFO     \x1b[2m[step {}]\x1b[0m \x1b[36mloss\x1b[0m=2.3",
        "[titan] 2026-11-22 - root - INFO - \x1b[31mstep: {:5}  \x1b[32mloss:  2.3",
        " [2026-11-22 10:00:00] iteration {:8}/     500 | consumed samples: 80 | lr: 1.0E-04 |",
        "2026-11-22 host:0 trainer INFO [step={}/1800,epoch=1,eta=1:02]",
        '{{"global_step": {}, "loss": 2.3}}',
        "step {:05d}/19560 | loss: 2.3 | dt: 312 ms",
        "Epoch 7 global_step={} loss 2.3",
    ],
)
@pytest.mark.parametrize("every", [1, 10])
def test_a_number_that_grows_with_the_steps_is_theirs(line: str, every: int) -> None:
    numbers = LoggedNumbers()
    for seen, step in enumerate(range(every, 4 * every, every)):
        assert numbers.offset is None, f"known after {seen} lines"
        numbers.take(line.format(step + 100), step)

    assert numbers.offset == 100


@pytest.mark.parametrize(
    "lines",
    [
        [f"step {number}" for number in (101, 102)],  # too few
        [f"step {number}" for number in (101, 101, 101, 101)],  # stands still
        [f"step {number}" for number in (4, 8, 12, 16)],  # counts batches
        [f"step {number}" for number in (1, 2, 3, 4, 1, 2, 3)],  # begins again
        [f"step {n}/99 iteration {n + 800}" for n in range(1, 5)],  # two that disagree
        [f"epoch 3 step {number}" for number in range(1, 5)],  # of an epoch, maybe
        [f"step {number}.5 ms" for number in range(1, 5)],
        [f"step {number} ms" for number in range(1, 5)],
        [f"timestep {number}" for number in range(1, 5)],
        [f"loss {number}" for number in range(1, 5)],
    ],
    ids=lambda lines: lines[0],
)
def test_other_numbers_are_not(lines: list[str]) -> None:
    assert offset_of(*lines) is None


def test_the_same_number_twice_in_a_step_is_one_line() -> None:
    numbers = LoggedNumbers()
    for step in (1, 1, 1, 2):
        numbers.take(f"step {step}", step)
    assert numbers.offset is None
    numbers.take("step 3", 3)
    assert numbers.offset == 0


def test_logged_and_printed_lines_are_heard_and_left_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard: list[str] = []
    lines = LogLines(heard.append)
    lines.install()
    logger = logging.getLogger("of-a-rank-that-prints-nothing")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    logger.info("[step %d] loss=%.1f", 3, 0.5)
    print("step:", 4, "", end="")
    print("loss: 2.3")
    other = threading.Thread(target=print, args=("step: 9 loss: 1",))
    other.start()
    other.join()
    lines.uninstall()
    print("step: 5  loss: 2.3")

    assert heard == ["[step 3] loss=0.5", "step: 4 loss: 2.3"]
    assert capsys.readouterr().out == "step: 4 loss: 2.3\nstep: 9 loss: 1\nstep: 5  loss: 2.3\n"
    assert logging.getLogRecordFactory() is logging.LogRecord


def test_a_write_of_the_scripts_own_stays_when_lines_are_no_more_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = LogLines(lambda _: None)
    lines.install()
    before, copied = sys.stdout.write, list[str]()
    monkeypatch.setattr(sys.stdout, "write", lambda text: copied.append(text) or before(text))
    lines.uninstall()
    print("step: 5")

    assert copied == ["step: 5", "\n"]


def test_ranks_share_an_offset_and_a_restarted_training_does_not_take_it(tmp_path: Path) -> None:
    prints, silent = SharedOffset(str(tmp_path)), SharedOffset(str(tmp_path))
    assert silent.look() is None
    prints.publish(0)
    assert silent.look() == 0

    prints, silent = SharedOffset(str(tmp_path)), SharedOffset(str(tmp_path))
    assert (prints.look(), silent.look()) == (None, None)
    prints.publish(500)
    assert silent.look() == 500


def test_without_a_source_there_are_no_numbers() -> None:
    numbers = GlobalSteps()

    assert [numbers.completed(step) for step in range(4)] == [None] * 4
    assert numbers.framework is None


def placed(
    windows: list[tuple[int, int]], at: list[int | None]
) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return the steps that windows get where the numbers of the steps 0, 1, 2 … are `at`.

    With what they were asked for, and with the notes.
    """

    class Numbers(GlobalSteps):
        def completed(self, step: int) -> int | None:
            number = at[step]
            if number is not None and step:
                self._note(step, number)
            return number

    notes: list[str] = []
    plan = Plan([], [new_window(*window, asked=window) for window in windows])
    waiting = GlobalWindows(plan, Numbers(), notes.append)
    for step in range(len(at)):
        waiting.after(step)
    assert len(plan.waiting) == len(windows) - len(plan.windows)
    return [(one["first"], one["last"], *one["asked"]) for one in plan.windows], notes


@pytest.mark.parametrize(
    ("windows", "at", "found"),
    [
        ([(105, 107)], [100, 101, 102], []),
        ([(105, 107)], [100, 101, 102, 103], [(5, 7, 105, 107)]),  # in time to be prepared
        ([(101, 102)], [100], [(1, 2, 101, 102)]),  # the first step of a resumed run
        ([(9, 12)], [None, 1, 3, 5, 7, 9], [(5, 6, 9, 12)]),  # a counter of two optimizers
        ([(3, 4), (12, 13)], [None, None, 10, 11, 12], [(4, 5, 12, 13)]),  # one is over
        ([(5, 5), (7, 8)], [3, 4, 5, 6, 7, 8], [(2, 2, 5, 5), (4, 5, 7, 8)]),
        ([(3, 4)], [None, 1, 2, 3, 4, 1, 2, 3, 4], [(3, 4, 3, 4)]),  # trains twice
    ],
)
def test_a_window_gets_its_steps_once(
    windows: list[tuple[int, int]], at: list[int | None], found: list[tuple[int, ...]]
) -> None:
    assert placed(windows, at) == (found, [])


def test_the_numbers_of_several_trainings_are_told() -> None:
    numbers = GlobalSteps()
    for step, number in enumerate([1, 2, 3, 1, 2], start=1):
        numbers.learn(number - step, LOG)
        numbers.completed(step)
    assert (numbers.lowest, numbers.highest) == (1, 3)


def test_a_line_after_a_validation_is_about_the_step_before_it() -> None:
    numbers = LoggedNumbers()
    for step in range(1, 6):
        numbers.take(f"step:{step}/16 train_time:645ms", step + 10)
        if step % 2 == 0:  # the validation's forward pass looks like that of the next step
            numbers.take(f"step:{step}/16 val_loss:3.2", step + 10, begun=True)

    assert numbers.offset == -10


def test_a_loss_that_is_printed_before_the_update_is_about_the_step_that_has_begun() -> None:
    numbers = LoggedNumbers()
    for step in range(1, 6):
        numbers.take(f"iteration {step}/ 14 loss 3.2", step + 99, begun=True)

    assert numbers.offset == -100
