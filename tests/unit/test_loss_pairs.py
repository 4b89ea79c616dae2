"""The losses of two runs held against each other: gap, trend, jumps, divergence, what is judged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from fp8verify import compare as compare_runs
from fp8verify.comparison import compare_reports as compare
from fp8verify.comparison.losses import (
    CURVE_POINTS,
    EXPECTED_GAP,
    loss_findings,
    pair_losses,
)
from fp8verify.logs.losses import LossSeries
from fp8verify.model.comparison import LossPair
from fp8verify.report.forms import render
from tests.unit.test_comparison import run

NAN = math.nan


def series(
    *losses: float,
    first: int = 1,
    every: int = 1,
    counted: bool = False,
    epoch: float = 0.0,
) -> LossSeries:
    """A log's losses, one every so many steps; a counted one says epochs instead of steps."""
    points = {first + place * every: loss for place, loss in enumerate(losses)}
    epochs = {place: place * epoch for place in points} if counted and epoch else {}
    return LossSeries("test", points, counted, epochs)


def curve(
    steps: int, *, seed: int = 0, times: float = 1.0, noise: float = 0.0
) -> list[float]:
    """A loss that falls as trainings' do, on data of its own where there is noise."""
    scatter = random.Random(seed)
    return [
        times * (2 + 8 / math.sqrt(n)) + scatter.gauss(0, noise)
        for n in range(1, steps + 1)
    ]


def pair(before: LossSeries, after: LossSeries) -> LossPair:
    found = pair_losses(before, after)
    assert isinstance(found, LossPair)
    return found


def codes(found: LossPair) -> list[str]:
    return [finding.code for finding in loss_findings(found)]


def test_losses_are_compared_at_equal_steps() -> None:
    before = LossSeries("test", {1: 3.0, 2: 2.0, 4: 1.0}, False)
    found = pair(before, LossSeries("test", {2: 2.5, 3: 9.0, 4: 0.75}, False))
    assert (found.steps, found.first_step, found.last_step) == (2, 2, 4)
    assert (found.last_baseline, found.last_candidate) == (1.0, 0.75)
    assert (found.mean_gap, found.largest_gap, found.largest_gap_step) == (
        0.125,
        0.5,
        2,
    )


@pytest.mark.parametrize(
    ("epoch", "compared"), [(0.1, True), (0.103, False), (0.5, False)]
)
def test_counted_losses_must_be_of_the_same_epochs(
    epoch: float, compared: bool
) -> None:
    before = series(*curve(200), counted=True, epoch=0.1)
    found = pair_losses(before, series(*curve(200), counted=True, epoch=epoch))
    assert isinstance(found, LossPair) is compared
    rounded = LossSeries(
        "test",
        before.points,
        True,
        {},
        {p: e + 0.15 for p, e in before.epochs.items() if p > 100},
    )
    assert isinstance(pair_losses(before, rounded), LossPair)


def noisy(steps: int, kind: str, scatter: random.Random) -> list[float]:
    """Losses of one distribution whose noise is large: normal, or of the long tail of a product."""
    if kind == "normal":
        return [abs(scatter.gauss(2, 0.4)) for _ in range(steps)]
    return [2 * math.exp(scatter.gauss(0, 0.2)) for _ in range(steps)]


@pytest.mark.parametrize("kind", ["normal", "long tail"])
def test_noise_accuses_nobody(kind: str) -> None:
    scatter = random.Random(1)
    told = [
        code
        for steps in (8, 12, 20, 60, 200)
        for _ in range(50)
        for code in codes(
            pair(
                series(*noisy(steps, kind, scatter)),
                series(*noisy(steps, kind, scatter)),
            )
        )
    ]
    assert told == []


@pytest.mark.parametrize(
    ("ours", "theirs"), [(0.0001, 0.0002), (0.0, 1e-9), (2.0, 2.1)], ids=str
)
def test_the_last_digit_of_a_log_is_no_gap(ours: float, theirs: float) -> None:
    found = pair(series(*[ours] * 40), series(*[theirs] * 40))
    assert found.gap_is_noise
    assert codes(found) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1e308] * 20, [1.5e308] * 20, []),  # as good as infinite
        (curve(60), [*curve(30), *[1e300] * 30], ["nan-or-inf"]),
        (curve(60), [*curve(30), *[1e30] * 30], ["loss-diverged"]),
        (curve(60), [n * 1.5**k for k, n in enumerate(curve(60))], ["loss-diverged"]),
        ([math.inf] * 20, [math.inf] * 20, []),
        ([0.0] * 20, [0.0] * 20, []),
    ],
    ids=["huge", "infinite later", "explodes", "grows", "infinite", "nothing"],
)
def test_losses_of_any_size_are_shown(
    ours: list[float], theirs: list[float], expected: list[str], tmp_path: Path
) -> None:
    report = run(tmp_path, fp8=False, us=40)
    found = compare(report, report, (series(*ours), series(*theirs)))
    assert found.loss is not None
    assert codes(found.loss) == expected
    for form in ("text", "markdown", "json"):
        assert len(max(render(found, form).split(), key=len)) < 120


@pytest.mark.parametrize("every", [(1, 10), (10, 1), (5, 2), (1, 7)])
def test_runs_that_log_at_other_steps_or_end_earlier_have_no_gap(
    every: tuple[int, int],
) -> None:
    losses = curve(300, noise=0.1)
    points = dict(enumerate(losses, start=1))
    ours, theirs = (
        LossSeries(
            "test", {step: points[step] for step in range(each, end, each)}, False
        )
        for each, end in zip(every, (300, 200), strict=True)
    )
    found = pair(ours, theirs)
    assert (found.largest_gap, found.trend) in ((0.0, "steady"), (0.0, "unknown"))
    assert codes(found) == []


def test_a_gap_that_data_in_common_shows_is_told_with_its_trend() -> None:
    losses = curve(400, noise=0.05)
    found = pair(series(*losses), series(*(loss * 1.03 for loss in losses)))
    (finding,) = loss_findings(found)
    assert (finding.code, finding.severity.value) == ("loss-gap", "info")
    assert (
        "3.0% above the baseline's in the last half of the steps, steady"
        in finding.message
    )
    for gap, said in ((9.99, "999.0% above the"), (10.0, "11 times the")):
        (finding,) = loss_findings(replace(found, relative_gap=gap))
        assert f"loss is {said} baseline's" in finding.message
    assert codes(replace(found, relative_gap=EXPECTED_GAP)) == []


@pytest.mark.parametrize(
    ("share", "trend"),
    [
        (lambda _: 0.005, "steady"),
        (lambda n: 0.01 + 0.03 * n / 200, "growing"),
        (lambda n: 0.04 - 0.03 * n / 200, "shrinking"),
        (lambda n: 0.0002 * n, "growing"),
        (lambda n: 0.04 if 60 <= n < 140 else 0.0, "steady"),
    ],
)
def test_the_trend_is_that_of_the_relative_gap(
    share: Callable[[int], float], trend: str
) -> None:
    losses = curve(200)
    after = [loss * (1 + share(n)) for n, loss in enumerate(losses)]
    assert pair(series(*losses), series(*after)).trend == trend


def test_a_ramp_diverges_and_is_no_chance() -> None:
    losses = [2.0] * 400
    after = [loss * (1 + 0.5 * n / 400) for n, loss in enumerate(losses)]
    found = pair(series(*losses), series(*after))
    assert found.diverged_step == pytest.approx(42, abs=4)
    assert (found.gap_is_noise, found.trend) == (False, "growing")
    assert found.relative_gap == pytest.approx(0.375, abs=0.01)


def test_steps_at_which_both_are_no_numbers_are_not_equal_steps() -> None:
    losses = [*curve(99), *[NAN] * 301]
    found = pair(series(*losses), series(*losses))
    assert (found.steps, found.first_bad_step, found.first_bad_run) == (99, 100, "both")
    assert codes(found) == []


@pytest.mark.parametrize(
    ("first", "at", "said", "advice"),
    [
        (1, 20, "from step 21 on", "first fifty steps"),
        (1, 80, "from step 81 on", "late"),
        (1, 0, "from step 1 on", "from the start"),
        # Resumed from a BF16 checkpoint: its first fifty steps are those after it.
        (10_000, 20, "from step 10020 on", "first fifty steps"),
    ],
)
def test_where_runs_part(first: int, at: int, said: str, advice: str) -> None:
    losses = curve(150)
    after = [loss * (1.1 if n >= at else 1.0) for n, loss in enumerate(losses)]
    (finding,) = loss_findings(
        pair(series(*losses, first=first), series(*after, first=first))
    )
    assert finding.code == "loss-diverged"
    assert said in finding.message
    assert advice in finding.hint


def test_values_that_are_counted_are_not_called_steps() -> None:
    losses = curve(60)
    after = [loss * (1.1 if n >= 20 else 1.0) for n, loss in enumerate(losses)]
    (finding,) = loss_findings(
        pair(series(*losses, counted=True), series(*after, counted=True))
    )
    assert "from logged value 21 on" in finding.message
    assert "fifty" not in finding.hint


def test_a_loss_that_breaks_in_one_run_alone_is_told() -> None:
    found = pair(series(3.0, 2.0), series(3.0, NAN))
    assert (found.first_bad_step, found.last_candidate, found.mean_gap) == (
        2,
        None,
        0.0,
    )
    (finding,) = loss_findings(found)
    assert (finding.code, finding.severity.value) == ("nan-or-inf", "error")
    assert "not a finite number at step 2" in finding.message


def test_a_step_at_which_both_break_does_not_hide_where_one_does() -> None:
    found = pair(series(3.0, NAN, 2.0, 2.0), series(3.0, NAN, 2.0, NAN))
    assert (found.steps, found.first_bad_step, found.first_bad_run) == (
        2,
        4,
        "candidate",
    )


def test_a_loss_that_breaks_in_the_baseline_accuses_nobody() -> None:
    found = pair(series(3.0, NAN), series(3.0, 2.0))
    assert (found.first_bad_step, found.first_bad_run) == (2, "baseline")
    assert codes(found) == []


def test_the_picture_shows_what_is_told() -> None:
    losses = curve(50_399)
    after = list(losses)
    after[33_333] += 9
    found = pair(series(*losses), series(*after))
    assert len(found.curve) <= CURVE_POINTS + 4
    shown = {step for step, *_ in found.curve}
    # Those beside a spike, too: it must not look as if it lasted.
    assert {1, 33_333, 33_334, 33_335, 50_399} <= shown


@pytest.mark.parametrize("after", [curve, lambda steps: [NAN] * steps])
def test_many_steps_are_no_quadratic_work(after: Callable[[int], list[float]]) -> None:
    # A median of all gaps for each gap, as there once was, would take hours.
    steps = 100_000
    found = pair(series(*curve(steps)), series(*after(steps)))
    assert found.steps == (steps if after is curve else 0)


def test_losses_that_are_not_compared_say_why(tmp_path: Path) -> None:
    report = run(tmp_path, fp8=False, us=40)
    said = {
        "the logs' losses have no step in common": (series(1.0), series(1.0, first=2)),
        "only the log of the baseline has losses": (series(1.0), None),
        "the losses are not compared: the log of test does not give the steps of its losses": (
            series(1.0),
            series(1.0, counted=True),
        ),
    }
    for note, losses in said.items():
        found = compare(report, report, losses)
        assert found.loss is None
        assert note in found.notes


def test_another_batch_is_no_gap_of_fp8(tmp_path: Path) -> None:
    losses = curve(100)
    both = series(*losses), series(*(loss * 1.2 for loss in losses))
    one, twice = run(tmp_path, fp8=False, us=40), run(tmp_path, fp8=True, us=40, m=8192)
    found = compare(one, twice, both)
    assert [f.code for f in found.findings if f.code.startswith("loss")] == []
    assert any("equal steps are not equal tokens" in note for note in found.notes)
    found = compare(one, run(tmp_path, fp8=True, us=40), both)
    assert "loss-diverged" in [f.code for f in found.findings]


def test_every_form_has_gap_and_trend(tmp_path: Path) -> None:
    report = run(tmp_path, fp8=False, us=40)
    losses = series(*curve(100))
    found = compare(report, report, (losses, losses))
    for form in ("text", "markdown"):
        text = " ".join(render(found, form).split())
        assert "the gap is steady, +0.00% in the last half" in text


def test_logs_of_two_trainers_are_read_from_files(tmp_path: Path) -> None:
    for name, share in (("a", 1.0), ("b", 1.2)):
        lines = [
            f"{{'loss': {share * loss}, 'grad_norm': 1, 'epoch': 0.1}}"
            for loss in curve(40)
        ]
        (tmp_path / f"{name}.log").write_text("\n".join(lines))
        run(tmp_path, fp8=name == "b", us=40)
    paths = sorted(path for path in tmp_path.iterdir() if path.suffix != ".log")
    found = compare_runs(
        paths[0],
        paths[0],
        baseline_log=tmp_path / "a.log",
        candidate_log=tmp_path / "b.log",
    )
    assert found.loss is not None
    assert (found.loss.counted, found.loss.steps) == (True, 40)
